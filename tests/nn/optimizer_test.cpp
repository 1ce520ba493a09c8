#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/support/golden.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::testing;
using Make = std::function<std::unique_ptr<Optimizer>(std::vector<Tensor>)>;

Make sgd(SGDOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<SGD>(std::move(p), options); };
}
Make adam(AdamOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<Adam>(std::move(p), options); };
}
Make adamw(AdamWOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<AdamW>(std::move(p), options); };
}

Make rmsprop(RMSpropOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<RMSprop>(std::move(p), options); };
}
Make adagrad(AdagradOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<Adagrad>(std::move(p), options); };
}
Make nadam(NAdamOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<NAdam>(std::move(p), options); };
}
Make radam(RAdamOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<RAdam>(std::move(p), options); };
}
Make adamax(AdamaxOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<Adamax>(std::move(p), options); };
}
Make adadelta(AdadeltaOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<Adadelta>(std::move(p), options); };
}

Make rprop(RpropOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<Rprop>(std::move(p), options); };
}
Make asgd(ASGDOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<ASGD>(std::move(p), options); };
}
Make adafactor(AdafactorOptions options) {
  return [=](std::vector<Tensor> p) { return std::make_unique<Adafactor>(std::move(p), options); };
}

struct Case {
  const char* name;
  Make make;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

const Case kCases[] = {
    {"sgd", sgd({.lr = 0.1})},
    {"sgd_momentum", sgd({.lr = 0.1, .momentum = 0.9})},
    {"sgd_nesterov", sgd({.lr = 0.1, .momentum = 0.9, .nesterov = true})},
    {"sgd_weight_decay", sgd({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05})},
    {"sgd_nesterov_weight_decay", sgd({.lr = 0.1, .momentum = 0.8, .weight_decay = 0.05, .nesterov = true})},
    {"sgd_dampening", sgd({.lr = 0.1, .momentum = 0.9, .dampening = 0.3})},
    {"adam", adam({.lr = 0.01})},
    {"adam_betas", adam({.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6})},
    {"adam_weight_decay", adam({.lr = 0.01, .weight_decay = 0.1})},
    {"adamw", adamw({.lr = 0.01})},
    {"adamw_weight_decay", adamw({.lr = 0.02, .weight_decay = 0.3})},
    {"rmsprop", rmsprop({.lr = 0.02})},
    {"rmsprop_momentum", rmsprop({.lr = 0.02, .alpha = 0.9, .weight_decay = 0.1, .momentum = 0.7})},
    {"rmsprop_centered", rmsprop({.lr = 0.02, .centered = true})},
    {"rmsprop_centered_momentum", rmsprop({.lr = 0.02, .momentum = 0.5, .centered = true})},
    {"adagrad", adagrad({.lr = 0.1})},
    {"adagrad_decay", adagrad({.lr = 0.1, .lr_decay = 0.2, .weight_decay = 0.1})},
    {"nadam", nadam({.lr = 0.05})},
    {"nadam_decoupled", nadam({.lr = 0.05,
                               .beta1 = 0.8,
                               .beta2 = 0.9,
                               .weight_decay = 0.1,
                               .momentum_decay = 0.1,
                               .decoupled_weight_decay = true})},
    {"radam", radam({.lr = 0.05})},
    {"radam_adaptive", radam({.lr = 0.05, .beta1 = 0.8, .beta2 = 0.98, .weight_decay = 0.1})},
    {"radam_decoupled", radam({.lr = 0.05, .weight_decay = 0.1, .decoupled_weight_decay = true})},
    {"adamax", adamax({.lr = 0.05})},
    {"adamax_weight_decay", adamax({.lr = 0.05, .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.1})},
    {"adadelta", adadelta({})},
    {"adadelta_weight_decay", adadelta({.lr = 0.5, .rho = 0.8, .weight_decay = 0.1})},
    {"rprop", rprop({})},
    {"rprop_limits",
     rprop({.lr = 0.05, .eta_minus = 0.4, .eta_plus = 1.5, .step_min = 0.03, .step_max = 0.1, .maximize = true})},
    {"asgd", asgd({})},
    {"asgd_averaged", asgd({.lr = 0.1, .lambd = 0.2, .alpha = 0.5, .t0 = 1, .weight_decay = 0.1})},
    {"adafactor_decay",
     adafactor({.lr = 0.1, .beta2_decay = -0.6, .eps1 = 1e-4, .eps2 = 0.5, .d = 1.5, .weight_decay = 0.1})},
};

class EachOptimizer : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Optimizer> make(std::vector<Tensor> parameters) const {
    return GetParam().make(std::move(parameters));
  }
};
INSTANTIATE_TEST_SUITE_P(Cases, EachOptimizer, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(Optimizer, MaximizingIsMinimizingTheNegative) {
  const auto weights = [](const Make& make, bool negated) {
    const Tensor p = make_input({70}, 3, kFloat32);
    p.set_requires_grad(true);
    const auto optimizer = make({p});
    for (std::uint32_t step = 0; step < 3; ++step) {
      const Tensor gradient = make_input({70}, 10 + step, kFloat32);
      p.set_grad(negated ? -gradient : gradient);
      optimizer->step();
    }
    return p.detach();
  };
  const auto expect_same = [&](const Make& up, const Make& down) {
    EXPECT_TRUE(weights(up, false).equal(weights(down, true)));
    EXPECT_FALSE(weights(up, true).equal(weights(down, true)));
  };
  SGDOptions s{.lr = 0.1, .weight_decay = 0.1};
  for (const auto& [momentum, nesterov] : {std::pair{0.0, false}, std::pair{0.9, false}, std::pair{0.9, true}}) {
    s.momentum = momentum;
    s.nesterov = nesterov;
    SGDOptions up = s;
    up.maximize = true;
    expect_same(sgd(up), sgd(s));
  }
  expect_same(adam({.lr = 0.1, .weight_decay = 0.1, .amsgrad = true, .maximize = true}),
              adam({.lr = 0.1, .weight_decay = 0.1, .amsgrad = true}));
  expect_same(adamw({.lr = 0.1, .maximize = true}), adamw({.lr = 0.1}));
  expect_same(rmsprop({.lr = 0.1, .weight_decay = 0.1, .momentum = 0.5, .centered = true, .maximize = true}),
              rmsprop({.lr = 0.1, .weight_decay = 0.1, .momentum = 0.5, .centered = true}));
  expect_same(adagrad({.lr = 0.1, .weight_decay = 0.1, .maximize = true}), adagrad({.lr = 0.1, .weight_decay = 0.1}));
  expect_same(adadelta({.lr = 0.1, .weight_decay = 0.1, .maximize = true}), adadelta({.lr = 0.1, .weight_decay = 0.1}));
  expect_same(nadam({.lr = 0.1, .weight_decay = 0.1, .maximize = true}), nadam({.lr = 0.1, .weight_decay = 0.1}));
  expect_same(radam({.lr = 0.1, .weight_decay = 0.1, .maximize = true}), radam({.lr = 0.1, .weight_decay = 0.1}));
  expect_same(adamax({.lr = 0.1, .weight_decay = 0.1, .maximize = true}), adamax({.lr = 0.1, .weight_decay = 0.1}));
  expect_same(rprop({.maximize = true}), rprop({}));
  expect_same(asgd({.lambd = 0.1, .t0 = 0, .weight_decay = 0.1, .maximize = true}),
              asgd({.lambd = 0.1, .t0 = 0, .weight_decay = 0.1}));
  expect_same(adafactor({.weight_decay = 0.1, .maximize = true}), adafactor({.weight_decay = 0.1}));
  const Tensor p = make_input({3}, 3, kFloat32);
  p.set_requires_grad(true);
  SGD one({p}, {.maximize = true}), other({p});
  EXPECT_NE(error_of([&] { other.load_state(one.state()); }).find("maximize"), std::string::npos);
}

TEST_P(EachOptimizer, MatchesPyTorch) {
  const GoldenFile& golden = GoldenFile::open("optim");
  for (const DType dtype : {kFloat64, kFloat32}) {
    const Tensor p = copy_contiguous(cast_values(golden.get(GetParam().name, "start"), dtype));
    p.set_requires_grad(true);
    const auto optimizer = make({p});
    const Tensor grads = cast_values(golden.get(GetParam().name, "grads"), dtype);
    const Tensor after = cast_values(golden.get(GetParam().name, "after"), dtype);
    for (std::int64_t step = 0; step < 5; ++step) {
      p.set_grad(copy_contiguous(rows(grads, step, 1)).as_strided({7}, {1}, 0));
      optimizer->step();
      expect_close(p, copy_contiguous(rows(after, step, 1)).as_strided({7}, {1}, 0), dtype == kFloat64 ? 1e-12 : 1e-5,
                   dtype == kFloat64 ? 1e-14 : 1e-6);
    }
  }
}

// Parameters and gradients cut from one buffer each, so that they are neighbours, or each in its own memory.
std::vector<Tensor> parameters_of(const std::vector<Shape>& shapes, bool flat, DType dtype = kFloat32) {
  std::int64_t total = 0;
  for (const Shape& s : shapes) total += s.numel();
  const Tensor buffer = empty({total}, {.dtype = dtype});
  std::vector<Tensor> parameters;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const Tensor values = make_input(shapes[i], static_cast<std::uint32_t>(i + 1), dtype);
    Tensor p = values;
    if (flat) {
      p = buffer.as_strided(shapes[i], contiguous_strides(shapes[i]), offset);
      copy_values(values, p);
    }
    offset += shapes[i].numel();
    p.set_requires_grad(true);
    parameters.push_back(p);
  }
  return parameters;
}

void set_gradients(const std::vector<Tensor>& parameters, std::uint32_t seed, bool flat) {
  std::vector<Shape> shapes;
  for (const Tensor& p : parameters) shapes.push_back(p.sizes());
  const std::vector<Tensor> grads = parameters_of(shapes, flat, parameters[0].dtype());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    copy_values(make_input(shapes[i], seed * 100 + static_cast<std::uint32_t>(i), parameters[0].dtype()), grads[i]);
    parameters[i].set_grad(grads[i].detach());
  }
}

TEST_P(EachOptimizer, BitsDependOnNeitherLayoutNorThreads) {
  const std::vector<Shape> shapes{{3, 5}, {1}, {130, 131}, {7}, {0}, {20000}};
  const auto run = [&](bool flat, bool flat_grads, int threads) {
    const int before = num_threads();
    set_num_threads(threads);
    const std::vector<Tensor> parameters = parameters_of(shapes, flat);
    const auto optimizer = make(parameters);
    for (std::uint32_t step = 1; step <= 3; ++step) {
      set_gradients(parameters, step, flat_grads);
      optimizer->step();
    }
    set_num_threads(before);
    return parameters;
  };
  const std::vector<Tensor> expected = run(false, false, 1);
  EXPECT_TRUE(same_bits(run(true, true, 1), expected));
  EXPECT_TRUE(same_bits(run(true, false, 2), expected));
  EXPECT_TRUE(same_bits(run(false, false, 2), expected));
}

TEST_P(EachOptimizer, PassesOverParametersWithoutGradient) {
  const std::vector<Tensor> parameters = parameters_of({{4}, {4}}, true);
  const std::vector<double> before = parameters[1].to_vector<double>();
  const auto optimizer = make(parameters);
  parameters[0].set_grad(ones({4}));
  optimizer->step();
  EXPECT_EQ(parameters[1].to_vector<double>(), before);
  // Its own first step is still to come, and equals the first step of a parameter alone.
  const Tensor alone = copy_contiguous(parameters[1].detach());
  alone.set_requires_grad(true);
  const auto other = make({alone});
  parameters[0].set_grad({});
  parameters[1].set_grad(full({4}, 0.5));
  alone.set_grad(full({4}, 0.5));
  optimizer->step();
  other->step();
  EXPECT_EQ(parameters[1].to_vector<double>(), alone.to_vector<double>());
}

TEST_P(EachOptimizer, TakesAnyLayout) {
  const Tensor dense = make_leaf({4, 3}, 1, kFloat32);
  const Tensor strided = make_strided(dense.detach());
  strided.set_requires_grad(true);
  const auto a = make({dense});
  const auto b = make({strided});
  for (std::uint32_t step = 1; step <= 3; ++step) {
    const Tensor grad = make_input({4, 3}, step, kFloat32);
    dense.set_grad(grad);
    strided.set_grad(make_strided(grad));
    a->step();
    b->step();
  }
  EXPECT_EQ(strided.to_vector<double>(), dense.to_vector<double>());
  EXPECT_FALSE(strided.is_contiguous());
}

TEST_P(EachOptimizer, ComputesHalvesInFloat) {
  for (const DType dtype : {kFloat16, kBFloat16}) {
    const Tensor half = make_leaf({64}, 1, dtype);
    const Tensor wide = cast_values(half.detach(), kFloat32);
    wide.set_requires_grad(true);
    const auto a = make({half});
    const auto b = make({wide});
    const Tensor grad = make_input({64}, 2, dtype);
    half.set_grad(grad);
    wide.set_grad(cast_values(grad, kFloat32));
    a->step();
    b->step();
    EXPECT_EQ(half.to_vector<double>(), cast_values(wide.detach(), dtype).to_vector<double>());
  }
}

TEST_P(EachOptimizer, GoesOnFromItsSavedState) {
  const std::vector<Tensor> a = parameters_of({{3, 2}, {5}}, false);
  const auto first = make(a);
  for (std::uint32_t step = 1; step <= 2; ++step) {
    set_gradients(a, step, false);
    first->step();
  }
  const std::vector<Tensor> b = parameters_of({{3, 2}, {5}}, true);
  for (std::size_t i = 0; i < a.size(); ++i) copy_values(a[i], b[i]);
  const auto second = make(b);
  first->set_lr(0.03);
  second->load_state(first->state());
  EXPECT_EQ(second->lr(), 0.03);
  set_gradients(a, 3, false);
  set_gradients(b, 3, false);
  first->step();
  second->step();
  EXPECT_TRUE(same_bits(b, a));
}

TEST(Optimizer, KeepsGradientsOfABucketInPlace) {
  const Tensor bucket = ones({8});
  const Tensor p = make_leaf({4}, 1, kFloat32);
  p.set_grad(bucket.as_strided({4}, {1}, 2));
  SGD optimizer({p});
  optimizer.zero_grad(/*set_to_none=*/false);
  EXPECT_EQ(bucket.to_vector<double>(), (std::vector<double>{1, 1, 0, 0, 0, 0, 1, 1}));
  optimizer.zero_grad();
  EXPECT_FALSE(p.grad().defined());
}

// A gradient of zeros would move them on, by momentum and weight decay.
TEST(Optimizer, LeavesAloneWhatBackwardDoesNotReach) {
  for (const bool frozen : {true, false}) {
    const Tensor a = make_leaf({4}, 1, kFloat32), b = make_leaf({4}, 2, kFloat32);
    SGD optimizer({a, b}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
    const auto step = [&](bool both) {
      optimizer.zero_grad();
      (both ? (a * b).sum() : (a * 2.0).sum()).backward();
      optimizer.step();
    };
    step(true);
    if (frozen) b.set_requires_grad(false);
    const std::vector<float> before = b.to_vector<float>();
    step(frozen);
    step(false);
    EXPECT_EQ(b.to_vector<float>(), before) << frozen;
  }
}

TEST(Optimizer, FollowsAModelThatMovesBeforeTheFirstStep) {
  nn::Linear fc(2, 2);
  Adam optimizer(fc.parameters());
  fc.to(Device(kCPU, 1));
  for (const Tensor& p : fc.parameters()) p.set_grad(ones_like(p.detach()));
  const std::vector<double> before = fc.weight.to_vector<double>();
  optimizer.step();
  EXPECT_NE(fc.weight.to_vector<double>(), before);
  fc.to(Device(kCPU, 0));
  const std::string error = error_of([&] { optimizer.step(); });
  EXPECT_NE(error.find("was float32 on cpu:1 at its first step and is float32 on cpu:0 now"), std::string::npos)
      << error;
}

TEST(Optimizer, StateNamesItsTensors) {
  const std::vector<Tensor> parameters = parameters_of({{2}, {3}}, false);
  const OptimizerState state = Adam(parameters).state();
  std::vector<std::string> names;
  for (const nn::NamedTensor& t : state.tensors) names.push_back(t.name);
  EXPECT_EQ(names, (std::vector<std::string>{"steps", "exp_avg.0", "exp_avg.1", "exp_avg_sq.0", "exp_avg_sq.1"}));
  EXPECT_EQ(state.type, "Adam");
}

// The gradient shrinks, so that the mean of its square does too and the largest one so far counts.
TEST(Optimizer, AmsgradDividesByTheRootOfTheLargestSquare) {
  const Tensor p = full({1}, 1.0, {.dtype = kFloat64});
  p.set_requires_grad(true);
  Adam optimizer({p}, {.lr = 0.1, .beta2 = 0.5, .amsgrad = true});
  double value = 1, mean = 0, square = 0, largest = 0;
  for (int step = 1; step <= 6; ++step) {
    const double grad = std::pow(0.5, step);
    p.set_grad(full({1}, grad, {.dtype = kFloat64}));
    optimizer.step();
    mean = 0.9 * mean + 0.1 * grad;
    square = 0.5 * square + 0.5 * grad * grad;
    largest = std::max(largest, square);
    value -= 0.1 / (1 - std::pow(0.9, step)) * mean / (std::sqrt(largest) / std::sqrt(1 - std::pow(0.5, step)) + 1e-8);
    EXPECT_NEAR(p.item(), value, 1e-14) << step;
  }
  EXPECT_GT(largest, 2 * square);
  Adam resumed({p}, {.lr = 0.1, .beta2 = 0.5, .amsgrad = true});
  resumed.load_state(optimizer.state());
  EXPECT_EQ(resumed.state().tensors.back().name, "max_exp_avg_sq.0");
  EXPECT_EQ(resumed.state().tensors.back().tensor.item(), largest);
}

// What is made of a state and read later (Note [Elementwise chains]) is made of the state as it was.
TEST(Optimizer, AStateCountsAsItWas) {
  const Tensor p = ones({600, 512}).requires_grad_();
  SGD optimizer({p}, {.lr = 0.1, .momentum = 0.5});
  const auto step = [&] {
    p.set_grad(ones(p.sizes()));
    optimizer.step();
  };
  step();
  const Tensor doubled = optimizer.state().tensors.back().tensor * 2.0;
  step();
  EXPECT_EQ(doubled.to_vector<float>()[0], 2.0f);
}

}  // namespace
}  // namespace lockstep::optim
