// Training steps of bench/train_models.h on a CUDA device, on random images or tokens: a batch from the resident data
// set, forward, cross-entropy, backward, an update, as mnist_train runs them. bench/run_cuda_throughput.py starts it,
// beside the same in PyTorch. Reads a JSON object a line and answers with one a line:
//
//   {"setup": "a", "model": "lenet", "batch": 64, "dtype": "float32", "graph": true, "images": 60000, "warmup": 20}
//
// The type is float32, tf32 (products and convolutions of float32 tensors by TF32) or bf16 (autocast). With
// "benchmark": true cuDNN's algorithms are measured, as PyTorch's are in this comparison.
//
//   {"run": "a", "steps": 100}    seconds of that many steps, and the loss of the last
//   {"drop": "a"}
//
// What cannot be done is answered by {"error": "..."}. Ends with its input.

#include <cuda_runtime_api.h>

#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "bench/train_models.h"
#include "bench/train_rounds.h"
#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/distributed/parallel/capture.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/nn/optim/optim.h"

namespace {

using namespace lockstep;
using nlohmann::json;

constexpr double kMiB = 1048576.0;
const Device kDevice(kCUDA, 0);

/// Of a model's name: images, or windows of tokens and of what follows each.
std::shared_ptr<const data::Dataset> random_samples(const std::string& model, std::int64_t count) {
  train_rounds::Random random(1);
  if (const std::int64_t context = train_rounds::context_of(model); context > 0) {
    const Tensor tokens = empty({count, context + 1}, {.dtype = kInt64});
    train_rounds::fill_batch(random, tokens.data<std::int64_t>(), tokens.numel(), bench::Gpt::kVocabulary);
    return std::make_shared<data::TensorDataset>(tokens.narrow(1, 0, context).contiguous(),
                                                 tokens.narrow(1, 1, context).contiguous());
  }
  const Tensor x = empty(bench::image_sizes(model, count)), y = empty({count}, {.dtype = kInt64});
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = random.uniform() - 0.5f;
  train_rounds::fill_batch(random, y.data<std::int64_t>(), count, train_rounds::kClasses);
  return std::make_shared<data::TensorDataset>(x, y);
}

class Contestant {
 public:
  explicit Contestant(const json& setup)
      : type_(setup.value("dtype", "float32")),
        benchmark_(setup.value("benchmark", false)),
        loader_(random_samples(setup.at("model"), setup.value("images", train_rounds::kImages)),
                {.batch_size = setup.at("batch"), .seed = 1, .drop_last = true, .device = kDevice}) {
    set_modes();
    manual_seed(1);
    const std::string model = setup.at("model");
    step_.emplace([&] { return bench::make_model(model); }, distributed::TrainingStepOptions{.devices = {kDevice}});
    optimizer_ = bench::make_optimizer(model, step_->module().parameters());
    train_.emplace(*step_, *optimizer_, distributed::CapturedStepOptions{.capture = setup.value("graph", true)});
    for (int i = 0; i < setup.value("warmup", 20); ++i) one_step();
    synchronize();
    LOCKSTEP_CHECK(!setup.value("graph", true) || train_->obstacle().empty(), "no CUDA graph: {}", train_->obstacle());
  }

  json run(int steps) {
    set_modes();
    synchronize();
    const std::uint64_t replays = train_->replays();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) one_step();
    synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return {{"steps", steps},
            {"seconds", seconds},
            {"loss", loss_.item<double>()},
            {"replays", train_->replays() - replays}};
  }

  std::size_t graph_nodes() const { return train_->nodes(); }

 private:
  void set_modes() const {
    cuda::set_allow_tf32(type_ == "tf32");
    cuda::set_deterministic(!benchmark_);
    cuda::set_benchmark(benchmark_);
  }

  // All streams of the device.
  static void synchronize() {
    const cudaError_t status = cudaDeviceSynchronize();
    LOCKSTEP_CHECK(status == cudaSuccess, "the device has failed: {}", cudaGetErrorString(status));
  }

  // begin() goes on where the epoch is.
  const data::Batch& next_batch() {
    while (true) {
      if (epoch_) {
        if (const auto batch = epoch_->begin(); batch != epoch_->end()) return *batch;
        epoch_.reset();
      }
      epoch_.reset(new data::Epoch(loader_.epoch(epochs_++)));
    }
  }

  void one_step() {
    const RandomKeyGuard key(steps_++, 0);
    loss_ = (*train_)(next_batch(), [this](nn::Module& net, const data::Batch& part) {
      const AutocastGuard autocast(type_ == "bf16" ? kBFloat16 : kFloat32, kCUDA);
      return cross_entropy(net.forward(part.x), part.y.flatten());
    });
  }

  std::string type_;
  bool benchmark_;
  data::DataLoader loader_;
  std::optional<distributed::TrainingStep> step_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<distributed::CapturedStep> train_;
  std::unique_ptr<data::Epoch> epoch_;
  std::int64_t epochs_ = 0;
  std::uint64_t steps_ = 0;
  Tensor loss_;
};

json answer(std::map<std::string, std::unique_ptr<Contestant>>& contestants, const json& request) {
  if (request.contains("setup")) {
    Allocator& memory = cuda::device_allocator();
    memory.reset_peak(kDevice);
    const std::size_t before = memory.stats(kDevice).in_use;
    auto made = std::make_unique<Contestant>(request);
    const AllocatorStats stats = memory.stats(kDevice);
    const std::size_t nodes = made->graph_nodes();
    contestants[request["setup"]] = std::move(made);
    return {{"peak_mib", static_cast<double>(stats.peak - before) / kMiB}, {"graph_nodes", nodes}};
  }
  if (request.contains("drop")) {
    contestants.erase(request["drop"].get<std::string>());
    cuda::device_allocator().empty_cache();
    return json::object();
  }
  const auto found = contestants.find(request.at("run"));
  LOCKSTEP_CHECK(found != contestants.end(), "there is no setup '{}'", request["run"].get<std::string>());
  return found->second->run(request.at("steps"));
}

}  // namespace

int main() {
  std::map<std::string, std::unique_ptr<Contestant>> contestants;
  try {
    cuda::require_device(0);
    std::cout << json{{"library", "lockstep"}, {"device", cuda::device_name(0)}} << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "cuda_throughput: " << error.what() << "\n";
    return 77;  // not here
  }
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::cout << answer(contestants, json::parse(line)) << std::endl;
    } catch (const std::exception& error) {
      std::cout << json{{"error", error.what()}} << std::endl;
    }
  }
  return 0;
}
