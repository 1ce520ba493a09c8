// Models that are divided over ranks and not trained by the step that reads them: a teacher, and a critic.

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "tests/distributed/parallel/sharding_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

bool is_dropped(const nn::Module& module) {
  for (const Tensor& parameter : module.parameters())
    if (!parameter.storage()->is_pending()) return false;
  return true;
}

/// Weights of a student after some steps towards what a frozen teacher says, which is read without gradients or, with
/// `through`, also from the student's own output.
Values distil(const ProcessGroupPtr& group, int zero, bool through, int accumulate) {
  Tower student, teacher;
  set_tower(student);
  set_tower(teacher);
  for (nn::Module* each : {static_cast<nn::Module*>(&student), static_cast<nn::Module*>(&teacher)})
    for (Block& block : dynamic_cast<Tower&>(*each).blocks) block.drop.eval();
  teacher.set_requires_grad(false);
  TrainingStep step(student, {.group = group, .accumulate = accumulate, .zero = zero});
  std::optional<DistributedDataParallel> divided;
  if (zero == 3) divided.emplace(teacher, group, TrainingStepOptions{.zero = 3});
  std::unique_ptr<optim::Optimizer> optimizer =
      std::make_unique<optim::SGD>(student.parameters(), optim::SGDOptions{.lr = 0.1});
  if (zero == 3) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
  const auto teach = [&](const Tensor& x) { return divided ? (*divided)(x) : teacher.forward(x); };
  for (std::uint32_t i = 0; i < 3; ++i) {
    step(make_batch(8, i), [&](nn::Module& net, const data::Batch& part) {
      const Tensor out = net.forward(part.x);
      if (through) return teach(cat({out, out}, 1)).square().mean();
      const NoGradGuard values_only;
      const Tensor wanted = teach(part.x * 0.5);
      const EnableGradGuard recording;
      return (out - wanted).square().mean();
    });
    EXPECT_TRUE(zero != 3 || is_dropped(teacher)) << "nothing of it stays";
    optimizer->step();
  }
  const WholeParameters whole = step.whole_parameters();
  return weights_of(student);
}

TEST(ReadAlone, AFrozenModelMayBeDivided) {
  for (const bool through : {false, true})
    for (const int accumulate : {1, 2})
      run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
        EXPECT_LE(largest_difference(distil(group, 3, through, accumulate), distil(group, 0, through, accumulate)),
                  1e-6)
            << through << accumulate;
      });
}

// Without a guard nothing is recorded either, where nothing needs a gradient.
TEST(ReadAlone, NothingStaysOfWhatIsNotRecorded) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Tower student, teacher;
    teacher.set_requires_grad(false);
    TrainingStep step(student, {.group = group});
    DistributedDataParallel divided(teacher, group, {.zero = 3});
    for (std::uint32_t i = 0; i < 3; ++i)
      step(make_batch(4, i), [&](nn::Module& net, const data::Batch& part) {
        const Tensor out = net.forward(part.x);
        const std::int64_t number = group->step();
        const Tensor wanted = divided(part.x);
        EXPECT_TRUE(is_dropped(teacher));
        EXPECT_EQ(group->step(), number) << "the step is the student's";
        return (out - wanted).square().mean();
      });
    EXPECT_NE(error_of([&] { teacher.shift.to_vector<double>(); }).find("not gathered now"), std::string::npos);
  });
}

// Ranks that wait for reads of others would do so until the deadline.
TEST(ReadAlone, StepsWithDifferentNumbersOfReadsAreRefused) {
  struct Case {
    int world;
    std::int64_t shards, accumulate, samples;
    bool refused;
  };
  for (const Case& each :
       {Case{3, 4, 1, 8, true}, {3, 0, 4, 10, true}, {2, 0, 1, 1, true}, {2, 4, 1, 8, false}, {3, 0, 2, 8, false}})
    run_on({each.world, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Tower student, teacher;
      teacher.set_requires_grad(false);
      TrainingStep step(student, {.group = group, .logical_shards = each.shards, .accumulate = each.accumulate});
      DistributedDataParallel divided(teacher, group, {.zero = 3});
      std::string error;
      step(make_batch(each.samples), [&](nn::Module& net, const data::Batch& part) {
        const Tensor out = net.forward(part.x);
        try {
          divided(part.x);
        } catch (const Error& thrown) {
          error = thrown.what();
        }
        return out.square().mean();
      });
      if (each.refused && group->rank() == 0) {
        EXPECT_NE(error.find("equally often"), std::string::npos) << each.samples;
      }
      EXPECT_TRUE(each.refused || error.empty()) << error;
    });
}

TEST(ReadAlone, WhoReadsItOtherwiseIsToldHow) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower student, teacher;
    teacher.set_requires_grad(false);
    TrainingStep step(student, {.group = group});
    const DistributedDataParallel divided(teacher, group, {.zero = 3});
    const std::string error = error_of([&] {
      step(make_batch(4), [&](nn::Module& net, const data::Batch& part) {
        return (net.forward(part.x) - teacher.forward(part.x)).square().mean();
      });
    });
    EXPECT_NE(error.find("in the step of another model, call this one through its DistributedDataParallel"),
              std::string::npos)
        << error;
  });
  Tower frozen;
  frozen.set_requires_grad(false);
  EXPECT_NE(error_of([&] {
              TrainingStep(frozen, {.group = make_single_process_group(), .zero = 2});
            }).find("unless it is divided over ranks (zero = 3)"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
