// What optimizers refuse.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::testing;

TEST(OptimizerErrors, AParameterOfAnotherSizeIsRefused) {
  for (const std::int64_t size : {2, 100000}) {
    const Tensor w = ones({4}).requires_grad_();
    Adam optimizer({w}, {.lr = 0.1});
    w.set_grad(ones({4}));
    optimizer.step();
    nn::replace_value(w, ones({size}));
    w.set_grad(ones({size}));
    EXPECT_NE(error_of([&] { optimizer.step(); }).find("parameter 0 had 4 elements at its first step"),
              std::string::npos);
    // Of the old size it goes on, whatever its shape.
    nn::replace_value(w, ones({2, 2}));
    w.set_grad(ones({2, 2}).t());
    optimizer.step();
    EXPECT_LT(w.to_vector<double>()[3], 1.0);
  }
}

TEST(OptimizerErrors, SayWhatIsWrong) {
  const Tensor p = make_leaf({2});
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(error_of([&] { SGD(std::vector<Tensor>{}); }), "[SGD] expected at least one parameter, found none");
  contains(error_of([&] { SGD({p, p}); }), "[SGD] parameter 1 was passed twice");
  contains(error_of([&] { SGD({p, p.detach()}); }), "[SGD] parameters 0 and 1 share their memory; pass one of them");
  contains(error_of([&] { SGD({p.detach().view({2, 1}), make_leaf({3}), p}); }), "share their memory");
  contains(error_of([&] { SGD({p}, {.lr = INFINITY}); }), "[SGD] expected a finite lr >= 0, found inf");
  contains(error_of([&] { SGD({p}, {.momentum = 0.5, .dampening = NAN}); }), "[SGD] expected a finite dampening");
  contains(error_of([&] { Adam({Tensor()}); }), "[Adam] parameter 0 is not a floating-point leaf");
  contains(error_of([&] { AdamW({p}, {.lr = -1}); }), "[AdamW] expected a finite lr >= 0, found -1");
  contains(error_of([&] { SGD({p}).set_lr(-1); }), "[SGD] expected a finite lr >= 0");
  contains(error_of([&] { SGD({p}, {.momentum = -0.5}); }), "[SGD] expected a finite momentum >= 0");
  contains(error_of([&] { SGD({p}, {.nesterov = true}); }), "nesterov needs momentum > 0 and dampening 0");
  contains(error_of([&] { SGD({p}, {.weight_decay = -1}); }), "[SGD] expected a finite weight_decay >= 0");
  contains(error_of([&] { Adam({p}, {.beta1 = 1.0}); }), "[Adam] expected 0 <= beta1 < 1, found 1");
  contains(error_of([&] { AdamW({p}, {.beta2 = -0.1}); }), "[AdamW] expected 0 <= beta2 < 1");
  contains(error_of([&] { Adam({p}, {.eps = -1}); }), "[Adam] expected a finite eps >= 0");
  contains(error_of([&] { SGD({p}).load_state(Adam({p}).state()); }), "[SGD] the state to load is that of Adam");
  contains(error_of([&] { SGD({p}, {.momentum = 0.9}).load_state(SGD({p}).state()); }), "missing momentum.0");
  contains(error_of([&] { SGD({p}).load_state(SGD({p}, {.momentum = 0.9}).state()); }), "unexpected momentum.0");
  contains(error_of([&] { Adam({p}).load_state(Adam({make_leaf({3})}).state()); }),
           "exp_avg.0 is float64 [3], expected float64 [2]");
}

TEST(OptimizerErrors, AStepThatIsRefusedChangesNothing) {
  const Tensor single = ones({2}).requires_grad_(), twice = ones({2}, kFloat64).requires_grad_();
  optim::Adam adam({single, twice}, {.lr = 0.1});
  const auto step = [&] {
    for (const Tensor& each : {single, twice}) each.set_grad(ones(each.sizes(), options_of(each)));
    adam.step();
  };
  step();
  const std::vector<float> before = single.to_vector<float>();
  nn::replace_value(twice, ones({3}, kFloat64));
  twice.set_grad(ones({3}, kFloat64));
  EXPECT_NE(error_of([&] { adam.step(); }).find("parameter 1 had 2 elements"), std::string::npos);
  EXPECT_EQ(single.to_vector<float>(), before);
}

TEST(OptimizerErrors, ElementsInOnePlaceAreRefused) {
  const Tensor spread = ones({1}).expand({3}).detach().requires_grad_();
  EXPECT_NE(error_of([&] { optim::SGD({spread}, {.lr = 0.1}); }).find("lie in one place"), std::string::npos);
}

TEST(OptimizerErrors, GradientsThatAGraphReadsAreNotSetToZeroUnseen) {
  const Tensor w = ones({2}).requires_grad_(), v = ones({2}).requires_grad_();
  optim::SGD sgd({w}, {.lr = 0.1});
  w.set_grad(full({2}, 2.0));
  const Tensor y = (v * w.grad()).sum();
  sgd.zero_grad(/*set_to_none=*/false);
  EXPECT_NE(error_of([&] { y.backward(); }).find("changed in place"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::optim
