// Steps of a small GPT on two processes, each division in turn, and what they are to be predicted from: the step of a
// process alone while the other one computes the same, and the time of all-reduces. For bench/scale.py --here.
//
//   mesh_steps [ROUNDS] > here.json
//
// One line of JSON, medians over the rounds, in seconds.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/distributed/launcher/spawn.h"
#include "lockstep/lockstep.h"

namespace ls = lockstep;

namespace {

using ls::distributed::PipelineSchedule;

constexpr std::int64_t kVocabulary = 64, kWidth = 384, kHeads = 6, kLayers = 6, kContext = 256;
constexpr std::int64_t kMicroBatches = 4, kSamples = 2;  // of a step; of a micro-batch
constexpr std::int64_t kLarge = 1 << 20;                 // floats of an all-reduce

struct Gpt : ls::nn::Module {
  Gpt() {
    for (std::int64_t i = 0; i < kLayers; ++i)
      h.add(kWidth, kHeads, ls::nn::TransformerBlockOptions{.is_causal = true});
  }
  ls::nn::Embedding wte{this, "wte", kVocabulary, kWidth};
  ls::nn::ModuleList<ls::nn::TransformerBlock> h{this, "h"};
  ls::nn::LayerNorm norm{this, "norm", kWidth};

  std::vector<ls::distributed::PipelineLayer> layers() {
    std::vector<ls::distributed::PipelineLayer> all;
    for (std::size_t i = 0; i < h.size(); ++i) all.push_back({fmt::format("h.{}", i), {&h[i]}});
    all.front().modules.push_back(&wte);
    all.front().forward = [this](const ls::Tensor& x) { return h[0](wte(x)); };
    all.back().modules.insert(all.back().modules.end(), {&norm, &wte});
    all.back().forward = [this](const ls::Tensor& x) { return norm(h[h.size() - 1](x)); };
    return all;
  }
};

/// What the ranks of `tensor` divide.
enum class Divides { layers, layers_and_tokens, tokens };

/// A model, divided, with its step.
class Trainer {
 public:
  Trainer(const ls::distributed::ProcessGroupPtr& world, const ls::distributed::MeshSizes& sizes,
          Divides divides = Divides::layers, PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward)
      : mesh_(world, sizes) {
    using enum ls::distributed::TensorSplit;
    const bool tokens = divides == Divides::tokens;
    std::vector<ls::distributed::TensorRule> plan{{"wte", tokens ? alike : vocabulary},
                                                  {"h.*.self_attn", heads},
                                                  {"h.*.linear1", tokens ? sequence : column},
                                                  {"h.*.linear2", tokens ? sequence : row}};
    if (divides != Divides::layers)
      for (const char* norm : {"h.*.norm1", "h.*.norm2", "norm"})
        plan.push_back({norm, ls::distributed::TensorSplit::sequence});
    if (tokens)
      for (const char* dropout : {"h.*.dropout", "h.*.dropout1", "h.*.dropout2"}) plan.push_back({dropout, sequence});
    if (sizes.tensor > 1)
      divided_.emplace(
          model_, plan,
          ls::distributed::TensorParallelOptions{.group = mesh_.tensor(),
                                                 .sequence_parallel = divides == Divides::layers_and_tokens,
                                                 .context_parallel = tokens});
    if (sizes.pipeline > 1)
      pipeline_.emplace(model_, model_.layers(),
                        ls::distributed::PipelineParallelOptions{
                            .group = mesh_.pipeline(), .schedule = schedule, .layers_of_chunks = {3, 3}});
    step_.emplace(model_, ls::TrainingStepOptions{.group = mesh_.data(),
                                                  .accumulate = kMicroBatches / sizes.data,
                                                  .model_part = pipeline_ ? pipeline_->part() : nullptr});
  }

  void operator()() {
    const std::int64_t samples = kMicroBatches * kSamples / mesh_.sizes().data;
    const ls::Tensor tokens = ls::zeros({samples, kContext}, {.dtype = ls::kInt64});
    const ls::data::Batch batch{tokens, tokens, samples * mesh_.sizes().data};
    (*step_)(batch, [&](ls::nn::Module& net, const ls::data::Batch& part) {
      ls::Tensor x = part.x;
      if (pipeline_) {
        x = net.forward(x);
      } else {
        x = model_.wte(x);
        if (divided_) x = divided_->own_tokens(x);
        for (ls::nn::TransformerBlock& block : model_.h) x = block(x);
        x = model_.norm(x);
      }
      const ls::Tensor y = part.y.reshape({-1});
      if (divided_)
        return divided_->cross_entropy(divided_->divides_tokens() ? x : x.flatten(0, 1), model_.wte.weight, y);
      return cross_entropy(linear(x.flatten(0, 1), model_.wte.weight), y);
    });
  }

 private:
  ls::distributed::Mesh mesh_;
  Gpt model_;
  std::optional<ls::distributed::TensorParallel> divided_;
  std::optional<ls::distributed::PipelineParallel> pipeline_;
  std::optional<ls::TrainingStep> step_;
};

/// Seconds until all ranks have done it.
double time_of(ls::distributed::ProcessGroup& world, const std::function<void()>& body) {
  world.barrier()->wait();
  const auto start = std::chrono::steady_clock::now();
  body();
  const ls::Tensor took = ls::tensor({std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()});
  world.all_reduce(took, ls::distributed::ReduceOp::max)->wait();
  return took.item<double>();
}

void measure(int rounds) {
  auto job = ls::distributed::init();
  const ls::distributed::ProcessGroupPtr& world = job.process_group();
  std::map<std::string, std::unique_ptr<Trainer>> trainers;
  trainers["alone"] =
      std::make_unique<Trainer>(ls::distributed::make_single_process_group(), ls::distributed::MeshSizes{});
  trainers["data"] = std::make_unique<Trainer>(world, ls::distributed::MeshSizes{.data = 2});
  trainers["pipeline"] = std::make_unique<Trainer>(world, ls::distributed::MeshSizes{.pipeline = 2});
  trainers["zero_bubble"] = std::make_unique<Trainer>(world, ls::distributed::MeshSizes{.pipeline = 2}, Divides::layers,
                                                      PipelineSchedule::zero_bubble);
  trainers["tensor"] = std::make_unique<Trainer>(world, ls::distributed::MeshSizes{.tensor = 2});
  trainers["sequence"] =
      std::make_unique<Trainer>(world, ls::distributed::MeshSizes{.tensor = 2}, Divides::layers_and_tokens);
  trainers["context"] = std::make_unique<Trainer>(world, ls::distributed::MeshSizes{.tensor = 2}, Divides::tokens);
  std::map<std::string, std::vector<double>> times;
  const ls::Tensor large = ls::zeros({kLarge}), small = ls::zeros({16});
  for (int round = -1; round < rounds; ++round) {
    const auto take = [&](const std::string& name, const std::function<void()>& body) {
      const double seconds = time_of(*world, body);
      if (round >= 0) times[name].push_back(seconds);
    };
    for (const auto& [name, trainer] : trainers) take(name, [&, each = trainer.get()] { (*each)(); });
    take("large", [&] { world->all_reduce(large)->wait(); });
    take("small", [&] { world->all_reduce(small)->wait(); });
  }
  if (!job.is_rank0()) return;
  fmt::print(
      "{{\"layers\": {}, \"hidden\": {}, \"heads\": {}, \"vocabulary\": {}, \"context\": {}, \"micro_batch\": {}, ",
      kLayers, kWidth, kHeads, kVocabulary, kContext, kSamples);
  fmt::print("\"micro_batches\": {}, \"large_bytes\": {}", kMicroBatches, kLarge * 4);
  for (auto& [name, values] : times) {
    std::ranges::sort(values);
    fmt::print(", \"{}\": {:.6f}", name, values[values.size() / 2]);
  }
  fmt::print("}}\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  ls::set_num_threads(1);
  ls::launcher::spawn([&](int) { measure(rounds); }, 2);
  return 0;
}
