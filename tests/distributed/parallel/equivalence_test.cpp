// The table of docs/equivalence.md: weights after training on several ranks, feature by feature, against one process.
// The reference is a plain loop without anything of distributed/, unless the row says otherwise.

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <mutex>

#include "lockstep/data/partition.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/reduction/power_sgd.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

constexpr std::int64_t kSteps = 20;

struct Model : nn::Module {
  virtual Tensor loss(const data::Batch& part, std::int64_t step) = 0;
};

struct Plain : Model {
  nn::Linear fc1{this, "fc1", kFeatures, 24};
  nn::Linear fc2{this, "fc2", 24, 16};
  nn::Linear fc3{this, "fc3", 16, kClasses};
  Tensor loss(const data::Batch& part, std::int64_t) override {
    return cross_entropy(fc3(relu(fc2(relu(fc1(part.x))))), part.y);
  }
  Tensor forward(Tensor x) override { return fc3(relu(fc2(relu(fc1(x))))); }
};

/// A part takes one of two branches; a third is never taken.
struct Branched : Model {
  nn::Linear trunk{this, "trunk", kFeatures, 24};
  nn::Linear a{this, "a", 24, kClasses};
  nn::Linear b{this, "b", 24, kClasses};
  nn::Linear spare{this, "spare", 24, kClasses};
  Tensor loss(const data::Batch& part, std::int64_t step) override {
    nn::Linear& head = (part.y.to_vector<std::int64_t>().front() + step) % 2 == 0 ? a : b;
    return cross_entropy(head(relu(trunk(part.x))), part.y);
  }
};

struct Normed : Model {
  nn::Linear fc1{this, "fc1", kFeatures, 24};
  nn::BatchNorm1d norm{this, "norm", 24};
  nn::Linear fc2{this, "fc2", 24, kClasses};
  Tensor loss(const data::Batch& part, std::int64_t) override {
    return cross_entropy(fc2(relu(norm(fc1(part.x)))), part.y);
  }
};

template <typename M>
std::unique_ptr<Model> make() {
  return std::make_unique<M>();
}

/// How a rank's loop looks.
enum class Loop { step, join_step, join, no_sync };

struct Row {
  const char* feature;
  double bound;  ///< of the largest difference of any weight, after kSteps steps
  std::unique_ptr<Model> (*model)() = make<Plain>;
  Loop loop = Loop::step;
  std::int64_t accumulate = 1;
  bool static_graph = false;
  CommunicationHookPtr (*hook)() = nullptr;
  bool adam = false;
  bool zero = false;  ///< a ZeroRedundancyOptimizer
  int stage = 1;      ///< with it: of ZeRO
  double clip = 0.0;
  DType dtype = kFloat32;
  std::int64_t shards = 0;
  bool reference_has_options = false;  ///< the reference is one process with the same hook or shards
};

void PrintTo(const Row& row, std::ostream* out) {
  *out << row.feature;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Row& row, std::vector<Tensor> parameters) {
  if (row.adam)
    return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = 0.003, .weight_decay = 0.01});
  return std::make_unique<optim::SGD>(std::move(parameters),
                                      optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01});
}

/// The global batch of a step, and which samples of it each rank has.
struct Samples {
  data::Batch batch;
  std::vector<data::Range> ranges;
};

Samples samples_of(const Row& row, int world, std::int64_t step) {
  Samples samples;
  std::int64_t n = 29 - step % 2;
  if (row.loop == Loop::no_sync) n = 8 * world;
  if (row.loop == Loop::join || row.loop == Loop::join_step) {
    n = 0;
    for (int r = 0; r < world; ++r) {
      // The last rank alone makes all steps; others run out before.
      const bool ran_out = step >= kSteps - 3 * (world - 1 - r);
      const std::int64_t size = ran_out ? 0 : 2 + (5 + 3 * r + 2 * step) % 7;
      samples.ranges.push_back({n, n + size});
      n += size;
    }
  } else {
    for (int r = 0; r < world; ++r) samples.ranges.push_back(data::partition(n, world, r));
  }
  samples.batch = make_batch(n, static_cast<std::uint32_t>(step + 1));
  samples.batch.x = cast_values(samples.batch.x, row.dtype);
  return samples;
}

std::unique_ptr<Model> start(const Row& row) {
  auto model = row.model();
  set_weights(*model);
  model->to(row.dtype);
  return model;
}

void update(const Row& row, optim::Optimizer& optimizer) {
  if (row.clip > 0.0) {
    const double norm = optimizer.clip_grad_norm_(row.clip);
    EXPECT_GT(norm, row.clip) << "the row must clip";
  }
  optimizer.step();
}

Values reference(const Row& row, int world) {
  const auto model = start(row);
  const auto optimizer = make_optimizer(row, model->parameters());
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const Samples samples = samples_of(row, world, step);
    model->zero_grad(/*set_to_none=*/true);
    if (row.model == make<Branched>) {
      for (const data::Range& range : samples.ranges)
        mul(model->loss(part_of(samples.batch, range.begin, range.size()), step),
            static_cast<double>(range.size()) / static_cast<double>(samples.batch.size()))
            .backward();
    } else {
      model->loss(samples.batch, step).backward();
    }
    update(row, *optimizer);
  }
  return weights_of(*model);
}

Values train(const Row& row, const ProcessGroupPtr& group, int world, bool leave_out_reduction = false) {
  const auto model = start(row);
  if (row.model == make<Normed>) convert_sync_batch_norm(*model, group);
  const auto make = [&](std::vector<Tensor> parameters) { return make_optimizer(row, std::move(parameters)); };
  DistributedDataParallel ddp(*model, group,
                              {.logical_shards = row.shards,
                               .accumulate = row.accumulate,
                               .static_graph = row.static_graph,
                               .first_bucket_bytes = 512,
                               .bucket_bytes = 2048,
                               .zero = row.zero && row.stage > 1 ? row.stage : 0,
                               .hook = row.hook ? row.hook() : nullptr});
  std::unique_ptr<optim::Optimizer> optimizer;
  if (row.zero)
    optimizer = std::make_unique<ZeroRedundancyOptimizer>(make(model->parameters()), ddp.training_step(), 1000);
  else
    optimizer = make(model->parameters());
  const auto rank = static_cast<std::size_t>(group->rank());
  const auto own = [&](std::int64_t step) {
    const Samples samples = samples_of(row, world, step);
    const data::Range range = samples.ranges[rank];
    return data::Batch{rows(samples.batch.x, range.begin, range.size()),
                       rows(samples.batch.y, range.begin, range.size())};
  };
  const auto loss_at = [&](std::int64_t step) {
    return [&, step](const data::Batch& part) { return model->loss(part, step); };
  };
  switch (row.loop) {
    case Loop::step:
      for (std::int64_t step = 0; step < kSteps; ++step) {
        if (leave_out_reduction) {
          const auto guard = ddp.no_sync();
          ddp.step(samples_of(row, world, step).batch, loss_at(step));
        } else {
          ddp.step(samples_of(row, world, step).batch, loss_at(step));
        }
        update(row, *optimizer);
      }
      break;
    case Loop::join_step:
      for (std::int64_t step = 0; ddp.join_step(step < kSteps ? own(step) : data::Batch{}, loss_at(step)); ++step)
        update(row, *optimizer);
      break;
    case Loop::join:
      ddp.join(
          [&] {
            for (std::int64_t step = 0; step < kSteps; ++step) {
              const data::Batch mine = own(step);
              if (mine.size() == 0) break;
              optimizer->zero_grad();
              cross_entropy(ddp(mine.x), mine.y).backward();
              optimizer->step();
            }
          },
          [&] { optimizer->step(); });
      break;
    case Loop::no_sync:
      for (std::int64_t step = 0; step < kSteps; ++step) {
        const data::Batch mine = own(step);
        const std::int64_t half = mine.size() / 2;
        optimizer->zero_grad();
        {
          const auto guard = ddp.no_sync();
          mul(cross_entropy(ddp(rows(mine.x, 0, half)), rows(mine.y, 0, half)), 0.5).backward();
        }
        mul(cross_entropy(ddp(rows(mine.x, half, half)), rows(mine.y, half, half)), 0.5).backward();
        optimizer->step();
      }
      break;
  }
  const WholeParameters whole = ddp.training_step().whole_parameters();
  return weights_of(*model);
}

// Weights are up to 1, where 6e-8 is half a unit in the last place of float32.
const std::vector<Row>& table() {
  static const std::vector<Row> rows{
      {.feature = "plain", .bound = 1e-6},
      {.feature = "accumulation, by the step", .bound = 1e-6, .accumulate = 4},
      {.feature = "accumulation, no_sync()", .bound = 1e-6, .loop = Loop::no_sync},
      {.feature = "uneven inputs, join_step()", .bound = 1e-6, .loop = Loop::join_step},
      {.feature = "uneven inputs and accumulation", .bound = 1e-6, .loop = Loop::join_step, .accumulate = 3},
      {.feature = "uneven inputs, join()", .bound = 1e-6, .loop = Loop::join},
      {.feature = "unused parameters", .bound = 1e-6, .model = make<Branched>},
      {.feature = "SyncBatchNorm", .bound = 1e-6, .model = make<Normed>},
      {.feature = "SyncBatchNorm, uneven inputs", .bound = 1e-6, .model = make<Normed>, .loop = Loop::join_step},
      {.feature = "clipping by norm", .bound = 1e-6, .clip = 0.05},
      {.feature = "fp16 compression", .bound = 5e-4, .hook = fp16_compression},
      {.feature = "bf16 compression", .bound = 5e-3, .hook = bf16_compression},
      {.feature = "PowerSGD off", .bound = 1e-6, .hook = [] { return power_sgd({.start_iteration = 1000}); }},
      {.feature = "PowerSGD on, full rank",
       .bound = 1e-6,
       .hook = [] { return power_sgd({.rank = 100, .start_iteration = 0, .min_compression = 0.0}); }},
      {.feature = "PowerSGD on, rank 1, float64",
       .bound = 1e-12,
       .hook = [] { return power_sgd({.rank = 1, .start_iteration = 3, .min_compression = 1.0}); },
       .dtype = kFloat64,
       .reference_has_options = true},
      {.feature = "ZeRO-1 off, Adam", .bound = 1e-6, .adam = true},
      {.feature = "ZeRO-1 on, Adam", .bound = 1e-6, .adam = true, .zero = true},
      {.feature = "ZeRO-1 on, SGD", .bound = 1e-6, .zero = true},
      {.feature = "ZeRO-1, clipping, accumulation", .bound = 1e-6, .accumulate = 2, .zero = true, .clip = 0.05},
      {.feature = "ZeRO-2", .bound = 1e-6, .zero = true, .stage = 2},
      {.feature = "ZeRO-2, Adam, clipping, accumulation",
       .bound = 1e-6,
       .accumulate = 2,
       .adam = true,
       .zero = true,
       .stage = 2,
       .clip = 0.05},
      {.feature = "ZeRO-2, no_sync()", .bound = 1e-6, .loop = Loop::no_sync, .zero = true, .stage = 2},
      {.feature = "ZeRO-2, uneven inputs, join_step()",
       .bound = 1e-6,
       .loop = Loop::join_step,
       .zero = true,
       .stage = 2},
      {.feature = "ZeRO-2, unused parameters", .bound = 1e-6, .model = make<Branched>, .zero = true, .stage = 2},
      {.feature = "ZeRO-2, SyncBatchNorm", .bound = 1e-6, .model = make<Normed>, .zero = true, .stage = 2},
      {.feature = "ZeRO-3", .bound = 1e-6, .zero = true, .stage = 3},
      {.feature = "ZeRO-3, Adam, clipping, accumulation",
       .bound = 1e-6,
       .accumulate = 2,
       .adam = true,
       .zero = true,
       .stage = 3,
       .clip = 0.05},
      {.feature = "ZeRO-3, no_sync()", .bound = 1e-6, .loop = Loop::no_sync, .zero = true, .stage = 3},
      {.feature = "ZeRO-3, uneven inputs, join_step()",
       .bound = 1e-6,
       .loop = Loop::join_step,
       .zero = true,
       .stage = 3},
      {.feature = "ZeRO-3, unused parameters", .bound = 1e-6, .model = make<Branched>, .zero = true, .stage = 3},
      {.feature = "ZeRO-3, SyncBatchNorm", .bound = 1e-6, .model = make<Normed>, .zero = true, .stage = 3},
      {.feature = "lockstep", .bound = 0.0, .shards = 4, .reference_has_options = true},
      {.feature = "lockstep, unused parameters",
       .bound = 0.0,
       .model = make<Branched>,
       .shards = 4,
       .reference_has_options = true},
      {.feature = "lockstep, ZeRO-1, clipping",
       .bound = 0.0,
       .adam = true,
       .zero = true,
       .clip = 0.05,
       .shards = 4,
       .reference_has_options = true},
      {.feature = "lockstep, ZeRO-2, Adam, clipping",
       .bound = 0.0,
       .adam = true,
       .zero = true,
       .stage = 2,
       .clip = 0.05,
       .shards = 4,
       .reference_has_options = true},
      {.feature = "lockstep, ZeRO-2, unused parameters",
       .bound = 0.0,
       .model = make<Branched>,
       .zero = true,
       .stage = 2,
       .shards = 4,
       .reference_has_options = true},
      {.feature = "lockstep, ZeRO-3, Adam, clipping",
       .bound = 0.0,
       .adam = true,
       .zero = true,
       .stage = 3,
       .clip = 0.05,
       .shards = 4,
       .reference_has_options = true},
      {.feature = "lockstep, ZeRO-3, unused parameters",
       .bound = 0.0,
       .model = make<Branched>,
       .zero = true,
       .stage = 3,
       .shards = 4,
       .reference_has_options = true},
  };
  return rows;
}

class EquivalenceOf : public ::testing::TestWithParam<Row> {};

TEST_P(EquivalenceOf, WeightsAreThoseOfOneProcess) {
  const Row& row = GetParam();
  double largest = 0.0;
  std::mutex mutex;
  for (const int world : {1, 2, 3, 4}) {
    Row alone = row;
    alone.zero = false;
    const Values one = row.reference_has_options ? train(alone, make_single_process_group(), 1) : reference(row, world);
    run_on({world, Link::in_process}, [&](const ProcessGroupPtr& group) {
      const double difference = largest_difference(train(row, group, world), one);
      const std::lock_guard lock(mutex);
      EXPECT_LE(difference, row.bound) << world << " ranks";
      largest = std::max(largest, difference);
    });
  }
  RecordProperty("largest_difference", fmt::format("{:.1e}", largest));
  std::printf("| %s | %.0e | %.1e |\n", row.feature, row.bound, largest);
}

INSTANTIATE_TEST_SUITE_P(Features, EquivalenceOf, ::testing::ValuesIn(table()), [](const auto& info) {
  std::string name = info.param.feature;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

// Without the reduction, or with another optimizer, the table would show it.
TEST(Equivalence, ATableWithoutReductionFails) {
  const Row& plain = table().front();
  const Values one = reference(plain, 2);
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    EXPECT_GT(largest_difference(train(plain, group, 2, /*leave_out_reduction=*/true), one), 1e-2);
  });
  Row other = plain;
  other.adam = true;
  EXPECT_GT(largest_difference(reference(other, 2), one), 1e-2);
}

}  // namespace
}  // namespace lockstep::distributed
