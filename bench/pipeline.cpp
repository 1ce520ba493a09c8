// Pipelines and divided layers, measured beside what theory says: how long stages wait, and what is sent in a step.
//
//   pipeline [--quick]
//
// Bubbles: layers that take their time by sleeping, so that stages that share cores do not slow each other down; what
// is measured is schedule, messages and bookkeeping, and how soon a process runs again for which something has come.
// The same by clocks of the stages' own: activations and gradients carry when they were ready, and a layer adds its
// time to that, so that order and waiting alone count, on however busy a machine. Bytes: a small transformer, counted
// by the groups themselves.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/autograd/node.h"
#include "lockstep/autograd/record.h"
#include "lockstep/distributed/launcher/spawn.h"
#include "lockstep/lockstep.h"

namespace ls = lockstep;

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;
using ls::distributed::PipelineSchedule;

constexpr double kForward = 50.0, kBackward = 100.0;  // milliseconds of a layer
constexpr int kLayers = 8;

double stage_clock = 0.0;  // of this process

/// Sleeps, and returns values like `like` that say when the stage was ready by its clock.
ls::Tensor take_time(const ls::Tensor& like, double milliseconds) {
  std::this_thread::sleep_for(Milliseconds(milliseconds));
  stage_clock = std::max(stage_clock, like.max().item<double>()) + milliseconds;
  return ls::full(like.sizes(), stage_clock);
}

/// Half of its time is for the input's gradient, half for the weight's.
struct SleepBackward final : ls::Node {
  const char* name() const override { return "SleepBackward"; }
  bool gradients_are_apart() const override { return true; }
  ls::TensorList apply(ls::TensorList grads) override {
    ls::TensorList result(2);
    if (needs_grad(1)) {
      take_time(grads[0], kBackward / 2);
      result[1] = ls::zeros({16});
    }
    if (needs_grad(0)) result[0] = take_time(grads[0], kBackward / 2);
    return result;
  }
};

struct Sleeper : ls::nn::Module {
  ls::nn::Parameter zero{this, "zero", ls::zeros({16})};  // so that the first layer's input needs a gradient too
  ls::nn::Parameter weight{this, "weight", ls::zeros({16})};
  ls::Tensor forward(ls::Tensor x) override {
    const ls::Tensor out = take_time(x, kForward), y = x + zero;
    ls::record<SleepBackward>(out, {&y, &weight});
    return out;
  }
};

struct StepTime {
  double wall, clock;
};

/// Milliseconds of the fastest of some steps, by the slowest rank.
StepTime step_time(ls::distributed::Job& job, PipelineSchedule schedule, int chunks, std::int64_t micro_batches,
                   int steps) {
  ls::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) net.add<Sleeper>();
  const ls::distributed::Mesh mesh(job, {.pipeline = job.world_size()});
  const ls::distributed::PipelineParallel pipeline(net, ls::distributed::pipeline_layers(net),
                                                   {.group = mesh.pipeline(), .schedule = schedule, .chunks = chunks});
  ls::TrainingStep step(net, {.group = mesh.data(), .accumulate = micro_batches, .model_part = pipeline.part()});
  const ls::data::Batch batch{ls::zeros({2 * micro_batches, 16}), {}};
  StepTime fastest{1e9, 1e9};
  for (int i = 0; i < steps + 1; ++i) {
    job.process_group()->barrier()->wait();
    stage_clock = 0.0;
    const auto start = Clock::now();
    step(batch, [](ls::nn::Module& module, const ls::data::Batch& part) {
      return (module.forward(part.x) * 1e-9).mean();  // times of gradients begin at nothing
    });
    const ls::Tensor took = ls::tensor({Milliseconds(Clock::now() - start).count(), stage_clock});
    job.process_group()->all_reduce(took, ls::distributed::ReduceOp::max)->wait();
    if (i > 0) fastest.wall = std::min(fastest.wall, took.to_vector<double>()[0]);
    fastest.clock = std::min(fastest.clock, took.to_vector<double>()[1]);
  }
  return fastest;
}

void measure_bubbles(bool quick) {
  struct Case {
    PipelineSchedule schedule;
    int chunks;
    std::int64_t micro_batches;
  };
  std::vector<Case> cases;
  for (const std::int64_t m : quick ? std::vector<std::int64_t>{4} : std::vector<std::int64_t>{4, 8})
    for (const auto& [schedule, chunks] :
         {std::pair{PipelineSchedule::gpipe, 1}, std::pair{PipelineSchedule::one_forward_one_backward, 1},
          std::pair{PipelineSchedule::interleaved, 2}, std::pair{PipelineSchedule::zero_bubble, 1},
          std::pair{PipelineSchedule::zero_bubble, 2}})
      cases.push_back({schedule, chunks, m});
  const int steps = quick ? 1 : 2;
  // What one stage takes, without anybody to wait for.
  std::vector<StepTime> alone;
  for (const Case& each : cases) {
    if (each.schedule != PipelineSchedule::gpipe) {
      alone.push_back(alone.back());
      continue;
    }
    auto job = ls::distributed::init();
    alone.push_back(step_time(job, PipelineSchedule::one_forward_one_backward, 1, each.micro_batches, steps));
  }
  std::printf(
      "| stages | schedule | micro-batches | step, ms | bubble measured | by stages' clocks | theory |\n"
      "|---|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  for (const int stages : {2, 4})
    ls::launcher::spawn(
        [&](int rank) {
          auto job = ls::distributed::init();
          for (std::size_t i = 0; i < cases.size(); ++i) {
            const auto& [schedule, chunks, m] = cases[i];
            const StepTime took = step_time(job, schedule, chunks, m, steps);
            // Interleaved: a micro-batch in so many turns; zero bubble: in three parts.
            const std::int64_t turns = (schedule == PipelineSchedule::zero_bubble ? 3 : 1) * chunks;
            const double theory = (stages - 1.0) / static_cast<double>(turns * m + stages - 1);
            if (rank == 0)
              std::printf("| %d | %s | %d | %.1f | %.3f | %.3f | %.3f |\n", stages, to_string(schedule).c_str(),
                          static_cast<int>(m), took.wall, 1.0 - alone[i].wall / (stages * took.wall),
                          1.0 - alone[i].clock / (stages * took.clock), theory);
            std::fflush(stdout);
          }
        },
        stages);
}

constexpr std::int64_t kVocabulary = 64, kWidth = 64, kHeads = 4, kLength = 32, kInner = 256, kBlocks = 4;

struct Block : ls::nn::Module {
  ls::nn::LayerNorm norm1{this, "norm1", kWidth};
  ls::nn::MultiheadAttention attention{this, "attention", kWidth, kHeads, {.is_causal = true}};
  ls::nn::LayerNorm norm2{this, "norm2", kWidth};
  ls::nn::Linear up{this, "up", kWidth, kInner}, down{this, "down", kInner, kWidth};
  ls::Tensor forward(ls::Tensor x) override {
    x = x + attention(norm1(x));
    return x + down(gelu(up(norm2(x))));
  }
};

struct Transformer : ls::nn::Module {
  Transformer() {
    for (int i = 0; i < kBlocks; ++i) blocks.add();
  }
  ls::nn::Embedding table{this, "table", kVocabulary, kWidth};
  ls::nn::ModuleList<Block> blocks{this, "blocks"};
  ls::nn::LayerNorm norm{this, "norm", kWidth};
  std::vector<ls::distributed::PipelineLayer> layers() {
    std::vector<ls::distributed::PipelineLayer> all{{"table", {&table}}};
    for (std::size_t i = 0; i < blocks.size(); ++i) all.push_back({fmt::format("blocks.{}", i), {&blocks[i]}});
    all.push_back({"norm", {&norm, &table}, [this](const ls::Tensor& x) { return norm(x).reshape({-1, kWidth}); }});
    return all;
  }
};

/// What each rank sends in one step: to other stages, and in the sums over tensor ranks.
void count_bytes(const ls::distributed::MeshSizes& sizes, std::int64_t micro_batches, bool lockstep) {
  constexpr std::int64_t kSamples = 2;  // of a micro-batch
  ls::launcher::spawn(
      [&](int rank) {
        auto job = ls::distributed::init();
        const ls::distributed::Mesh mesh(job, sizes);
        Transformer model;
        using enum ls::distributed::TensorSplit;
        const ls::distributed::TensorParallel divided(
            model,
            {{"table", vocabulary}, {"blocks.*.attention", heads}, {"blocks.*.up", column}, {"blocks.*.down", row}},
            {.group = mesh.tensor()});
        const ls::distributed::PipelineParallel pipeline(model, model.layers(), {.group = mesh.pipeline()});
        ls::TrainingStep step(model, {.group = mesh.data(),
                                      .logical_shards = lockstep ? micro_batches : 0,
                                      .accumulate = lockstep ? 1 : micro_batches,
                                      .model_part = pipeline.part()});
        const ls::Tensor tokens = ls::zeros({micro_batches * kSamples, kLength}, {.dtype = ls::kInt64});
        const std::size_t before = mesh.tensor()->records().size();
        const std::int64_t sent_before = pipeline.bytes_sent();
        step({tokens, tokens}, [&](ls::nn::Module& net, const ls::data::Batch& part) {
          return divided.cross_entropy(net.forward(part.x), model.table.weight, part.y.reshape({-1}));
        });
        double reduced = 0.0;
        const auto records = mesh.tensor()->records();
        for (std::size_t i = before; i < records.size(); ++i)
          reduced += static_cast<double>(records[i].input_sizes.numel()) *
                     static_cast<double>(ls::element_size(records[i].operation.dtype));
        // An all-reduce of n bytes sends 2 (T - 1) / T n from each rank.
        const double factor = 2.0 * (sizes.tensor - 1) / sizes.tensor;
        const double stage_bytes = static_cast<double>(pipeline.bytes_sent() - sent_before);
        const ls::Tensor all = ls::tensor({stage_bytes, reduced * factor});
        job.process_group()->all_reduce(all)->wait();
        if (rank != 0) return;
        const double activation = static_cast<double>(kSamples * kLength * kWidth) * 4.0;
        const double m = static_cast<double>(micro_batches), p = sizes.pipeline, t = sizes.tensor, d = sizes.data;
        const double table = static_cast<double>(kVocabulary * kWidth) * 4.0 / t;
        // Activations and gradients across each of the p - 1 borders; the tied table's gradient, for each micro-batch
        // in lockstep mode, else once, and back.
        const double stages =
            p > 1 ? t * d * (2.0 * (p - 1) * m * activation + table * ((lockstep ? m : 1.0) + 1.0)) : 0.0;
        // Two sums in forward and two in backward of each block (Megatron-LM); one of the table, one before the logits;
        // and three numbers a token in the softmax over the vocabulary.
        const double sums =
            m * (4.0 * kBlocks + 2.0) * activation + m * 3.0 * static_cast<double>(kSamples * kLength) * 4.0;
        std::printf("| %s | %s | %d | %.0f | %.0f | %.0f | %.0f |\n", to_string(sizes).c_str(),
                    lockstep ? "lockstep" : "plain", static_cast<int>(micro_batches), all.to_vector<double>()[0],
                    stages, all.to_vector<double>()[1], t * d * factor * sums);
        std::fflush(stdout);
      },
      sizes.data * sizes.pipeline * sizes.tensor);
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  ls::set_num_threads(1);
  measure_bubbles(quick);
  std::printf(
      "\n| mesh | mode | micro-batches | bytes to stages, all ranks | theory | bytes of tensor sums | theory |\n"
      "|---|---|---|---|---|---|---|\n");
  std::fflush(stdout);
  for (const ls::distributed::MeshSizes& sizes : {ls::distributed::MeshSizes{.pipeline = 2},
                                                  {.pipeline = 4},
                                                  {.tensor = 2},
                                                  {.tensor = 4},
                                                  {.pipeline = 2, .tensor = 2}})
    count_bytes(sizes, 4, false);
  count_bytes({.pipeline = 2}, 4, true);
  count_bytes({.data = 1, .pipeline = 2, .tensor = 2}, 8, false);
  return 0;
}
