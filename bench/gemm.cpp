// Matrix products: ours beside a BLAS and oneDNN, in turns in one run, over the shapes of gemm_shapes.h.
//   gemm [--threads 1|2|...] [--cpu avx2|avx512] [--filter TEXT] [--ms MILLISECONDS a shape and library] [--passes N]
//        [--shapes NN|NT|TN|TT,M,N,K:...]
// One thread: processor time. More: wall-clock time (bench/turns.h). Goes through all shapes N times, so that what else
// runs on the machine for some seconds spoils no row; the best sample of each counts. Prints a line a shape with
// GFLOP/s, the share of the cores' peak for the instruction set in use, ours divided by the better library; then the
// geometric mean and the worst shapes.

#include "lockstep/core/cpu/gemm/gemm.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>

#include "bench/gemm_peers.h"
#include "bench/gemm_shapes.h"
#include "bench/peak.h"
#include "bench/turns.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace {

using lockstep::cpu::InstructionSet;

float kept = 0;

struct Options {
  int threads = 1;
  std::string cpu, filter;
  double seconds = 0.15;
  int passes = 1;
  std::vector<gemm_shapes::Shape> shapes = gemm_shapes::all();
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--threads") options.threads = std::atoi(argv[i + 1]);
    if (name == "--cpu") options.cpu = argv[i + 1];
    if (name == "--filter") options.filter = argv[i + 1];
    if (name == "--ms") options.seconds = 1e-3 * std::atof(argv[i + 1]);
    if (name == "--passes") options.passes = std::atoi(argv[i + 1]);
    if (name == "--shapes") options.shapes = gemm_shapes::parse(argv[i + 1]);
  }
  return options;
}

// Ours, BLAS, oneDNN: seconds of one call each, 0 where there is no such library.
struct Times {
  double seconds[3] = {0, 0, 0};
  double peak = 0;  // of all threads

  void keep_best(const Times& other) {
    for (int l = 0; l < 3; ++l)
      if (seconds[l] == 0 || other.seconds[l] < seconds[l]) seconds[l] = other.seconds[l];
    peak = std::max(peak, other.peak);
  }
};

Times measure(const gemm_shapes::Shape& shape, const Options& options, InstructionSet set) {
  // Tensors, whose memory begins with a line of the cache, as that of any program's does.
  const lockstep::Tensor left = lockstep::empty({shape.m * shape.k}), right = lockstep::empty({shape.k * shape.n});
  const lockstep::Tensor result = lockstep::zeros({shape.m * shape.n});
  float *const a = left.data<float>(), *const b = right.data<float>(), *const c = result.data<float>();
  for (std::int64_t i = 0; i < left.numel(); ++i) a[i] = static_cast<float>(i % 17) - 8;
  for (std::int64_t i = 0; i < right.numel(); ++i) b[i] = static_cast<float>(i % 13) - 6;
  const gemm_peers::Product peer{shape.transpose_a, shape.transpose_b, shape.m, shape.n, shape.k, a, b, c};
  const lockstep::cpu::Gemm<float> own{.m = shape.m,
                                       .n = shape.n,
                                       .k = shape.k,
                                       .a = {a, peer.lda(), shape.transpose_a},
                                       .b = {b, peer.ldb(), shape.transpose_b},
                                       .out = c,
                                       .out_stride = shape.n};
  // Ours, BLAS, oneDNN, as far as they are there.
  std::vector<std::function<void()>> calls{[&] { lockstep::cpu::gemm_detail::multiply_own(own, set); }};
  std::vector<std::size_t> which{0};
  const std::function<bool()> peers[] = {[&] { return gemm_peers::blas(peer); },
                                         [&] { return gemm_peers::onednn(peer); }};
  for (std::size_t l = 0; l < 2; ++l) {
    if (!peers[l]()) continue;
    calls.emplace_back(peers[l]);
    which.push_back(l + 1);
  }
  Times times;
  // Of all threads at once, since cores may slow each other down.
  const auto measure_peak = [&] {
    std::vector<float> values(static_cast<std::size_t>(options.threads));
    std::atomic<double> flops = 0;
    const double start = turns::now(options.threads == 1);
    lockstep::parallel_for(options.threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        flops += peak::work(set, options.threads == 1 ? 40'000 : 400'000, values[static_cast<std::size_t>(i)]);
    });
    times.peak = std::max(times.peak, flops / (turns::now(options.threads == 1) - start));
    for (const float value : values) kept += value;
  };
  const std::vector<double> best = turns::best(calls, options.threads, options.seconds, 3e-4, measure_peak);
  for (std::size_t i = 0; i < best.size(); ++i) times.seconds[which[i]] = best[i];
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  turns::hold_libraries_to(options.cpu, argc, argv);
  lockstep::set_num_threads(options.threads);
  gemm_peers::blas_threads(options.threads);
  gemm_peers::onednn_threads(options.threads);
  const InstructionSet set = lockstep::cpu::instruction_set();
  fmt::print("ours: {}; {}; {}; {} thread(s)\n", name(set), gemm_peers::blas_name(), gemm_peers::onednn_name(),
             options.threads);
  fmt::print("{:<26} {:>2} {:>5} {:>5} {:>5} {:>8} {:>8} {:>8} {:>6} {:>6}\n", "shape", "", "m", "n", "k", "ours",
             "blas", "onednn", "share", "ratio");
  std::vector<gemm_shapes::Shape> shapes = options.shapes;
  std::erase_if(shapes, [&](const auto& shape) { return shape.name.find(options.filter) == std::string::npos; });
  std::vector<Times> best(shapes.size());
  for (int pass = 0; pass < options.passes; ++pass)
    for (std::size_t i = 0; i < shapes.size(); ++i) best[i].keep_best(measure(shapes[i], options, set));
  double logs = 0, best_peak = 0;
  for (const Times& times : best) best_peak = std::max(best_peak, times.peak);
  std::vector<std::pair<double, std::string>> ratios;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const gemm_shapes::Shape& shape = shapes[i];
    const Times& times = best[i];
    const double flops =
        2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
    double rate[3];
    for (int l = 0; l < 3; ++l) rate[l] = times.seconds[l] > 0 ? flops / times.seconds[l] : 0;
    const double ratio = rate[0] / std::max({rate[1], rate[2], 1.0});
    fmt::print("{:<26} {}{} {:>5} {:>5} {:>5} {:>8.1f} {:>8.1f} {:>8.1f} {:>6.2f} {:>6.2f}\n", shape.name,
               shape.transpose_a ? 'T' : 'N', shape.transpose_b ? 'T' : 'N', shape.m, shape.n, shape.k, rate[0] * 1e-9,
               rate[1] * 1e-9, rate[2] * 1e-9, rate[0] / best_peak, ratio);
    logs += std::log(ratio);
    ratios.emplace_back(ratio, shape.name);
  }
  std::ranges::sort(ratios);
  fmt::print("{} shapes; geometric mean of ours to the better library {:.3f}; peak {:.1f} GFLOP/s; lowest:",
             ratios.size(), std::exp(logs / static_cast<double>(ratios.size())), best_peak * 1e-9);
  for (std::size_t i = 0; i < std::min<std::size_t>(5, ratios.size()); ++i)
    fmt::print(" {:.2f} ({})", ratios[i].first, ratios[i].second);
  fmt::print("\n");
  return kept == 12345.0f;
}
