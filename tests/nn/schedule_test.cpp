#include "lockstep/nn/optim/schedule.h"

#include <gtest/gtest.h>

#include <limits>

#include "lockstep/nn/optim/adam.h"
#include "lockstep/nn/optim/rmsprop.h"
#include "lockstep/nn/optim/sgd.h"
#include "lockstep/nn/optim/whole_tensors.h"
#include "tests/support/golden.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::testing;

struct Case {
  const char* name;
  Schedule schedule;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

class RecordedSchedule : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    PyTorch, RecordedSchedule,
    ::testing::Values(
        Case{"step_lr", StepLR{.lr = 0.1, .step_size = 4, .gamma = 0.5}},
        Case{"multi_step_lr", MultiStepLR{.lr = 0.1, .milestones = {3, 8, 15}, .gamma = 0.3}},
        Case{"exponential_lr", ExponentialLR{.lr = 0.1, .gamma = 0.9}},
        Case{"cosine_annealing", CosineAnnealing{.lr = 0.1, .period = 15}},
        Case{"cosine_annealing_min", CosineAnnealing{.lr = 0.1, .period = 20, .min_lr = 0.01}},
        Case{"warm_restarts", CosineAnnealingWarmRestarts{.lr = 0.1, .period = 5, .min_lr = 0.01}},
        Case{"warm_restarts_longer", CosineAnnealingWarmRestarts{.lr = 0.1, .period = 3, .factor = 2}},
        Case{"polynomial_lr", PolynomialLR{.lr = 0.1, .total_steps = 15, .power = 2.5}},
        Case{"cyclic_lr", CyclicLR{.lr = 0.1, .max_lr = 0.5, .steps_up = 3, .steps_down = 5}},
        Case{"cyclic_lr_halved", CyclicLR{.lr = 0.1, .max_lr = 0.5, .steps_up = 4, .mode = CycleMode::triangular2}},
        Case{"cyclic_lr_exp_range",
             CyclicLR{.lr = 0.1, .max_lr = 0.5, .steps_up = 4, .mode = CycleMode::exp_range, .gamma = 0.9}},
        Case{"sequential_lr", SequentialLR{.schedules = {ExponentialLR{.lr = 0.1, .gamma = 0.5},
                                                         StepLR{.lr = 0.1, .step_size = 4, .gamma = 0.5},
                                                         CosineAnnealing{.lr = 0.1, .period = 6}},
                                           .milestones = {4, 13}}},
        Case{"one_cycle", OneCycle{.max_lr = 1.0, .total_steps = 20}},
        Case{"one_cycle_linear", OneCycle{.max_lr = 0.5,
                                          .total_steps = 20,
                                          .pct_start = 0.25,
                                          .div_factor = 10,
                                          .final_div_factor = 100,
                                          .linear = true}},
        Case{"warm_up", LinearWarmup{.steps = 8, .next = [](std::int64_t) { return 0.1; }, .start_factor = 0.1}}),
    [](const auto& info) { return info.param.name; });

TEST_P(RecordedSchedule, MatchesPyTorch) {
  const std::vector<double> recorded = GoldenFile::open("optim").get(GetParam().name, "lr").to_vector<double>();
  ASSERT_EQ(recorded.size(), 20u);
  for (std::size_t i = 0; i < recorded.size(); ++i)
    EXPECT_NEAR(GetParam().schedule(static_cast<std::int64_t>(i)), recorded[i], 1e-12) << "step " << i;
}

TEST(Schedule, OneCycleInThreePhases) {
  // total 13, pct 0.25: turns at steps 2.25, 4.5 and 12.
  const OneCycle cycle{.max_lr = 1.0, .total_steps = 13, .pct_start = 0.25, .three_phase = true, .linear = true};
  EXPECT_DOUBLE_EQ(cycle(0), 0.04);
  EXPECT_NEAR(cycle(2), 0.04 + 0.96 * 2 / 2.25, 1e-12);
  EXPECT_NEAR(cycle(4), 1.0 - 0.96 * 1.75 / 2.25, 1e-12);
  EXPECT_NEAR(cycle(12), 0.04 / 1e4, 1e-15);
  EXPECT_EQ(cycle(500), cycle(12)) << "stays at the end";
}

TEST(Schedule, OneCycleMomentumRunsTheOtherWay) {
  const OneCycle cycle{.max_lr = 1.0, .total_steps = 20};
  EXPECT_DOUBLE_EQ(cycle.momentum(0), 0.95);
  EXPECT_DOUBLE_EQ(cycle.momentum(5), 0.85);
  EXPECT_DOUBLE_EQ(cycle.momentum(19), 0.95);
}

TEST(Schedule, WarmupGoesOnWithTheNextFromItsStart) {
  const LinearWarmup warmup{.steps = 4, .next = StepLR{.lr = 1.0, .step_size = 2, .gamma = 0.5}};
  EXPECT_EQ(warmup(0), 0.0);
  EXPECT_EQ(warmup(1), 0.25);
  EXPECT_EQ(warmup(4), 1.0);
  EXPECT_EQ(warmup(6), 0.5);
}

TEST(Schedule, SchedulerDrivesTheOptimizer) {
  const Tensor p = make_leaf({1});
  SGD sgd({p}, {.lr = 9.0, .momentum = 0.5});
  LRScheduler scheduler(sgd, OneCycle{.max_lr = 1.0, .total_steps = 20});
  EXPECT_NEAR(sgd.lr(), 0.04, 1e-15);
  EXPECT_DOUBLE_EQ(sgd.momentum(), 0.95);
  for (int i = 0; i < 5; ++i) scheduler.step();
  EXPECT_EQ(scheduler.position(), 5);
  EXPECT_DOUBLE_EQ(sgd.lr(), 1.0);
  EXPECT_DOUBLE_EQ(sgd.momentum(), 0.85);
  scheduler.set_position(0);
  EXPECT_NEAR(sgd.lr(), 0.04, 1e-15);

  Adam adam({p});
  const LRScheduler fixed(adam, OneCycle{.max_lr = 1.0, .total_steps = 20, .cycle_momentum = false});
  EXPECT_EQ(adam.momentum(), 0.9);
}

TEST(Schedule, WithoutARateTakesTheOptimizers) {
  const Tensor a = make_leaf({1}), b = make_leaf({1});
  const auto rates = [&](Schedule schedule, int steps) {
    Adam adam({{{a}, {.lr = 1e-3}}, {{b}, {.lr = 0.5}}});
    LRScheduler scheduler(adam, std::move(schedule));
    for (int i = 0; i < steps; ++i) scheduler.step();
    return scheduler.get_last_lr();
  };
  const std::vector<double> given{1e-3, 0.5}, half{0.5e-3, 0.25};
  EXPECT_EQ(rates(StepLR{.step_size = 3, .gamma = 0.5}, 0), given);
  EXPECT_EQ(rates(StepLR{.step_size = 3, .gamma = 0.5}, 3), half);
  EXPECT_EQ(rates(MultiStepLR{.milestones = {2}, .gamma = 0.5}, 2), half);
  EXPECT_EQ(rates(ExponentialLR{.gamma = 0.5}, 1), half);
  EXPECT_EQ(rates(CosineAnnealing{.period = 10}, 0), given);
  EXPECT_EQ(rates(CosineAnnealingWarmRestarts{.period = 4}, 4), given);
  EXPECT_EQ(rates(PolynomialLR{.total_steps = 4}, 2), half);
  EXPECT_EQ(rates(LinearWarmup{.steps = 2, .next = CosineAnnealing{.period = 10}}, 1), half);
  EXPECT_EQ(rates(SequentialLR{{ExponentialLR{}, StepLR{.step_size = 5}}, {1}}, 2), given);

  SGD sgd({a}, {.lr = 0.25});
  const LRScheduler own(sgd, StepLR{.lr = 2.0});
  EXPECT_EQ(sgd.lr(), 2.0) << "a rate that was given holds";
  const std::string error = error_of([] { CosineAnnealing{.period = 10}(1); });
  EXPECT_NE(error.find("[CosineAnnealing] has no rate; set .lr"), std::string::npos) << error;
  const std::string mixed = error_of([&] { rates(SequentialLR{{StepLR{}, StepLR{.lr = 1.0}}, {1}}, 0); });
  EXPECT_NE(mixed.find("and one schedule was given"), std::string::npos) << mixed;
}

TEST(Schedule, OneCyclesOfSeveralGroupsCycleTheirMomentum) {
  const Tensor a = make_leaf({1}), b = make_leaf({1}), c = make_leaf({1});
  Adam adam({{{a}, {}}, {{b}, {}}, {{c}, {.beta1 = 0.7}}});
  LRScheduler scheduler(
      adam, {OneCycle{.max_lr = 1.0, .total_steps = 20},
             OneCycle{.max_lr = 2.0, .total_steps = 20, .base_momentum = 0.8, .max_momentum = 0.9}, StepLR{.lr = 0.5}});
  EXPECT_DOUBLE_EQ(adam.momentum(0), 0.95);
  EXPECT_DOUBLE_EQ(adam.momentum(1), 0.9);
  for (int i = 0; i < 5; ++i) scheduler.step();
  EXPECT_DOUBLE_EQ(adam.lr(0), 1.0);
  EXPECT_DOUBLE_EQ(adam.lr(1), 2.0);
  EXPECT_DOUBLE_EQ(adam.momentum(0), 0.85);
  EXPECT_DOUBLE_EQ(adam.momentum(1), 0.8);
  EXPECT_DOUBLE_EQ(adam.momentum(2), 0.7) << "that of another schedule stays";

  Adam fixed({{{a}, {}}, {{b}, {}}});
  const OneCycle cycle{.max_lr = 1.0, .total_steps = 20};
  OneCycle rate_alone = cycle;
  rate_alone.cycle_momentum = false;
  const LRScheduler half(fixed, {rate_alone, cycle});
  EXPECT_DOUBLE_EQ(fixed.momentum(0), 0.9);
  EXPECT_DOUBLE_EQ(fixed.momentum(1), 0.95);
  const LRScheduler given(fixed, {cycle, cycle}, [](std::int64_t) { return 0.5; });
  EXPECT_DOUBLE_EQ(fixed.momentum(0), 0.5) << "a schedule of the momentum goes before";
  EXPECT_DOUBLE_EQ(fixed.momentum(1), 0.5);
}

TEST(Schedule, PlateauLowersTheRateAfterPatience) {
  const Tensor p = make_leaf({1});
  SGD sgd({p}, {.lr = 1.0});
  ReduceLROnPlateau plateau(sgd, {.factor = 0.5, .patience = 2, .cooldown = 1});
  std::vector<double> rates;  // as torch 2.15 gives them for these losses
  for (const double loss : {1.0, 0.9, 0.95, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.6, 0.6, 0.6}) {
    plateau.step(loss);
    rates.push_back(sgd.lr());
  }
  EXPECT_EQ(rates, (std::vector<double>{1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125}));
  EXPECT_NE(error_of([&] { ReduceLROnPlateau(sgd, {.factor = 1.0}); }).find("factor"), std::string::npos);
}

TEST(Schedule, RefusesNonsense) {
  const Tensor p = make_leaf({1});
  SGD sgd({p});
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(error_of([] { StepLR{.step_size = 0}(1); }), "[StepLR] expected step_size >= 1, found 0");
  contains(error_of([] { CosineAnnealing{.period = 0}(1); }), "[CosineAnnealing] expected period >= 1");
  contains(error_of([] { OneCycle{.total_steps = 0}(1); }), "[OneCycle] expected total_steps >= 1");
  contains(error_of([] { LinearWarmup{.steps = 2}(1); }), "[LinearWarmup] has no schedule");
  contains(error_of([&] { LRScheduler(sgd, Schedule()); }), "[LRScheduler] has no schedule");
  contains(error_of([&] { LRScheduler(sgd, StepLR{}).set_position(-1); }), "position >= 0");
  contains(error_of([&] { LRScheduler(sgd, OneCycle{.total_steps = 20}); }),
           "of parameter group 0 cannot be switched on or off later");
  EXPECT_EQ(sgd.lr(), SGD({p}).lr()) << "a schedule that was refused has set nothing";
}

TEST(Schedule, OneCycleLeavesOptimizersWithoutMomentumAlone) {
  const Tensor p = make_leaf({2, 2});
  const auto check = [](auto&& optimizer) {
    const double before = optimizer.momentum();
    const OneCycle cycle{.total_steps = 20};
    EXPECT_NE(error_of([&] { LRScheduler(optimizer, cycle); }).find("cycle_momentum"), std::string::npos);
    EXPECT_EQ(optimizer.momentum(), before);
    OneCycle rate_alone = cycle;
    rate_alone.cycle_momentum = false;
    LRScheduler(optimizer, rate_alone).step();
    EXPECT_EQ(optimizer.momentum(), before);
  };
  check(Adagrad({p}));
  check(Adadelta({p}));
  check(ASGD({p}));
  check(Rprop({p}));
  check(Adafactor({p}));
  RMSprop rmsprop({p}, {.momentum = 0.9});
  LRScheduler(rmsprop, OneCycle{.total_steps = 20}).step();
  EXPECT_NE(rmsprop.momentum(), 0.9);
}

TEST(Schedule, PlateauOfMeasuresThatNeverWereFinite) {
  SGD sgd({make_leaf({1})}, {.lr = 0.1});
  ReduceLROnPlateau plateau(sgd, {.factor = 0.5, .patience = 2});
  for (int i = 0; i < 3; ++i) plateau.step(std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(sgd.lr(), 0.05);
}

TEST(Schedule, PlateauOfNegativeMeasures) {
  const auto rates = [](bool larger, const std::vector<double>& measures) {
    SGD sgd({make_leaf({1})}, {.lr = 1.0});
    ReduceLROnPlateau plateau(sgd, {.larger_is_better = larger, .factor = 0.5, .patience = 0, .threshold = 0.1});
    std::vector<double> out;
    for (const double measure : measures) {
      plateau.step(measure);
      out.push_back(sgd.lr());
    }
    return out;
  };
  EXPECT_EQ(rates(false, {-1.0, -0.95, -0.95, -0.8}), (std::vector<double>{1, 1, 1, 0.5}));
  EXPECT_EQ(rates(true, {-1.0, -1.05, -1.05, -1.2}), (std::vector<double>{1, 1, 1, 0.5}));
  EXPECT_EQ(rates(false, {1.0, 0.95, 0.85}), (std::vector<double>{1, 0.5, 0.5}));
}

}  // namespace
}  // namespace lockstep::optim
