// Pipelines against one process: whole trainings, the same bits on every mesh.

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <functional>
#include <mutex>

#include "lockstep/autograd/node.h"
#include "lockstep/autograd/record.h"
#include "lockstep/nn/container.h"
#include "tests/distributed/parallel/pipeline_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using enum PipelineSchedule;

struct Row {
  const char* feature;
  double bound;
  Training training;
  std::vector<MeshSizes> meshes;
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.feature;
}

const std::vector<Row>& table() {
  const MeshSizes two{.pipeline = 2}, four{.pipeline = 4};
  const std::vector<MeshSizes> lockstep_meshes{{.pipeline = 2},
                                               {.pipeline = 4},
                                               {.data = 2},
                                               {.data = 4},
                                               {.data = 2, .pipeline = 2},
                                               {.data = 3, .pipeline = 2},
                                               {.data = 4, .pipeline = 2},
                                               {.data = 2, .pipeline = 4}};
  const std::vector<MeshSizes> zero_meshes{
      {.data = 2, .pipeline = 2}, {.data = 3, .pipeline = 2}, {.data = 2, .pipeline = 4}};
  const std::vector<MeshSizes> tensor_meshes{{.tensor = 2},
                                             {.pipeline = 2},
                                             {.pipeline = 4},
                                             {.pipeline = 2, .tensor = 2},
                                             {.pipeline = 2, .tensor = 4},
                                             {.pipeline = 4, .tensor = 2},
                                             {.data = 2, .pipeline = 2},
                                             {.data = 2, .pipeline = 2, .tensor = 2}};
  static const std::vector<Row> rows{
      {"pipeline 2, GPipe, SGD, 4 micro-batches", 1e-6, {.adam = false, .accumulate = 4, .schedule = gpipe}, {two}},
      {"pipeline 4, GPipe, SGD, 4 micro-batches", 1e-6, {.adam = false, .accumulate = 4, .schedule = gpipe}, {four}},
      {"pipeline 2, 1F1B, SGD, 5 micro-batches", 1e-6, {.adam = false, .accumulate = 5}, {two}},
      {"pipeline 4, 1F1B, SGD, 5 micro-batches", 1e-6, {.adam = false, .accumulate = 5}, {four}},
      {"pipeline 2, interleaved, SGD, 4 micro-batches",
       1e-6,
       {.adam = false, .accumulate = 4, .schedule = interleaved, .chunks = 3},
       {two}},
      {"pipeline 3, interleaved, SGD, 4 micro-batches",
       1e-6,
       {.adam = false, .accumulate = 4, .schedule = interleaved, .chunks = 2},
       {{.pipeline = 3}}},
      {"pipeline 2, zero bubble, SGD, 5 micro-batches",
       1e-6,
       {.adam = false, .accumulate = 5, .schedule = zero_bubble},
       {two}},
      {"pipeline 4, zero bubble, AdamW, clipping, recomputation, float64",
       1e-9,
       {.clip = 0.05, .dtype = kFloat64, .accumulate = 6, .schedule = zero_bubble, .recompute = true},
       {four}},
      {"pipeline 4, 1F1B, AdamW, clipping, recomputation, float64",
       1e-9,
       {.clip = 0.05, .dtype = kFloat64, .accumulate = 4, .recompute = true},
       {four}},
      {"pipeline 2, 1F1B, SGD, losses that are sums", 1e-6, {.adam = false, .accumulate = 3, .sums = true}, {two}},
      {"data 2 x pipeline 2, AdamW, clipping, accumulation, float64",
       1e-9,
       {.clip = 0.05, .dtype = kFloat64, .accumulate = 3},
       {{.data = 2, .pipeline = 2}}},
      {"data 2 x pipeline 2 x tensor 2, AdamW, clipping, accumulation, float64",
       1e-9,
       {.clip = 0.05, .dtype = kFloat64, .accumulate = 2},
       {{.data = 2, .pipeline = 2, .tensor = 2}}},
      {"pipeline 2, 1F1B, SGD, bf16", 5e-3, {.adam = false, .accumulate = 3, .amp = kBFloat16}, {two}},
      {"data 2 x pipeline 2 x tensor 2, SGD, accumulation, bf16",
       5e-3,
       {.adam = false, .accumulate = 2, .amp = kBFloat16},
       {{.data = 2, .pipeline = 2, .tensor = 2}}},
      {"data 2 x pipeline 2, SGD, accumulation, fp16, scaled losses",
       5e-3,
       {.adam = false, .accumulate = 2, .amp = kFloat16},
       {{.data = 2, .pipeline = 2}}},
      {"data 2 x pipeline 2, ZeRO-2, AdamW, clipping, accumulation, float64",
       1e-9,
       {.clip = 0.05, .dtype = kFloat64, .accumulate = 3, .zero = 2},
       {{.data = 2, .pipeline = 2}}},
      {"data 2 x pipeline 2 x tensor 2, ZeRO-3, AdamW, clipping, accumulation, float64",
       1e-9,
       {.clip = 0.05, .dtype = kFloat64, .accumulate = 3, .zero = 3},
       {{.data = 2, .pipeline = 2, .tensor = 2}}},
      {"data 2 x pipeline 2, ZeRO-3, interleaved, SGD, losses that are sums",
       1e-6,
       {.adam = false, .accumulate = 3, .schedule = interleaved, .chunks = 2, .zero = 3, .sums = true},
       {{.data = 2, .pipeline = 2}}},
      {"lockstep, 8 meshes of data and pipeline, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .steps = lockstep_steps()},
       lockstep_meshes},
      {"lockstep, 8 meshes with tensor shards, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .tensor_shards = 4, .clip = 0.05, .dropout = 0.1, .steps = lockstep_steps()},
       tensor_meshes},
      {"lockstep, GPipe, recomputation",
       0.0,
       {.shards = 4, .dropout = 0.1, .schedule = gpipe, .recompute = true, .steps = lockstep_steps()},
       {two, four, {.data = 2, .pipeline = 2}}},
      {"lockstep, bf16", 0.0, {.shards = 4, .amp = kBFloat16}, {two, {.data = 2, .pipeline = 2}}},
      {"lockstep, bf16, tensor shards, clipping, dropout",
       0.0,
       {.shards = 4, .tensor_shards = 4, .clip = 0.05, .dropout = 0.1, .amp = kBFloat16, .steps = lockstep_steps()},
       {{.tensor = 2}, {.pipeline = 2, .tensor = 2}, {.data = 2, .pipeline = 2, .tensor = 2}}},
      {"lockstep, ZeRO-1, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .zero = 1, .steps = lockstep_steps()},
       {{.data = 3, .pipeline = 2}}},
      {"lockstep, ZeRO-2 on 3 meshes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .zero = 2, .steps = lockstep_steps()},
       zero_meshes},
      {"lockstep, ZeRO-3 on 3 meshes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .zero = 3, .steps = lockstep_steps()},
       zero_meshes},
      {"lockstep, ZeRO-3, interleaved, tensor shards, AdamW, clipping, dropout",
       0.0,
       {.shards = 4,
        .tensor_shards = 4,
        .clip = 0.05,
        .dropout = 0.1,
        .schedule = interleaved,
        .chunks = 2,
        .zero = 3,
        .steps = lockstep_steps()},
       {{.data = 3, .pipeline = 2}, {.data = 2, .pipeline = 2, .tensor = 2}}},
      {"lockstep, zero bubble, tensor shards, AdamW, clipping, dropout",
       0.0,
       {.shards = 4,
        .tensor_shards = 4,
        .clip = 0.05,
        .dropout = 0.1,
        .schedule = zero_bubble,
        .steps = lockstep_steps()},
       {two, four, {.data = 2, .pipeline = 2}, {.data = 2, .pipeline = 2, .tensor = 2}}},
      {"lockstep, zero bubble, ZeRO-3, dropout",
       0.0,
       {.shards = 4, .dropout = 0.1, .schedule = zero_bubble, .zero = 3, .steps = lockstep_steps()},
       {{.data = 2, .pipeline = 2}, {.data = 2, .pipeline = 4}}},
      {"lockstep, zero bubble, 2 chunks a stage, AdamW, clipping",
       0.0,
       {.shards = 4, .clip = 0.05, .schedule = zero_bubble, .chunks = 2, .steps = lockstep_steps()},
       {two, {.pipeline = 3}}},
      {"lockstep, zero bubble, bf16, recomputation",
       0.0,
       {.shards = 8, .schedule = zero_bubble, .recompute = true, .amp = kBFloat16},
       {two, four}},
      {"lockstep, fp16, scaled losses, tensor shards, clipping, dropout",
       0.0,
       {.shards = 4, .tensor_shards = 4, .clip = 0.05, .dropout = 0.1, .amp = kFloat16, .steps = lockstep_steps()},
       {{.tensor = 2}, {.data = 2, .pipeline = 2, .tensor = 2}}},
      {"lockstep, fp16, scaled losses, ZeRO-2, dropout",
       0.0,
       {.shards = 4, .dropout = 0.1, .amp = kFloat16, .zero = 2, .steps = lockstep_steps()},
       {{.data = 2, .pipeline = 2}}},
      {"lockstep, interleaved, dropout",
       0.0,
       {.shards = 4, .dropout = 0.1, .schedule = interleaved, .chunks = 2, .steps = lockstep_steps()},
       {two, {.pipeline = 3}, {.data = 2, .pipeline = 2}}},
  };
  return rows;
}

/// What the row is compared with: a step that knows of no pipeline, in one process; in lockstep mode with the same
/// shards.
Trained reference_of(const Row& row) {
  Training alone = row.training;
  alone.recompute = false;
  alone.zero = 0;
  if (alone.shards == 0) alone.accumulate = 1;
  return train_on_mesh(alone, make_single_process_group(), {}, /*plain=*/true);
}

class PipelineEquivalenceOf : public ::testing::TestWithParam<Row> {};

TEST_P(PipelineEquivalenceOf, WeightsAreThoseOfOneProcess) {
  const Row& row = GetParam();
  const Trained one = reference_of(row);
  if (row.training.amp == kFloat16 && row.training.shards > 0) {
    EXPECT_GT(one.left_out, 0) << "the row must overflow";
    EXPECT_LE(one.left_out, row.training.steps - 3) << "and take steps after that";
  }
  double largest = 0.0;
  std::mutex mutex;
  for (const MeshSizes& sizes : row.meshes)
    run_in(sizes.data * sizes.pipeline * sizes.tensor, [&](const ProcessGroupPtr& group) {
      const double difference = difference_of(train_on_mesh(row.training, group, sizes), one);
      const std::lock_guard lock(mutex);
      EXPECT_LE(difference, row.bound) << to_string(sizes);
      largest = std::max(largest, difference);
    });
  RecordProperty("largest_difference", fmt::format("{:.1e}", largest));
  std::printf("| %s | %.0e | %.1e |\n", row.feature, row.bound, largest);
}

INSTANTIATE_TEST_SUITE_P(Features, PipelineEquivalenceOf, ::testing::ValuesIn(table()), [](const auto& info) {
  std::string name = info.param.feature;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

// One stage is a pipeline too, and gives what no pipeline gives.
TEST(PipelineEquivalence, OneStageIsNoOther) {
  const ProcessGroupPtr alone = make_single_process_group();
  const Training training{.shards = 4, .clip = 0.05, .dropout = 0.1};
  EXPECT_EQ(difference_of(train_on_mesh(training, alone), train_on_mesh(training, alone, {}, true)), 0.0);
  EXPECT_EQ(difference_of(train_on_mesh({.shards = 4, .dropout = 0.1, .schedule = interleaved, .chunks = 3}, alone),
                          train_on_mesh({.shards = 4, .dropout = 0.1}, alone, {}, true)),
            0.0);
}

// --- what stages wait for --------------------------------------------------------------------------------------------

constexpr double kForward = 1.0, kBackward = 2.0;

/// A layer that takes its time by a clock of the stage's own, which no machine can disturb: activations and gradients
/// are the times at which they were ready.
struct Timed final : nn::Module {
  explicit Timed(std::shared_ptr<double> clock) : clock(std::move(clock)) {}
  std::shared_ptr<double> clock;
  nn::Parameter zero{this, "zero", zeros({1})}, weight{this, "weight", zeros({1})};

  struct Backward final : Node {
    const char* name() const override { return "Timed"; }
    bool gradients_are_apart() const override { return true; }
    TensorList apply(TensorList grads) override {
      TensorList result(2);
      *clock = std::max(*clock, grads[0].max().item<double>());
      for (const std::size_t i : {1, 0})  // so that the input's gradient comes when all is done
        if (needs_grad(i)) result[i] = full(i == 0 ? grads[0].sizes() : Shape{1}, *clock += kBackward / 2);
      return result;
    }
    std::shared_ptr<double> clock;
  };

  Tensor forward(Tensor x) override {
    *clock = std::max(*clock, x.max().item<double>()) + kForward;
    const Tensor y = x + zero, out = full(x.sizes(), *clock);
    if (Backward* const node = record<Backward>(out, {&y, &weight})) node->clock = clock;
    return out;
  }
};

/// The share of a step in which stages wait, and its length.
double bubble_of(const ProcessGroupPtr& group, PipelineSchedule schedule, int chunks, std::int64_t micro_batches) {
  constexpr int kLayers = 8;
  const auto clock = std::make_shared<double>(0.0);
  nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) net.add<Timed>(clock);
  const PipelineParallel pipeline(net, pipeline_layers(net), {.group = group, .schedule = schedule, .chunks = chunks});
  TrainingStep step(net,
                    {.group = make_single_process_group(), .accumulate = micro_batches, .model_part = pipeline.part()});
  step({zeros({micro_batches, 1}), {}}, [](nn::Module& module, const data::Batch& part) {
    return (module.forward(part.x) * 1e-6).mean();  // times of gradients begin at nothing
  });
  const Tensor end = tensor({*clock});
  group->all_reduce(end, ReduceOp::max)->wait();
  const double busy = static_cast<double>(micro_batches) * kLayers / group->world_size() * (kForward + kBackward);
  return 1.0 - busy / end.item<double>();
}

// The steps that are run, not lists of what to run: each stage does what it can as soon as it can.
TEST(PipelineTime, StagesWaitAsLongAsTheoryHasThem) {
  for (const int stages : {2, 4})
    run_in(stages, [&](const ProcessGroupPtr& group) {
      for (const std::int64_t m : {4, 8})
        for (const auto& [schedule, chunks] : {std::pair{gpipe, 1}, std::pair{one_forward_one_backward, 1},
                                               std::pair{interleaved, 2}, std::pair{zero_bubble, 1}})
          EXPECT_NEAR(bubble_of(group, schedule, chunks, m),
                      (stages - 1.0) / static_cast<double>((schedule == zero_bubble ? 3 : 1) * chunks * m + stages - 1),
                      1e-6)
              << to_string(schedule) << " " << stages << " " << m;
    });
}

// --- what is sent while backward goes on ----------------------------------------------------------------------------

struct Watch final : Node {
  const char* name() const override { return "Watch"; }
  TensorList apply(TensorList grads) override {
    on_backward();
    return grads;
  }
  std::function<void()> on_backward;
};

struct Watched final : nn::Module {
  nn::Linear linear{this, "linear", kFeatures, kFeatures};
  std::function<void()> on_backward = [] {};
  Tensor forward(Tensor x) override {
    const Tensor y = linear(x), out = y.detach();
    if (Watch* const node = record<Watch>(out, {&y})) node->on_backward = on_backward;
    return out;
  }
};

// The gradients of a stage's later chunk are on their way to the other data ranks before the last backward of its
// first.
TEST(PipelineReduction, OfAChunkOverlapsWithTheBackwardOfThoseBefore) {
  for (const std::int64_t shards : {0, 4})
    run_in(4, [&](const ProcessGroupPtr& group) {
      const Mesh mesh(group, {.data = 2, .pipeline = 2});
      const auto weights_sent = [&] {
        return std::ranges::count_if(mesh.data()->records(), [](const OperationRecord& record) {
          return record.operation.label.text().find("linear.weight") != std::string_view::npos;
        });
      };
      nn::Sequential net;
      for (int i = 0; i < 4; ++i) net.add<Watched>();
      std::ptrdiff_t before_last = 0;
      dynamic_cast<Watched&>(net[0]).on_backward = [&] { before_last = weights_sent(); };
      const PipelineParallel pipeline(net, pipeline_layers(net),
                                      {.group = mesh.pipeline(), .schedule = interleaved, .chunks = 2});
      TrainingStep step(net, {.group = mesh.data(),
                              .logical_shards = shards,
                              .accumulate = shards > 0 ? 1 : 2,
                              .model_part = pipeline.part(),
                              .first_bucket_bytes = 4,
                              .bucket_bytes = 4});
      step(make_batch(8), [](nn::Module& module, const data::Batch& part) { return mean(module.forward(part.x)); });
      EXPECT_EQ(weights_sent(), 2);
      EXPECT_EQ(before_last, pipeline.stage() == 0 ? 1 : 0);
    });
}

// What the rows would show: another number of shards, other masks, another order of sums.
TEST(PipelineEquivalence, ATableOfOtherSumsFails) {
  const ProcessGroupPtr alone = make_single_process_group();
  const Trained shards = train_on_mesh({.shards = 4}, alone);
  EXPECT_GT(difference_of(train_on_mesh({.shards = 8}, alone), shards), 0.0);
  EXPECT_GT(difference_of(train_on_mesh({.shards = 4, .dropout = 0.1}, alone), shards), 1e-3);
  run_in(2, [&](const ProcessGroupPtr& group) {
    EXPECT_GT(difference_of(train_on_mesh({.accumulate = 4}, group, {.pipeline = 2}), shards), 0.0);
  });
}

// Its layers' parameters are those of modules of the pipeline's own, which must not wake them.
TEST(PipelineRecompute, FrozenParametersStayFrozen) {
  run_in(2, [](const ProcessGroupPtr& group) {
    Chain model(0.0);
    set_weights(model);
    std::vector<bool> trained;
    for (const Tensor& p : model.parameters()) {
      trained.push_back(trained.size() % 2 == 0);
      p.set_requires_grad(trained.back());
    }
    const std::vector<Tensor> all = model.parameters();
    const PipelineParallel pipeline(model, model.layers(), PipelineParallelOptions{.group = group, .recompute = true});
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(trained[i] || !all[i].requires_grad()) << "parameter " << i;
  });
}

// What the loss function is given for the model has no layers, and is none that lacks them.
TEST(PipelineWarnings, NothingIsSaidOfLayersOfOtherStages) {
  ::testing::internal::CaptureStderr();
  run_in(2, [](const ProcessGroupPtr& group) {
    Chain model;
    const Mesh mesh(group, {.pipeline = 2});
    const PipelineParallel pipeline(model, model.layers(), {.group = mesh.pipeline()});
    TrainingStep step(model, {.group = mesh.data(), .accumulate = 2, .model_part = pipeline.part()});
    for (int i = 0; i < 2; ++i)
      step(tokens_of(4, 1), [&](nn::Module& net, const data::Batch& part) {
        return cross_entropy(linear(net(part.x), model.table.weight), part.y.reshape({-1}));
      });
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace lockstep::distributed
