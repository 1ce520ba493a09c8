// Convolutions: our own kernels beside oneDNN, in turns in one run, over the shapes of conv_shapes.h, forward and both
// gradients, from and to tensors in the plain layout.
//   bench_conv [--threads 1|2|...] [--cpu avx2|avx512] [--filter TEXT] [--pass TEXT] [--ms MILLISECONDS a shape, pass
//   and engine] [--passes N] [--shapes N,IN,SIDE,OUT,KERNEL[,STRIDE[,PADDING[,GROUPS[,DILATION]]]]:...]
// One thread: processor time. More: wall-clock time. Goes through all shapes N times, so that what else runs on the
// machine for some seconds spoils no row; the best of many short samples counts. "own" is what training uses
// with LOCKSTEP_KERNELS=own: products, or the direct kernels where these are chosen. Prints GFLOP/s, the ratio to
// oneDNN, then the geometric mean and the worst.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "bench/conv_shapes.h"
#include "bench/turns.h"
#include "lockstep/core/cpu/instruction_set.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace {

using lockstep::Conv2dPath;
using lockstep::Tensor;

struct Options {
  int threads = 1;
  std::string cpu, filter, pass;
  double seconds = 0.05;
  int passes = 1;
  std::vector<conv_shapes::Shape> shapes = conv_shapes::all();
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--threads") options.threads = std::atoi(argv[i + 1]);
    if (name == "--cpu") options.cpu = argv[i + 1];
    if (name == "--filter") options.filter = argv[i + 1];
    if (name == "--pass") options.pass = argv[i + 1];
    if (name == "--ms") options.seconds = 1e-3 * std::atof(argv[i + 1]);
    if (name == "--passes") options.passes = std::atoi(argv[i + 1]);
    if (name == "--shapes") options.shapes = conv_shapes::parse(argv[i + 1]);
  }
  return options;
}

Tensor filled(const lockstep::Shape& sizes) {
  const Tensor t = lockstep::empty(sizes);
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = static_cast<float>(i % 17) - 8;
  return t;
}

// Seconds of one call with each path.
std::vector<double> measure(const std::function<void()>& call, const std::vector<Conv2dPath>& paths,
                            const Options& options) {
  std::vector<std::function<void()>> calls;
  for (const Conv2dPath path : paths)
    calls.emplace_back([&call, path] {
      lockstep::set_conv2d_path(path);
      call();
    });
  return turns::best(calls, options.threads, options.seconds, 5e-4);
}

// A shape and direction, and the least seconds of one call with each path so far.
struct Row {
  std::string shape, direction;
  double gflop = 0;
  std::vector<double> seconds;
};

// All rows once; those that there are keep what is better.
void measure_all(const Options& options, const std::vector<Conv2dPath>& paths, std::vector<Row>& rows) {
  std::size_t next = 0;
  for (const conv_shapes::Shape& shape : options.shapes) {
    if (shape.name.find(options.filter) == std::string::npos) continue;
    const lockstep::Conv2dGeometry& g = shape.geometry;
    const Tensor x = filled({g.n, g.in, g.h, g.w}), weight = filled({g.out, g.group_in(), g.kh, g.kw});
    const Tensor grad = filled({g.n, g.out, g.oh, g.ow}), out = filled(grad.sizes()), bias = filled({g.out});
    const Tensor x_grad = filled(x.sizes()), weight_grad = filled(weight.sizes()), bias_grad = filled({g.out});
    const std::pair<const char*, std::function<void()>> directions[] = {
        {"forward", [&] { lockstep::conv2d_forward_cpu(g, x, weight, bias, out, false); }},
        {"backward data", [&] { lockstep::conv2d_backward_data_cpu(g, grad, weight, x_grad); }},
        {"backward weight", [&] { lockstep::conv2d_backward_weight_cpu(g, grad, x, weight_grad, bias_grad); }}};
    for (const auto& [direction, call] : directions) {
      if (std::string_view(direction).find(options.pass) == std::string_view::npos) continue;
      const std::vector<double> seconds = measure(call, paths, options);
      const std::size_t row = next++;
      if (row == rows.size())
        rows.push_back(
            {shape.name, direction, 2e-9 * static_cast<double>(g.macs()) * static_cast<double>(g.n), seconds});
      for (std::size_t l = 0; l < seconds.size(); ++l)
        rows[row].seconds[l] = std::min(rows[row].seconds[l], seconds[l]);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  turns::hold_libraries_to(options.cpu, argc, argv);
  lockstep::set_num_threads(options.threads);
  std::vector<Conv2dPath> paths{Conv2dPath::automatic, Conv2dPath::own};
  if (lockstep::conv2d_path_available(Conv2dPath::onednn)) paths.push_back(Conv2dPath::onednn);
  fmt::print("ours: {}; {} thread(s)\n", name(lockstep::cpu::instruction_set()), options.threads);
  fmt::print("{:<24} {:<16} {:>8} {:>8} {:>8} {:>6}\n", "shape", "pass", "own", "products", "onednn", "ratio");
  std::vector<Row> rows;
  for (int pass = 0; pass < options.passes; ++pass) measure_all(options, paths, rows);
  double logs = 0;
  std::vector<std::pair<double, std::string>> ratios;
  for (const Row& row : rows) {
    const double peer = row.seconds.size() > 2 ? row.seconds[2] : 0, ratio = peer > 0 ? peer / row.seconds[0] : 1;
    fmt::print("{:<24} {:<16} {:>8.1f} {:>8.1f} {:>8.1f} {:>6.2f}\n", row.shape, row.direction,
               row.gflop / row.seconds[0], row.gflop / row.seconds[1], peer > 0 ? row.gflop / peer : 0, ratio);
    logs += std::log(ratio);
    ratios.emplace_back(ratio, row.shape + ", " + row.direction);
  }
  std::ranges::sort(ratios);
  fmt::print("{} passes; geometric mean of ours to oneDNN {:.3f}; lowest:", ratios.size(),
             std::exp(logs / static_cast<double>(ratios.size())));
  for (std::size_t i = 0; i < std::min<std::size_t>(8, ratios.size()); ++i)
    fmt::print(" {:.2f} ({})", ratios[i].first, ratios[i].second);
  fmt::print("\n");
}
