// DistributedDataParallel on CUDA devices: how long a step of a multilayer perceptron of 16.8 million parameters takes
// with the gradients' all-reduce and without, and when each bucket's all-reduce ran beside backward.
//
//   lockstep-run --nproc-per-node 2 -- cuda_ddp [STEPS A ROUND] [WIDTH] [BATCH OF A RANK]
//
// Rank 0 prints one line of JSON. Rounds of steps with and without synchronisation take turns; "graph" is the whole
// step as one CUDA graph. The timeline is taken from events on the device, in milliseconds since backward's last
// gradient: negative is before it. Status 77: no CUDA device here.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/core/storage.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/capture.h"
#include "lockstep/distributed/parallel/reduction/communication_hook.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"

namespace {

using namespace lockstep;
using nlohmann::json;

constexpr int kLayers = 4;
constexpr int kRounds = 7;
constexpr int kWarmUp = 5;

struct Net final : nn::Module {
  explicit Net(std::int64_t width) {
    for (int i = 0; i < kLayers; ++i)
      layers.push_back(std::make_unique<nn::Linear>(this, "fc" + std::to_string(i), width, width));
  }
  Tensor forward(Tensor x) override {
    for (auto& layer : layers) {
      x = (*layer)(x);
      if (layer != layers.back()) x = relu(x);
    }
    return x;
  }
  std::vector<std::unique_ptr<nn::Linear>> layers;
};

/// The plain average, and events around it. It starts when its gradients are there and the one before has ended, since
/// all run on one stream.
class Timeline final : public distributed::CommunicationHook {
 public:
  explicit Timeline(int device) : probe_(cuda::Stream::create(device)) {}

  std::string name() const override { return "timeline"; }

  distributed::WorkPtr reduce(const distributed::GradientBucket& bucket, distributed::ProcessGroup& group) override {
    const int device = probe_.device();
    if (bucket.index == 0) buckets_.clear();
    cuda::Event ready(device, /*timing=*/true), done(device, /*timing=*/true);
    ready.record(cuda::Stream::current(device));
    distributed::WorkPtr work = group.all_reduce(bucket.flat, distributed::ReduceOp::avg);
    {
      const cuda::StreamGuard guard(probe_);
      work->wait();
      done.record(probe_);
    }
    buckets_.push_back({std::move(ready), std::move(done), bucket.flat.nbytes()});
    return work;
  }

  /// Of the last backward, which must have ended.
  json rows() const {
    json rows = json::array();
    if (buckets_.empty()) return rows;
    // The last bucket is full when the last gradient is there.
    const cuda::Event& end = buckets_.back().ready;
    const auto since_end = [&](const cuda::Event& event) { return &event == &end ? 0.0 : event.elapsed_ms(end); };
    double free = -1e300;
    for (const Bucket& bucket : buckets_) {
      bucket.done.synchronize();
      const double begun = std::max(since_end(bucket.ready), free);
      free = since_end(bucket.done);
      rows.push_back({{"mib", static_cast<double>(bucket.bytes) / 1048576.0}, {"begun_ms", begun}, {"done_ms", free}});
    }
    return rows;
  }

 private:
  struct Bucket {
    cuda::Event ready, done;
    std::size_t bytes;
  };
  cuda::Stream probe_;
  std::vector<Bucket> buckets_;
};

void synchronize() {
  const cudaError_t status = cudaDeviceSynchronize();
  LOCKSTEP_CHECK(status == cudaSuccess, "the device has failed: {}", cudaGetErrorString(status));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class Trainer {
 public:
  Trainer(const distributed::Job* job, std::int64_t width, bool graph, distributed::CommunicationHookPtr hook,
          Device device)
      : step_(
            [width] {
              manual_seed(1);
              return std::make_unique<Net>(width);
            },
            job ? distributed::TrainingStepOptions{.job = job, .hook = std::move(hook)}
                : distributed::TrainingStepOptions{.devices = {device}}),
        optimizer_(step_.module().parameters(), {.lr = 0.01, .momentum = 0.9}),
        train_(step_, optimizer_, {.capture = graph}) {}

  void run(const data::Batch& batch, int steps) {
    for (int i = 0; i < steps; ++i)
      loss_ = train_(
          batch, [](nn::Module& net, const data::Batch& part) { return cross_entropy(net.forward(part.x), part.y); });
  }
  /// Milliseconds a step.
  double time(const data::Batch& batch, int steps) {
    synchronize();
    const auto start = std::chrono::steady_clock::now();
    run(batch, steps);
    synchronize();
    return 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / steps;
  }
  nn::Module& module() { return step_.module(); }
  double loss() const { return loss_.item<double>(); }
  std::string obstacle() const { return train_.obstacle(); }
  std::size_t nodes() const { return train_.nodes(); }

 private:
  distributed::TrainingStep step_;
  optim::SGD optimizer_;
  distributed::CapturedStep train_;
  Tensor loss_;
};

/// In how many pieces of memory the gradients lie: as many as there are buckets if they are views of them.
std::size_t pieces_of_gradients(nn::Module& module) {
  std::set<const void*> pieces;
  for (const Tensor& parameter : module.parameters()) pieces.insert(parameter.grad().storage()->data());
  return pieces.size();
}

json measure(const distributed::Job& job, int steps, std::int64_t width, std::int64_t size) {
  const Device device = job.device();
  manual_seed(100 + static_cast<std::uint64_t>(job.rank()));
  // The net is as wide as its last layer: as many classes.
  const data::Batch own{randn({size, width}).to(device), randint(0, width, {size}).to(device), size * job.world_size()};
  const data::Batch solo{own.x, own.y, size};
  const auto hook = std::make_shared<Timeline>(device.index);
  Trainer alone(nullptr, width, false, nullptr, device), alone_graph(nullptr, width, true, nullptr, device);
  Trainer together(&job, width, false, nullptr, device), graph(&job, width, true, nullptr, device);
  Trainer traced(&job, width, false, hook, device);
  struct Row {
    const char* name;
    Trainer* trainer;
    const data::Batch* batch;
    std::vector<double> ms;
  };
  std::vector<Row> rows = {{"alone", &alone, &solo, {}},
                           {"alone_graph", &alone_graph, &solo, {}},
                           {"ddp", &together, &own, {}},
                           {"ddp_graph", &graph, &own, {}}};
  for (Row& row : rows) row.trainer->run(*row.batch, kWarmUp);
  traced.run(own, kWarmUp);
  for (int round = 0; round < kRounds; ++round)
    for (Row& row : rows) {
      synchronize();
      job.process_group()->barrier()->wait();
      row.ms.push_back(row.trainer->time(*row.batch, steps));
    }
  json result{{"device", cuda::device_name(device.index)},
              {"ranks", job.world_size()},
              {"parameters", kLayers * (width * width + width)},
              {"batch_of_a_rank", size},
              {"graph_obstacle", graph.obstacle()},
              {"graph_nodes", graph.nodes()},
              {"loss", together.loss()},
              {"loss_graph", graph.loss()}};
  for (Row& row : rows)
    result["ms"][row.name] = {{"median", median(row.ms)},
                              {"low", *std::ranges::min_element(row.ms)},
                              {"high", *std::ranges::max_element(row.ms)}};
  traced.run(own, 1);
  synchronize();
  result["timeline"] = hook->rows();
  result["buckets"] = result["timeline"].size();
  result["pieces_of_gradients"] = pieces_of_gradients(together.module());
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int place, std::int64_t otherwise) {
    return argc > place ? std::atoll(argv[place]) : otherwise;
  };
  if (argc > 1 && std::string_view(argv[1]) == "--help") {
    std::cout << "usage: lockstep-run --nproc-per-node N -- cuda_ddp [STEPS A ROUND] [WIDTH] [BATCH OF A RANK]\n";
    return 0;
  }
  if (!cuda::is_available()) {
    std::cerr << "cuda_ddp: needs a CUDA device: " << cuda::why_unavailable() << "\n";
    return 77;
  }
  try {
    distributed::InitOptions init;
    init.device = "cuda";
    const distributed::Job job = distributed::init(init);
    const json result = measure(job, static_cast<int>(number(1, 20)), number(2, 2048), number(3, 256));
    if (job.is_rank0()) std::cout << result << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "cuda_ddp: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
