#include "lockstep/nn/module.h"

#include <gtest/gtest.h>

#include <optional>

#include "lockstep/nn/container.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/norm.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

using namespace lockstep::testing;
using Names = std::vector<std::string>;

struct Block : Module {
  Block(Module* parent, std::string_view name, std::int64_t width)
      : Module(parent, name), fc(this, "fc", width, width) {}
  Linear fc;
  Parameter gain{this, "gain", ones({1})};
};

struct Net : Module {
  Parameter scale{this, "scale", ones({2, 2})};
  Block block{this, "block", 3};
  Buffer counter{this, "counter", zeros({}, {.dtype = kInt64})};
  BatchNorm1d norm{this, "norm", 3};
  Parameter bias{this, "bias", Tensor()};
};

Names names_of(const std::vector<NamedTensor>& tensors) {
  Names names;
  for (const NamedTensor& t : tensors) names.push_back(t.name);
  return names;
}

TEST(Module, NamesMembersInDeclarationOrder) {
  Net net;
  EXPECT_EQ(names_of(net.named_parameters()),
            (Names{"scale", "block.fc.weight", "block.fc.bias", "block.gain", "norm.weight", "norm.bias"}));
  EXPECT_EQ(names_of(net.named_buffers()),
            (Names{"counter", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}));
  EXPECT_EQ(net.state().size(), 10u);
  EXPECT_EQ(net.parameters().size(), 6u);
  EXPECT_EQ(net.buffers().size(), 4u);
  EXPECT_EQ(net.num_parameters(), 4 + 9 + 3 + 1 + 3 + 3);
  EXPECT_EQ(net.num_bytes(), 4 * net.num_parameters() + 8 + 4 * 6 + 8);
}

TEST(Module, NamesItsOwnParametersAloneAndBehindAPrefix) {
  Net net;
  ASSERT_EQ(net.parameters(/*recurse=*/false).size(), 1u);
  EXPECT_TRUE(net.parameters(false)[0].is_same(net.scale));
  EXPECT_EQ(names_of(net.named_parameters(false)), Names{"scale"});
  EXPECT_EQ(names_of(net.named_parameters("", false)), Names{"scale"});
  EXPECT_EQ(names_of(net.block.named_parameters("net.block")),
            (Names{"net.block.fc.weight", "net.block.fc.bias", "net.block.gain"}));
  EXPECT_EQ(names_of(net.block.named_parameters("net", false)), Names{"net.gain"});
}

TEST(Module, ListsChildrenAndDescendants) {
  Net net;
  ASSERT_EQ(net.children().size(), 2u);
  EXPECT_EQ(net.children()[0], &net.block);
  EXPECT_EQ(net.named_children()[1].first, "norm");
  const std::vector<Module*> all{&net, &net.block, &net.block.fc, &net.norm};
  EXPECT_EQ(net.modules(), all);
  std::vector<Module*> visited;
  net.apply([&](Module& m) { visited.push_back(&m); });
  EXPECT_EQ(visited, (std::vector<Module*>{&net.block.fc, &net.block, &net.norm, &net}));
}

TEST(Module, ParametersAreTensorsThatRequireGradients) {
  Net net;
  EXPECT_TRUE(net.scale.requires_grad());
  EXPECT_FALSE(net.counter.requires_grad());
  const Tensor handle = net.scale;
  EXPECT_TRUE(handle.is_same(net.parameters()[0]));
  net.requires_grad_(false);
  EXPECT_FALSE(handle.requires_grad());
}

TEST(Module, CannotBelongToWhatItHolds) {
  struct Node : Module {
    using Module::register_module;
  } a, b, c;
  a.register_module("b", b);
  b.register_module("c", c);
  EXPECT_NE(error_of([&] { c.register_module("a", a); }).find("child 'a' is a module above it"), std::string::npos);
  EXPECT_EQ(a.modules().size(), 3u);
}

TEST(Module, ListsATiedParameterOnce) {
  struct Tied : Module {
    Linear in{this, "in", 4, 4, {.bias = false}};
    Parameter out{this, "out", in.weight};
  } tied;
  EXPECT_EQ(names_of(tied.named_parameters()), Names{"in.weight"});
  EXPECT_EQ(names_of(tied.state()), Names{"in.weight"});
  EXPECT_TRUE(tied.out.is_same(tied.in.weight));
}

TEST(Module, TrainAndEvalReachAllBelow) {
  Net net;
  EXPECT_TRUE(net.norm.is_training());
  net.eval();
  for (const Module* m : net.modules()) EXPECT_FALSE(m->is_training());
  net.train();
  EXPECT_TRUE(net.block.fc.is_training());
}

TEST(Module, MovingKeepsHandlesAndGradients) {
  Net net;
  const std::vector<Tensor> handles = net.parameters();
  const std::vector<double> before = handles[1].to_vector<double>();
  handles[1].set_grad(full({3, 3}, 2.0));
  net.to(Device(kCPU, 1));
  EXPECT_TRUE(handles[1].is_same(net.block.fc.weight));
  EXPECT_EQ(handles[1].device(), Device(kCPU, 1));
  EXPECT_EQ(handles[1].to_vector<double>(), before);
  EXPECT_TRUE(handles[1].requires_grad() && handles[1].is_leaf());
  EXPECT_EQ(handles[1].grad().device(), Device(kCPU, 1));
  EXPECT_EQ(handles[1].grad().to_vector<double>(), std::vector<double>(9, 2.0));
  EXPECT_EQ(net.counter.device(), Device(kCPU, 1));
  EXPECT_EQ(net.device(), Device(kCPU, 1));
}

TEST(Module, CastingLeavesIntegersAlone) {
  Net net;
  const Tensor weight = net.block.fc.weight;
  net.to(kFloat64);
  EXPECT_EQ(weight.dtype(), kFloat64);
  EXPECT_EQ(net.norm.running_mean.dtype(), kFloat64);
  EXPECT_EQ(net.counter.dtype(), kInt64);
  EXPECT_NE(error_of([&] { net.to(kInt64); }).find("expected a floating-point type"), std::string::npos);
  net.to({kCPU, 1}, kFloat32);
  EXPECT_EQ(weight.dtype(), kFloat32);
  EXPECT_EQ(weight.device(), Device(kCPU, 1));
  EXPECT_EQ(net.counter.dtype(), kInt64);
  EXPECT_EQ(net.counter.device(), Device(kCPU, 1));
}

TEST(Module, ZeroGradMayKeepTheGradientsMemory) {
  Net net;
  const Tensor bucket = ones({10});
  const Tensor view = bucket.as_strided({2, 2}, {2, 1}, 3);
  net.scale.set_grad(view);
  net.zero_grad(/*set_to_none=*/false);
  EXPECT_TRUE(net.scale.grad().is_same(view));
  EXPECT_EQ(bucket.to_vector<double>(), (std::vector<double>{1, 1, 1, 0, 0, 0, 0, 1, 1, 1}));
  net.zero_grad();
  EXPECT_FALSE(net.scale.grad().defined());
}

TEST(Module, ListsNameAnElementThatIsNotThere) {
  ModuleList<Linear> list;
  list.add(1, 1);
  EXPECT_NE(error_of([&] { list[1]; }).find("[nn::ModuleList] there is no element 1; the list has 1"),
            std::string::npos);
  EXPECT_NE(error_of([] { Sequential()[0]; }).find("[nn::Sequential]"), std::string::npos);
  EXPECT_NE(error_of([] { InstanceNorm(3)(ones({2, 3, 1})); }).find("more than one position"), std::string::npos);
}

TEST(Module, ReplacedValueReachesEveryHandle) {
  const Tensor target = make_leaf({2, 3});
  const Tensor other = target;
  target.set_grad(make_input({2, 3}));
  const Tensor value = make_input({4}, 2, kFloat32);
  const std::uint32_t old_version = target.storage()->version();
  replace_value(target, value);
  expect_close(other, value);
  EXPECT_EQ(other.raw_data(), value.raw_data());
  EXPECT_FALSE(target.grad().defined()) << "a gradient of another shape must go";
  EXPECT_GT(target.storage()->version(), old_version);
  EXPECT_NE(error_of([&] { replace_value(target, zeros({1}, {.dtype = kInt64})); }).find("floating-point"),
            std::string::npos);

  // Views that are kept would go on to show the old value, in part.
  const Tensor w = ones({2, 2});
  w.set_requires_grad(true);
  const Tensor x = w.mul(1.0), view = x[0];
  EXPECT_NE(error_of([&] { replace_value(x, x.detach().t()); }).find("views are kept"), std::string::npos);
  x.mul_(3.0);
  replace_value(x, zeros({2, 2}));
  EXPECT_NE(error_of([&] { view.sum().backward(); }).find("make the view again"), std::string::npos);
}

TEST(Module, CopiesValuesByName) {
  Net from, to;
  to.to(Device(kCPU, 1));
  from.counter.data<std::int64_t>()[0] = 7;
  copy_parameters_and_buffers(from, to);
  EXPECT_EQ(weights_sha256(from), weights_sha256(to));
  EXPECT_EQ(to.counter.item<std::int64_t>(), 7);
  EXPECT_EQ(to.device(), Device(kCPU, 1));
}

TEST(Module, CopyingNamesWhatDoesNotMatch) {
  struct A : Module {
    Linear fc{this, "fc", 2, 3};
    Linear only_a{this, "only_a", 1, 1, {.bias = false}};
  } a;
  struct B : Module {
    Linear fc{this, "fc", 4, 3};
    Linear only_b{this, "only_b", 1, 1, {.bias = false}};
  } b;
  const std::vector<double> bias = b.fc.bias.to_vector<double>();
  const std::string error = error_of([&] { copy_parameters_and_buffers(a, b); });
  EXPECT_NE(error.find("missing only_a.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("unexpected only_b.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("fc.weight is float32 [3, 4], expected float32 [3, 2]"), std::string::npos) << error;
  EXPECT_EQ(b.fc.bias.to_vector<double>(), bias) << "nothing may be copied";
}

TEST(Module, ErrorsNameTheClassAndTheMember) {
  struct Twice : Module {
    Parameter a{this, "a", ones({1})};
    Parameter b{this, "a", ones({1})};
  };
  struct Dotted : Module {
    Buffer a{this, "a.b", ones({1})};
  };
  struct Unnamed : Module {
    Linear a{this, "", 1, 1};
  };
  struct Integer : Module {
    Parameter a{this, "a", zeros({1}, {.dtype = kInt64})};
  };
  struct Gradient : Module {
    Buffer a{this, "a", make_leaf({1})};
  };
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(error_of([] { Twice m; }), "two members named 'a'");
  contains(error_of([] { Twice m; }), "Twice]");
  contains(error_of([] { Dotted m; }), "'a.b' cannot name a member");
  contains(error_of([] { Unnamed m; }), "'' cannot name a member");
  contains(error_of([] { Integer m; }), "parameter 'a' needs a floating-point leaf, found int64");
  contains(error_of([] { Gradient m; }), "buffer 'a' requires gradients");
  contains(error_of([] {
             Net net;
             net(ones({1}));
           }),
           "Net] has no forward(Tensor)");
}

TEST(Module, AnOptionalChildLeavesWithItsName) {
  struct Optional : Module {
    std::optional<Linear> shortcut;
  } m;
  EXPECT_TRUE(m.parameters().empty());
  m.shortcut.emplace(&m, "shortcut", 2, 2);
  EXPECT_EQ(m.parameters().size(), 2u);
  m.shortcut.reset();
  EXPECT_TRUE(m.parameters().empty() && m.children().empty());
  m.shortcut.emplace(&m, "shortcut", 2, 2);
  EXPECT_EQ(m.parameters().size(), 2u);
}

TEST(Module, AChildMayOutliveItsParent) {
  auto parent = std::make_unique<Module>();
  auto child = std::make_unique<Linear>(parent.get(), "child", 1, 1);
  parent.reset();
  EXPECT_EQ(child->parameters().size(), 2u);
}

TEST(Module, AGraphMadeBeforeAMoveIsRefused) {
  Linear fc(2, 2);
  const Tensor y = fc(make_leaf({1, 2}, 1, kFloat32));
  fc.to(Device(kCPU, 1));
  EXPECT_FALSE(error_of([&] { y.backward(ones({1, 2})); }).empty());
}

TEST(WeightsHash, DependsOnValuesAlone) {
  struct Pair : Module {
    Parameter b{this, "b", full({2}, 2.0)};
    Parameter a{this, "a", full({1}, 1.0)};
  } pair;
  struct Swapped : Module {
    Parameter a{this, "a", full({1}, 1.0)};
    Parameter b{this, "b", full({4}, 2.0).as_strided({2}, {2}, 0)};
    Buffer ignored{this, "ignored", ones({1})};
  } swapped;
  // sha256 of the little-endian floats 1, 2, 2.
  const std::string expected = "d411227db6bb898d0654745be728a332019529892c5f936c7acb8f6187e4a9b3";
  EXPECT_EQ(weights_sha256(pair), expected);
  EXPECT_EQ(weights_sha256(swapped), expected);
  swapped.to(Device(kCPU, 1));
  EXPECT_EQ(weights_sha256(swapped), expected);
  pair.a.data<float>()[0] = 1.5f;
  EXPECT_NE(weights_sha256(pair), expected);
}

}  // namespace
}  // namespace lockstep::nn
