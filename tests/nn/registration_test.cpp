// Modules with other arguments than one tensor, and members that were made without `this`.

#include <gtest/gtest.h>

#include <tuple>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/unregistered.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

using namespace lockstep::testing;

struct TwoInputs : ModuleOf<TwoInputs> {
  Linear fc{this, "fc", 3, 2};
  Tensor forward(const Tensor& a, const Tensor& b) { return fc(a) + b; }
};

struct OfPairs : ModuleOf<OfPairs> {
  using ModuleOf::ModuleOf;
  Linear fc{this, "fc", 3, 2};
  std::pair<Tensor, Tensor> forward(const Tensor& a, double factor = 2.0) { return {fc(a), fc(a) * factor}; }
};

struct Both : Module {
  TwoInputs first;
  OfPairs second{this, "second"};
};

TEST(ModuleOf, CallsAForwardOfOtherArguments) {
  TwoInputs net;
  const Tensor a = ones({1, 3}), b = ones({1, 2});
  EXPECT_EQ(net(a, b).to_vector<double>(), (net.fc(a) + b).to_vector<double>());
  OfPairs pairs;
  const auto [once, twice] = pairs(a);
  EXPECT_EQ((once * 2.0).to_vector<double>(), twice.to_vector<double>());
  EXPECT_EQ(pairs.parameters().size(), 2u);
  EXPECT_EQ(Both().named_parameters().front().name, "second.fc.weight");
  Module& base = net;
  EXPECT_NE(error_of([&] { base(a); }).find("TwoInputs] has no forward(Tensor)"), std::string::npos);
}

struct Forgetful : Module {
  Linear trained{this, "trained", 3, 3};
  Linear forgotten{3, 4};  // without `this`
  Tensor forward(Tensor x) override { return forgotten(trained(x)); }
};

std::string log_of(const std::function<void()>& body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

// The same in models of other arguments and results.
struct ForgetfulPair : ModuleOf<ForgetfulPair> {
  Linear trained{this, "trained", 3, 3};
  Linear forgotten{3, 4};
  std::pair<Tensor, std::vector<Tensor>> forward(const Tensor& x, const std::vector<Tensor>& more, bool both) {
    const Tensor h = trained(both ? x + more.front() : x);
    return {h, {forgotten(h)}};
  }
};
struct Careful : ModuleOf<Careful> {
  Linear trained{this, "trained", 3, 3};
  std::tuple<Tensor, double> forward(const Tensor& x, const std::optional<Tensor>& more) {
    return {trained(x) * more.value(), 1.0};
  }
};
struct Masked : ModuleOf<Masked> {
  struct Given {
    Tensor x;
  };
  Tensor forward(const Given& given) { return given.x * 2; }
};

TEST(Registration, AForgottenLayerOfAModuleOfIsToldOfOnce) {
  ForgetfulPair net;
  const Tensor x = ones({2, 3});
  const std::vector<Tensor> more{ones({2, 3})};
  const std::string text = log_of([&] { net(x, more, true); });
  EXPECT_NE(text.find("ForgetfulPair] computes with 2 tensor(s) that require gradients and are not among its"),
            std::string::npos)
      << text;
  EXPECT_EQ(log_of([&] { net(x, more, true); }), "");
  Linear other(3, 3);
  EXPECT_EQ(log_of([&] { Careful()(other(x), std::optional(other(x))); }), "") << "what it is given is not its own";
  EXPECT_EQ(log_of([&] { Masked()(Masked::Given{other(x)}); }), "") << "nor what it is given in a struct";
}

TEST(Registration, AForgottenLayerIsToldOfOnce) {
  Forgetful net;
  const Tensor x = ones({2, 3});
  {
    const NoGradGuard no_grad;
    EXPECT_EQ(log_of([&] { net(x); }), "");
  }
  const std::string text = log_of([&] { net(x); });
  EXPECT_NE(text.find("Forgetful] computes with 2 tensor(s) that require gradients and are not among its parameters()"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("[4]"), std::string::npos) << text;
  EXPECT_EQ(log_of([&] { net(x); }), "");
}

TEST(Registration, NothingIsSaidOfAnotherModulesOutputs) {
  Linear encoder(3, 3), decoder(3, 3);
  EXPECT_EQ(log_of([&] { decoder(encoder(ones({2, 3}))); }), "");
  const Tensor x = make_leaf({2, 3}, 1, kFloat32);
  Linear of_a_leaf(3, 3);
  EXPECT_EQ(log_of([&] { of_a_leaf(x); }), "");
  Forgetful frozen;
  frozen.forgotten.set_requires_grad(false);
  EXPECT_EQ(log_of([&] { frozen(ones({2, 3})); }), "");
}

// Coordinates that a model itself differentiates with respect to.
TEST(Registration, NothingIsSaidOfLeavesMadeInForward) {
  struct Slope : Module {
    Linear fc{this, "fc", 3, 1};
    Tensor forward(Tensor x) override {
      x = x.detach().clone().requires_grad_();
      return grad({fc(x).square().sum()}, {x}, {}, {.create_graph = true})[0] + x;
    }
  } slope;
  EXPECT_EQ(log_of([&] { slope(ones({2, 3})); }), "");
}

}  // namespace
}  // namespace lockstep::nn
