#include <sstream>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/nn.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

using lockstep::testing::error_of;

struct Twice : Module {
  Linear inner{this, "inner", 2, 2, {.bias = false}};
  Sequential rest{this, "rest"};
  Twice() {
    rest.add<Linear>(2, 1);
    rest.add<ReLU>();
  }
  Tensor forward(Tensor x) override { return rest(inner(inner(x))); }
};

struct Sum : ModuleOf<Sum> {
  Tensor forward(const Tensor& a, const Tensor& b) { return a + b; }
};

TEST(ModuleHooks, SeeAndReplaceWhatForwardTakesAndGives) {
  Twice net;
  const Tensor x = ones({1, 2});
  const Tensor plain = net(x);
  int calls = 0;
  Tensor features;
  const std::uint64_t keeps = net.inner.register_forward_hook([&](Module& module, const Tensor&, const Tensor& out) {
    EXPECT_EQ(&module, &net.inner);
    features = out;
    ++calls;
  });
  EXPECT_EQ(net(x).item<float>(), plain.item<float>()) << "a hook that only looks changes nothing";
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(features.sizes(), Shape({1, 2}));
  EXPECT_TRUE(features.requires_grad());

  const std::uint64_t doubles = net.register_forward_hook([](Module&, const Tensor&, Tensor& out) { out = out * 2.0; });
  const std::uint64_t adds = net.register_forward_hook([](Module&, const Tensor&, Tensor& out) { out = out + 1.0; });
  EXPECT_FLOAT_EQ(net(x).item<float>(), 2 * plain.item<float>() + 1) << "in the order in which they were added";
  const std::uint64_t zeroes = net.register_forward_pre_hook([](Module&, Tensor& in) { in = in * 0.0; });
  EXPECT_FLOAT_EQ(net(x).item<float>(), 2 * net.rest(zeros({1, 2})).item<float>() + 1);
  for (const std::uint64_t key : {keeps, doubles, adds, zeroes, zeroes}) {
    net.remove_hook(key);
    net.inner.remove_hook(key);
  }
  calls = 0;
  EXPECT_EQ(net(x).item<float>(), plain.item<float>());
  EXPECT_EQ(calls, 0);
}

TEST(ModuleHooks, MayReturnWhatTakesThePlace) {
  Twice net;
  const Tensor x = ones({1, 2}), plain = net(x);
  net.register_forward_hook([](Module&, const Tensor&, const Tensor& out) { return out * 2.0; });
  net.register_forward_hook([](auto&, const auto&, const auto&) { return Tensor(); });
  EXPECT_FLOAT_EQ(net(x).item<float>(), 2 * plain.item<float>());
  net.register_forward_pre_hook([](Module&, const Tensor& in) { return in * 0.0; });
  EXPECT_FLOAT_EQ(net(x).item<float>(), 2 * net.rest(zeros({1, 2})).item<float>());
  EXPECT_THROW(net.register_forward_hook(std::function<Tensor(Module&, const Tensor&, Tensor&)>()), Error);
  EXPECT_THROW(net.register_forward_pre_hook(std::function<Tensor(Module&, Tensor&)>()), Error);
}

TEST(ModuleHooks, OfElementsOfASequentialAreCalled) {
  Twice net;
  Tensor features;
  net.rest[0].register_forward_hook([&](Module&, const Tensor&, const Tensor& out) { features = out; });
  const Tensor out = net(ones({1, 2}));
  ASSERT_TRUE(features.defined());
  EXPECT_TRUE(out.equal(relu(features)));
}

TEST(ModuleHooks, SeeAndReplaceGradients) {
  Linear net(2, 2, {.bias = false});
  const Tensor x = ones({1, 2});
  x.set_requires_grad(true);
  Tensor of_input, of_output;
  const std::uint64_t key =
      net.register_full_backward_hook([&](Module& module, Tensor& grad_input, const Tensor& grad_output) {
        EXPECT_EQ(&module, &net);
        of_input = grad_input;
        of_output = grad_output;
        if (grad_input.defined()) grad_input = grad_input * 10.0;
      });
  (net(x) * 3.0).sum().backward();
  EXPECT_EQ(of_output.to_vector<double>(), (std::vector<double>{3, 3}));
  EXPECT_TRUE(of_input.allclose(of_output.matmul(net.weight.detach())));
  EXPECT_TRUE(x.grad().equal(of_input * 10.0));
  // Without a gradient of x there is one of the result alone; without recording, or after a removal, there is no call.
  of_output = {};
  net(x.detach()).sum().backward();
  EXPECT_TRUE(of_output.defined());
  EXPECT_FALSE(of_input.defined());
  of_output = {};
  {
    const NoGradGuard guard;
    net(x);
  }
  net.remove_hook(key);
  net(x).sum().backward();
  EXPECT_FALSE(of_output.defined());
  Sum sum;
  EXPECT_NE(error_of([&] { sum.register_full_backward_hook([](Module&, Tensor&, const Tensor&) {}); }), "");
}

TEST(ModuleHooks, MayRemoveThemselves) {
  Linear fc(1, 1);
  int calls = 0;
  std::uint64_t key = 0;
  key = fc.register_forward_hook([&](Module& module, const Tensor&, Tensor&) {
    ++calls;
    module.remove_hook(key);
  });
  fc(ones({1, 1}));
  fc(ones({1, 1}));
  EXPECT_EQ(calls, 1);
}

TEST(ModuleHooks, AreRefusedWhereTheyCannotWork) {
  Linear fc(1, 1);
  Sum of_two;
  EXPECT_NE(error_of([&] { fc.register_forward_hook(nullptr); }).find("hook is empty"), std::string::npos);
  EXPECT_NE(error_of([&] { of_two.register_forward_pre_hook([](Module&, Tensor&) {}); }).find("ModuleOf"),
            std::string::npos);
  fc.register_forward_hook([](Module&, const Tensor&, Tensor& out) { out = Tensor(); });
  EXPECT_NE(error_of([&] { fc(ones({1, 1})); }).find("left no result"), std::string::npos);
}

TEST(ModuleText, IsTheTreeOfModules) {
  Twice net;
  std::ostringstream text;
  text << net;
  EXPECT_EQ(text.str(),
            "Twice(\n"
            "  (inner): Linear(weight: [2, 2])\n"
            "  (rest): Sequential(\n"
            "    (0): Linear(weight: [1, 2], bias: [1])\n"
            "    (1): ReLU()\n"
            "  )\n"
            ")");
  std::vector<std::string> names;
  for (const auto& [name, module] : net.named_modules()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"", "inner", "rest", "rest.0", "rest.1"}));
}

TEST(ConvPadding, MayHoldElementsOfTheInput) {
  manual_seed(3);
  const Tensor x = randn({2, 3, 7, 6});
  for (const PadMode mode : {PadMode::reflect, PadMode::replicate, PadMode::circular}) {
    Conv2d conv(3, 4, {3, 2}, {.stride = {2, 1}, .padding = {2, 1}, .padding_mode = mode});
    EXPECT_TRUE(equal(conv(x), conv2d(pad(x, {1, 1, 2, 2}, mode), conv.weight, conv.bias, {.stride = {2, 1}})));
    Conv2d same(3, 4, {3, 4}, {.padding = kSame, .dilation = {2, 1}, .padding_mode = mode});
    const Tensor y = same(x);
    EXPECT_EQ(y.sizes(), Shape({2, 4, 7, 6}));
    EXPECT_TRUE(equal(y, conv2d(pad(x, {1, 2, 2, 2}, mode), same.weight, same.bias, {.dilation = {2, 1}})));
    Conv1d line(3, 2, 4, {.padding = 2, .padding_mode = mode});
    const Tensor z = x.select(2, 0);
    EXPECT_TRUE(equal(line(z), conv1d(pad(z, {2, 2}, mode), line.weight, line.bias)));
    Conv3d volume(3, 2, {2, 3, 3}, {.padding = {0, 1, 2}, .padding_mode = mode});
    const Tensor v = randn({1, 3, 3, 4, 5});
    EXPECT_TRUE(equal(volume(v), conv3d(pad(v, {2, 2, 1, 1, 0, 0}, mode), volume.weight, volume.bias)));
  }
  Conv2d strided(3, 4, 3, {.stride = 2, .padding = kSame, .padding_mode = PadMode::reflect});
  EXPECT_NE(error_of([&] { strided(x); }).find("kSame needs a stride of 1, found 2"), std::string::npos);
  for (const Size2d& padding : {Size2d(-2), Size2d(-1, 2)}) {
    Conv2d negative(3, 4, 3, {.padding = padding, .padding_mode = PadMode::reflect});
    EXPECT_NE(error_of([&] { negative(x); }).find("padding"), std::string::npos);
  }
  Conv1d negative(3, 2, 4, {.padding = -2, .padding_mode = PadMode::reflect});
  EXPECT_NE(error_of([&] { negative(randn({2, 3, 5})); }).find("padding"), std::string::npos);
  Conv2d wide(3, 4, 3, {.padding = 1, .padding_mode = PadMode::reflect});
  EXPECT_NE(error_of([&] { wide(x.select(0, 0)); }).find("expected an input of 4 dimensions"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::nn
