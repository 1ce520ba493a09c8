// Parameter groups of optimizers: each is updated as by an optimizer of its own.

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "lockstep/nn/optim/optim.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::testing;
using Parameters = std::vector<Tensor>;

// Four parameters with the values of every other call.
Parameters four() {
  return {make_leaf({3, 2}, 1, kFloat32), make_leaf({5}, 2, kFloat32), make_leaf({4, 4}, 3, kFloat32),
          make_leaf({1}, 4, kBFloat16)};
}

void set_gradients(const Parameters& parameters, std::uint32_t step) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i].set_grad(
        make_input(parameters[i].sizes(), 10 * step + static_cast<std::uint32_t>(i), parameters[i].dtype()));
}

std::vector<std::vector<double>> values_of(const Parameters& parameters) {
  std::vector<std::vector<double>> values;
  for (const Tensor& p : parameters) values.push_back(p.to_vector<double>());
  return values;
}

template <typename O, typename Options>
void expect_bits_of_an_optimizer_each(const Options& first, const Options& second) {
  const Parameters a = four(), b = four();
  O grouped({{{a[0], a[3]}, first}, {{a[1], a[2]}, second}});
  O one({b[0], b[3]}, first), two({b[1], b[2]}, second);
  for (std::uint32_t step = 1; step <= 3; ++step) {
    set_gradients(a, step);
    set_gradients(b, step);
    grouped.step();
    one.step();
    two.step();
    EXPECT_EQ(values_of(a), values_of(b)) << "step " << step;
  }
}

TEST(ParamGroups, AreUpdatedAsByAnOptimizerEach) {
  expect_bits_of_an_optimizer_each<SGD, SGDOptions>({.lr = 0.1}, {.lr = 0.2, .weight_decay = 0.1});
  expect_bits_of_an_optimizer_each<SGD, SGDOptions>({.lr = 0.1}, {.lr = 0.1, .momentum = 0.9});
  expect_bits_of_an_optimizer_each<SGD, SGDOptions>({.lr = 0.1, .momentum = 0.9, .nesterov = true},
                                                    {.lr = 0.1, .momentum = 0.8, .dampening = 0.5});
  expect_bits_of_an_optimizer_each<Adam, AdamOptions>({.lr = 0.1, .beta2 = 0.9}, {.lr = 0.01, .amsgrad = true});
  expect_bits_of_an_optimizer_each<AdamW, AdamWOptions>({.weight_decay = 0.1}, {.beta1 = 0.8, .weight_decay = 0.0});
}

// Neighbours in memory would be one run.
TEST(ParamGroups, OfNeighboursInMemoryStayApart) {
  const Tensor memory = ones({4}), gradients = ones({4});
  const Parameters halves{memory.as_strided({2}, {1}, 0), memory.as_strided({2}, {1}, 2)};
  for (std::size_t i = 0; i < 2; ++i) {
    halves[i].set_requires_grad(true);
    halves[i].set_grad(gradients.as_strided({2}, {1}, static_cast<std::int64_t>(2 * i)));
  }
  SGD optimizer({{{halves[0]}, {.lr = 0.25}}, {{halves[1]}, {.lr = 0.5}}});
  optimizer.step();
  EXPECT_EQ(memory.to_vector<double>(), (std::vector<double>{0.75, 0.75, 0.5, 0.5}));
}

TEST(ParamGroups, OptionsMayChangeBetweenSteps) {
  const Parameters p = four();
  AdamW optimizer({{{p[0]}, {.lr = 0.1}}, {{p[1], p[2]}, {.lr = 0.2}}});
  for (auto& group : optimizer.param_groups()) group.options.lr *= 0.5;
  EXPECT_EQ(optimizer.lr(), 0.05);
  EXPECT_EQ(optimizer.lr(1), 0.1);
  optimizer.param_groups()[1].options.weight_decay = 0.5;
  EXPECT_EQ(optimizer.param_groups()[1].options.weight_decay, 0.5);
  EXPECT_EQ(optimizer.param_groups()[1].params.size(), 2u);
  optimizer.set_lr(0.3, 1);
  EXPECT_EQ(optimizer.lr(0), 0.05);
  EXPECT_EQ(optimizer.lr(1), 0.3);
  optimizer.set_lr(1.0);
  optimizer.set_momentum(0.25);
  for (const std::size_t group : {0, 1}) {
    EXPECT_EQ(optimizer.lr(group), 1.0);
    EXPECT_EQ(optimizer.momentum(group), 0.25);
  }
}

TEST(ParamGroups, MayBeAddedAfterSteps) {
  const Parameters a = four(), b = four();
  Adam grown({a[0], a[3]}, {.lr = 0.1}), old({b[0], b[3]}, {.lr = 0.1});
  for (std::uint32_t step = 1; step <= 2; ++step) {
    set_gradients(a, step);
    set_gradients(b, step);
    grown.step();
    old.step();
  }
  grown.add_param_group({{a[1], a[2]}, {.lr = 0.2}});
  Adam added({b[1], b[2]}, {.lr = 0.2});
  for (std::uint32_t step = 3; step <= 4; ++step) {
    set_gradients(a, step);
    set_gradients(b, step);
    grown.step();
    old.step();
    added.step();
  }
  EXPECT_EQ(values_of(a), values_of(b));
  EXPECT_EQ(grown.num_param_groups(), 2u);
  EXPECT_EQ(grown.parameters().size(), 4u);
}

TEST(ParamGroups, GoOnFromTheirSavedState) {
  const auto make = [](const Parameters& p) {
    using Groups = std::vector<ParamGroup<SGDOptions>>;
    return std::make_unique<SGD>(Groups{{{p[0]}, {.lr = 0.1}},
                                        {{p[3], p[1]}, {.lr = 0.2, .momentum = 0.9}},
                                        {{}, {.lr = 0.4}},
                                        {{p[2]}, {.lr = 0.3, .momentum = 0.5, .nesterov = true}}});
  };
  const Parameters a = four(), b = four();
  const auto first = make(a), second = make(b);
  for (std::uint32_t step = 1; step <= 2; ++step) {
    set_gradients(a, step);
    first->step();
  }
  first->set_lr(0.05, 3);
  first->set_momentum(0.0, 1);  // its buffer stays
  for (std::size_t i = 0; i < a.size(); ++i) copy_values(a[i], b[i]);
  second->load_state(first->state());
  EXPECT_EQ(second->lr(1), 0.2);
  EXPECT_EQ(second->lr(2), 0.4);
  EXPECT_EQ(second->lr(3), 0.05);
  EXPECT_EQ(second->momentum(1), 0.0);
  set_gradients(a, 3);
  set_gradients(b, 3);
  first->step();
  second->step();
  EXPECT_EQ(values_of(a), values_of(b));
}

TEST(ParamGroups, AStateOfOtherGroupsIsRefusedAndChangesNothing) {
  const Parameters p = four();
  const auto refuses = [](Optimizer& optimizer, const OptimizerState& state, const char* text) {
    const std::string error = error_of([&] { optimizer.load_state(state); });
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  SGD two({{{p[0], p[1]}, {.lr = 0.1}}, {{p[2], p[3]}, {.lr = 0.2, .weight_decay = 0.1}}});
  SGD one({p[0], p[1], p[2], p[3]}, {.lr = 0.7});
  SGD divided_otherwise({{{p[0]}, {.lr = 0.7}}, {{p[1], p[2], p[3]}, {.lr = 0.7, .weight_decay = 0.1}}});
  SGD of_other_settings({{{p[0], p[1]}, {.lr = 0.7}}, {{p[2], p[3]}, {.lr = 0.7}}});
  refuses(one, two.state(), "it has several parameter groups, this optimizer one");
  refuses(two, one.state(), "missing param_groups; missing param_groups.1.lr");
  refuses(divided_otherwise, two.state(), "its parameters are in other groups than this optimizer's");
  refuses(of_other_settings, two.state(),
          "saved with param_groups.1.weight_decay 0.1, this optimizer was constructed with 0");
  OptimizerState damaged = two.state();
  damaged.scalars["param_groups.1.momentum"] = -1;
  of_other_settings.param_groups()[1].options.weight_decay = 0.1;
  refuses(of_other_settings, damaged, "momentum >= 0");
  for (SGD* optimizer : {&one, &divided_otherwise, &of_other_settings})
    for (std::size_t group = 0; group < optimizer->num_param_groups(); ++group) EXPECT_EQ(optimizer->lr(group), 0.7);
}

TEST(ParamGroups, OfASchedule) {
  const Parameters p = four();
  SGD optimizer({{{p[0]}, {.lr = 1.0}}, {{p[1]}, {.lr = 0.1}}});
  const std::string error = error_of([&] { LRScheduler(optimizer, StepLR{.lr = 1.0}); });
  EXPECT_NE(error.find("groups 0 and 1 have learning rates 1 and 0.1, and one schedule was given"), std::string::npos)
      << error;
  LRScheduler each(optimizer, {StepLR{.lr = 1.0, .gamma = 0.5}, [](std::int64_t) { return 0.1; }});
  each.step();
  EXPECT_EQ(optimizer.lr(0), 0.5);
  EXPECT_EQ(optimizer.lr(1), 0.1);
  EXPECT_NE(error_of([&] { LRScheduler(optimizer, std::vector<Schedule>(3, StepLR{})); }).find("expected 2 schedules"),
            std::string::npos);
  optimizer.set_lr(0.5);
  LRScheduler both(optimizer, StepLR{.lr = 0.5, .gamma = 0.5});
  both.step();
  EXPECT_EQ(optimizer.lr(0), 0.25);
  EXPECT_EQ(optimizer.lr(1), 0.25);
}

TEST(ParamGroups, AreClippedAndUnscaledTogether) {
  const Tensor a = make_leaf({1}, 1, kFloat32), b = make_leaf({1}, 2, kFloat32);
  SGD optimizer({{{a}, {.lr = 1.0}}, {{b}, {.lr = 0.5}}});
  GradScaler scaler({.init_scale = 2.0});
  fill_values(a.detach(), 0.0);
  fill_values(b.detach(), 0.0);
  a.set_grad(full({1}, 6.0));
  b.set_grad(full({1}, 8.0));
  scaler.unscale(optimizer);
  EXPECT_EQ(static_cast<double>(clip_grad_norm_(optimizer.parameters(), 100.0)), 5.0);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_EQ(a.item(), -3.0);
  EXPECT_EQ(b.item(), -2.0);
}

TEST(ParamGroups, ErrorsSayWhatIsWrong) {
  const Parameters p = four();
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  SGD optimizer({{{p[0]}, {.lr = 0.1}}, {{p[1]}, {.lr = 0.1, .momentum = 0.9}}});
  contains(error_of([&] { SGD({{{p[0]}, {.lr = 0.1}}, {{p[1], p[0]}, {.lr = 0.1}}}); }), "was passed twice");
  contains(error_of([&] { SGD({{{p[0]}, {.lr = 0.1}}, {{p[1]}, {.lr = -0.1}}}); }), "a finite lr >= 0, found -0.1");
  contains(error_of([&] { SGD({{{}, {.lr = 0.1}}, {{}, {.lr = 0.2}}}); }), "expected at least one parameter");
  contains(error_of([&] { optimizer.add_param_group({{p[0]}, {.lr = 0.1}}); }), "was passed twice");
  contains(error_of([&] { optimizer.add_param_group({{p[2]}, {.lr = NAN}}); }), "a finite lr >= 0");
  EXPECT_EQ(optimizer.num_param_groups(), 2u);
  EXPECT_EQ(optimizer.param_groups().size(), 2u);
  contains(error_of([&] { optimizer.set_lr(0.1, 2); }), "there is no parameter group 2; the optimizer has 2");
  contains(error_of([&] { (void)optimizer.momentum(2); }), "there is no parameter group 2");
  contains(error_of([&] { optimizer.set_momentum(0.5); }), "of parameter group 0 cannot be switched on or off later");
  optimizer.param_groups()[1].options.weight_decay = -1;
  contains(error_of([&] { optimizer.step(); }), "a finite weight_decay >= 0");
  optimizer.param_groups()[1].options.weight_decay = 0;
  optimizer.param_groups()[1].options.nesterov = true;
  contains(error_of([&] { optimizer.step(); }), "of parameter group 1 cannot be switched on or off later");
}

}  // namespace
}  // namespace lockstep::optim
