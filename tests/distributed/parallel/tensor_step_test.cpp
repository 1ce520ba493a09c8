// Data and tensor parallelism together: TrainingStep along one dimension of a mesh, divided layers along the other.

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <mutex>
#include <vector>

#include "lockstep/core/random.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/distributed/pipeline_parallel/mesh_model.h"
#include "tests/distributed/parallel/tensor_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::TemporaryPath;

struct Training {
  std::int64_t shards = 0;  ///< V and T
  bool adam = true;
  double clip = 0.0;
  double dropout = 0.0;
  DType dtype = kFloat32;
  std::int64_t accumulate = 1;
  int zero = 0;
  Tokens tokens = Tokens::all;
  Sizes sizes = {};
  std::int64_t steps = kTensorSteps;
};

/// The whole weights after a training on a mesh; with `read` and `write` from one checkpoint to another.
Values train(const Training& training, const ProcessGroupPtr& group, const MeshSizes& sizes = {},
             const std::string& read = {}, const std::string& write = {}) {
  const Mesh mesh(group, sizes);
  Transformer model(training.dropout, training.sizes);
  set_weights(model);
  model.to(training.dtype);
  const TensorParallel parallel(model, plan_of(training.tokens),
                                options_of(training.tokens, mesh.tensor(), training.shards));
  TrainingStep step(model, {.group = mesh.data(),
                            .logical_shards = training.shards,
                            .accumulate = training.accumulate,
                            .first_bucket_bytes = 512,
                            .bucket_bytes = 4096,
                            .zero = training.zero >= 2 ? training.zero : 0});
  std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(training.adam, model.parameters());
  if (training.zero == 1) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), mesh.data());
  if (training.zero > 1) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
  const auto make_model = [&] { return std::make_unique<Transformer>(training.dropout, training.sizes); };
  const MeshModel whole(model, mesh, nullptr, &parallel, make_model, [&](const std::vector<Tensor>& parameters) {
    return make_optimizer(training.adam, parameters);
  });
  std::int64_t first = 0;
  if (!read.empty()) first = whole.load_checkpoint(read, *optimizer).step;
  for (std::int64_t i = first; i < training.steps; ++i) {
    const RandomKeyGuard key(static_cast<std::uint64_t>(i), 0);
    step(tokens_of(7 - i % 2, static_cast<std::uint32_t>(i + 1), training.sizes.vocabulary),
         [&](nn::Module&, const data::Batch& part) { return loss_of(parallel, model, part); });
    if (training.clip > 0.0) {
      EXPECT_GT(whole.clip_grad_norm(training.clip, *optimizer), training.clip) << "the row must clip";
    }
    optimizer->step();
  }
  if (!write.empty()) whole.save_checkpoint(write, *optimizer, {.step = training.steps});
  const WholeParameters parameters = step.whole_parameters();
  return values_of(parallel.full_state());
}

/// The same with nothing divided over `data`.
Training whole_of(Training training) {
  training.zero = 0;
  return training;
}

struct Row {
  const char* feature;
  double bound;
  Training training;
  std::vector<MeshSizes> meshes;
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.feature;
}

// A gradient that is 0 but for rounding, as that of the keys' bias, is as large a step as any for Adam: in float64, its
// rounding is small beside Adam's eps.
const std::vector<Row>& table() {
  const std::vector<MeshSizes> all{{.data = 2},
                                   {.data = 4},
                                   {.tensor = 2},
                                   {.tensor = 4},
                                   {.data = 2, .tensor = 2},
                                   {.data = 3, .tensor = 2},
                                   {.data = 2, .tensor = 4},
                                   {.data = 4, .tensor = 2}};
  static const std::vector<Row> rows{
      {"data 2 x tensor 2, AdamW, clipping, float64",
       1e-9,
       {.clip = 0.05, .dtype = kFloat64},
       {{.data = 2, .tensor = 2}}},
      {"data 2 x tensor 2, SGD, accumulation", 1e-6, {.adam = false, .accumulate = 2}, {{.data = 2, .tensor = 2}}},
      {"lockstep, 8 meshes of data and tensor, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .steps = lockstep_steps()},
       all},
      {"data 2 x tensor 2, ZeRO-3, AdamW, clipping, float64",
       1e-9,
       {.clip = 0.05, .dtype = kFloat64, .zero = 3},
       {{.data = 2, .tensor = 2}}},
      {"lockstep, ZeRO-1 on 3 meshes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .zero = 1, .steps = lockstep_steps()},
       {{.data = 2, .tensor = 2}, {.data = 3, .tensor = 2}, {.data = 2, .tensor = 4}}},
      {"lockstep, ZeRO-2 on 3 meshes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .zero = 2, .steps = lockstep_steps()},
       {{.data = 2, .tensor = 2}, {.data = 3, .tensor = 2}, {.data = 2, .tensor = 4}}},
      {"lockstep, ZeRO-3 on 4 meshes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .zero = 3, .steps = lockstep_steps()},
       {{.data = 2, .tensor = 2}, {.data = 3, .tensor = 2}, {.data = 2, .tensor = 4}, {.tensor = 4}}},
      {"lockstep, sequence parallel on 8 meshes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .tokens = Tokens::own_between_layers, .steps = lockstep_steps()},
       all},
      {"lockstep, sequence parallel, ZeRO-3 on 4 meshes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4,
        .clip = 0.05,
        .dropout = 0.1,
        .zero = 3,
        .tokens = Tokens::own_between_layers,
        .steps = lockstep_steps()},
       {{.data = 2, .tensor = 2}, {.data = 3, .tensor = 2}, {.data = 2, .tensor = 4}, {.tensor = 4}}},
      {"lockstep, context parallel on 8 meshes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .tokens = Tokens::own, .steps = lockstep_steps()},
       all},
      {"lockstep, context parallel, ZeRO-3 on 4 meshes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .zero = 3, .tokens = Tokens::own, .steps = lockstep_steps()},
       {{.data = 2, .tensor = 2}, {.data = 3, .tensor = 2}, {.data = 2, .tensor = 4}, {.tensor = 4}}},
      {"lockstep, uneven sizes, ZeRO-3 on 3 meshes, AdamW, clipping, dropout",
       0.0,
       {.shards = 4, .clip = 0.05, .dropout = 0.1, .zero = 3, .sizes = kUneven, .steps = lockstep_steps()},
       {{.data = 3, .tensor = 2}, {.data = 2, .tensor = 4}, {.tensor = 4}}},
  };
  return rows;
}

class MeshEquivalenceOf : public ::testing::TestWithParam<Row> {};

TEST_P(MeshEquivalenceOf, WeightsAreThoseOfOneProcess) {
  const Row& row = GetParam();
  const Values one = row.training.shards > 0 ? train(whole_of(row.training), make_single_process_group())
                                             : train_alone(row.training.adam, row.training.clip, row.training.dtype);
  double largest = 0.0;
  std::mutex mutex;
  for (const MeshSizes& sizes : row.meshes)
    run_in(sizes.data * sizes.tensor, [&](const ProcessGroupPtr& group) {
      const double difference = largest_difference(train(row.training, group, sizes), one);
      const std::lock_guard lock(mutex);
      EXPECT_LE(difference, row.bound) << to_string(sizes);
      largest = std::max(largest, difference);
    });
  RecordProperty("largest_difference", fmt::format("{:.1e}", largest));
  std::printf("| %s | %.0e | %.1e |\n", row.feature, row.bound, largest);
}

INSTANTIATE_TEST_SUITE_P(Features, MeshEquivalenceOf, ::testing::ValuesIn(table()), [](const auto& info) {
  std::string name = info.param.feature;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

// Parts of unequal sizes, written and read on other meshes than they are trained on.
TEST(MeshCheckpoints, KnowNothingOfUnevenParts) {
  struct Case {
    MeshSizes from, to;
    int zero = 0;
  };
  const auto training = [](std::int64_t steps, int zero) {
    return Training{.shards = 4, .clip = 0.05, .dropout = 0.1, .zero = zero, .sizes = kUneven, .steps = steps};
  };
  const Values one = train(training(4, 0), make_single_process_group());
  const std::vector<Case> cases{{{.tensor = 4}, {.data = 2, .tensor = 2}, 0},
                                {{.data = 2, .tensor = 2}, {}, 1},
                                {{.data = 2, .tensor = 2}, {.tensor = 4}, 3}};
  for (const Case& each : cases) {
    const TemporaryPath file;
    run_in(each.from.data * each.from.tensor,
           [&](const ProcessGroupPtr& group) { train(training(2, each.zero), group, each.from, {}, file.text()); });
    run_in(each.to.data * each.to.tensor, [&](const ProcessGroupPtr& group) {
      EXPECT_EQ(largest_difference(train(training(4, 0), group, each.to, file.text()), one), 0.0)
          << to_string(each.from) << " to " << to_string(each.to);
    });
  }
}

}  // namespace
}  // namespace lockstep::distributed
