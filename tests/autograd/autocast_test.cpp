#include "lockstep/autograd/autocast.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

Tensor input(const Shape& sizes, std::uint32_t seed, DType dtype = kFloat32) {
  return move_values(make_input(sizes, seed, dtype, 0.1, 1.0), test_device());
}
Tensor leaf(const Shape& sizes, std::uint32_t seed, DType dtype = kFloat32) {
  Tensor t = input(sizes, seed, dtype);
  t.set_requires_grad(true);
  return t;
}
Tensor classes() {
  return move_values(tensor<std::int64_t>({1, 0, 2}), test_device());
}

enum class Policy { kLow, kLowOnGpus, kFull, kFullOnCpus, kWidest };

/// What `run` gives for an x of [3, 4] (or its own inputs) in float32 and in the guard's type.
struct PolicyCase {
  const char* name;
  Policy policy;
  std::function<Tensor(const Tensor& x)> run;
  friend std::ostream& operator<<(std::ostream& out, const PolicyCase& c) { return out << c.name; }
};

const PolicyCase kCases[] = {
    {"matmul", Policy::kLow,
     [](const Tensor& x) {
       return x.matmul(input({4, 2}, 2));
     }},
    {"linear", Policy::kLow,
     [](const Tensor& x) {
       return linear(x, leaf({2, 4}, 2), leaf({2}, 3));
     }},
    {"conv2d", Policy::kLow,
     [](const Tensor& x) {
       return conv2d(x.view({1, 1, 3, 4}), leaf({2, 1, 2, 2}, 2), {});
     }},
    {"conv2d_pool_relu", Policy::kLow,
     [](const Tensor& x) {
       return relu(max_pool2d(conv2d(x.view({1, 1, 3, 4}), leaf({2, 1, 2, 1}, 2), leaf({2}, 3)), 2));
     }},
    {"addmm", Policy::kLow,
     [](const Tensor& x) {
       return addmm(leaf({3, 2}, 4), x, input({4, 2}, 2), 0.5, 2.0);
     }},
    {"prelu", Policy::kLow, [](const Tensor& x) { return prelu(x, leaf({4}, 2)); }},
    {"mv", Policy::kLowOnGpus, [](const Tensor& x) { return x.mv(x.select(0, 1)); }},
    {"addmv", Policy::kLowOnGpus, [](const Tensor& x) { return addmv(x.select(1, 1), x, x.select(0, 1)); }},
    {"dot", Policy::kWidest, [](const Tensor& x) { return x.select(0, 1).dot(x.select(0, 2)); }},
    {"bilinear", Policy::kWidest,
     [](const Tensor& x) {
       return bilinear(x, x, x.expand({2, 3, 4}).reshape({6, 4}).narrow(0, 0, 4).view({1, 4, 4}));
     }},
    {"grid_sample", Policy::kFullOnCpus,
     [](const Tensor& x) {
       return grid_sample(x.view({1, 1, 3, 4}), x.narrow(0, 0, 2).reshape({1, 2, 2, 2}));
     }},
    {"softmax", Policy::kFull, [](const Tensor& x) { return x.softmax(1); }},
    {"log_softmax", Policy::kFull, [](const Tensor& x) { return x.log_softmax(1); }},
    {"cross_entropy", Policy::kFull, [](const Tensor& x) { return cross_entropy(x, classes()); }},
    {"nll_loss", Policy::kFull, [](const Tensor& x) { return nll_loss(x, classes()); }},
    {"mse_loss", Policy::kFull,
     [](const Tensor& x) {
       return mse_loss(x, input({3, 4}, 2));
     }},
    {"bce", Policy::kFull,
     [](const Tensor& x) {
       return binary_cross_entropy_with_logits(x, input({3, 4}, 2));
     }},
    {"batch_norm", Policy::kFullOnCpus,
     [](const Tensor& x) {
       return batch_norm(x, {}, {}, {.weight = leaf({4}, 2), .bias = leaf({4}, 3), .training = true});
     }},
    {"layer_norm", Policy::kFull, [](const Tensor& x) { return layer_norm(x, {4}, {.weight = leaf({4}, 2)}); }},
    {"exp", Policy::kFull, [](const Tensor& x) { return x.exp(); }},
    {"log", Policy::kFull, [](const Tensor& x) { return x.log(); }},
    {"pow", Policy::kFull, [](const Tensor& x) { return x.pow(3.0); }},
    {"square", Policy::kFull, [](const Tensor& x) { return square(x); }},
    {"pow_of_tensors", Policy::kFull, [](const Tensor& x) { return pow(x, x); }},
    {"pow_of_scalar", Policy::kFull, [](const Tensor& x) { return pow(2.0, x); }},
    {"rsqrt", Policy::kFull, [](const Tensor& x) { return x.rsqrt(); }},
    {"reciprocal", Policy::kFull, [](const Tensor& x) { return reciprocal(x); }},
    {"sum", Policy::kFull, [](const Tensor& x) { return x.sum(); }},
    {"mean", Policy::kFull, [](const Tensor& x) { return x.mean({1}); }},
    {"var", Policy::kFull, [](const Tensor& x) { return x.var(); }},
    {"logsumexp", Policy::kFull, [](const Tensor& x) { return x.logsumexp({1}); }},
    {"relu", Policy::kWidest, [](const Tensor& x) { return x.relu(); }},
    {"sqrt", Policy::kWidest, [](const Tensor& x) { return x.sqrt(); }},
    {"add", Policy::kWidest, [](const Tensor& x) { return x + 1.0; }},
    {"mul", Policy::kWidest, [](const Tensor& x) { return x * x; }},
    {"max", Policy::kWidest, [](const Tensor& x) { return x.max(); }},
    {"max_pool2d", Policy::kWidest,
     [](const Tensor& x) {
       return max_pool2d(x.view({1, 1, 3, 4}), 2);
     }},
    {"cat", Policy::kWidest,
     [](const Tensor& x) {
       return cat({x, x}, 0);
     }},
    {"dropout", Policy::kWidest, [](const Tensor& x) { return dropout(x, 0.5, false); }},
};

class Autocast : public ::testing::TestWithParam<PolicyCase> {
 protected:
  void SetUp() override { LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE(); }
};
INSTANTIATE_TEST_SUITE_P(Policies, Autocast, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

TEST_P(Autocast, PicksTheTypeAndStaysClose) {
  for (const DType low : {kBFloat16, kFloat16})
    for (const DType given : {kFloat32, low}) {
      SCOPED_TRACE(std::string(name(low)) + " from " + std::string(name(given)));
      const Tensor wide = leaf({3, 4}, 1), narrow = leaf({3, 4}, 1, given);
      const Tensor expected = GetParam().run(wide);
      Tensor found;
      {
        const AutocastGuard guard(low, test_device().type);
        found = GetParam().run(narrow);
      }
      Policy policy = GetParam().policy;
      if (policy == Policy::kLowOnGpus) policy = test_device().is_cuda() ? Policy::kLow : Policy::kWidest;
      if (policy == Policy::kFullOnCpus) policy = test_device().is_cuda() ? Policy::kWidest : Policy::kFull;
      EXPECT_EQ(name(found.dtype()), name(policy == Policy::kLow ? low : policy == Policy::kFull ? kFloat32 : given));
      const double tolerance = low == kBFloat16 ? 3e-2 : 5e-3;
      expect_close(cast_values(found.detach(), kFloat32), expected.detach(), tolerance, tolerance);
      // Gradients come in the type of what they belong to.
      wide.set_grad({});
      expected.backward(ones_like(expected));
      found.backward(ones_like(found));
      ASSERT_EQ(name(narrow.grad().dtype()), name(given));
      expect_close(cast_values(narrow.grad(), kFloat32), wide.grad(), 2 * tolerance, 2 * tolerance);
    }
}

TEST_P(Autocast, LeavesFloat64Alone) {
  const PolicyCase& c = GetParam();
  if (c.policy == Policy::kLow || std::string(c.name) == "mse_loss" || std::string(c.name) == "bce" ||
      std::string(c.name).find("norm") != std::string::npos)
    return;  // they have a second operand of float32
  const AutocastGuard guard(kBFloat16, test_device().type);
  EXPECT_EQ(c.run(leaf({3, 4}, 1, kFloat64)).dtype(), kFloat64);
}

TEST(AutocastGuard, CastsAParameterOnceUntilItChanges) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const Tensor w = leaf({4, 4}, 1);
  const auto address = [&] { return autocast::low(w).raw_data(); };
  const AutocastGuard outer(kBFloat16, test_device().type);
  const Tensor first = autocast::low(w);
  {
    const AutocastGuard inner(kBFloat16, test_device().type);
    EXPECT_EQ(address(), first.raw_data());
  }
  EXPECT_EQ(address(), first.raw_data());
  {
    const NoGradGuard no_grad;  // one that nobody can go backward through serves others not
    EXPECT_FALSE(autocast::low(w).requires_grad());
    w.mul_(2.0);
  }
  const Tensor second = autocast::low(w);
  EXPECT_TRUE(second.requires_grad() || !second.is_leaf());
  expect_close(cast_values(second.detach(), kFloat32), cast_values(cast_values(w.detach(), kBFloat16), kFloat32), 0, 0);
  {
    const AutocastGuard other(kFloat16, test_device().type);
    EXPECT_EQ(autocast::low(w).dtype(), kFloat16);
  }
  // A later backward() needs a graph of its own.
  (autocast::low(w) * 1.0).sum().backward();
  (autocast::low(w) * 1.0).sum().backward();
  expect_close(w.grad(), full({4, 4}, 2.0, options_of(w)), 0, 0);
}

TEST(AutocastGuard, CastsImagesToTheTypeOfTheirGrid) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const Tensor image = cast_values(input({1, 1, 3, 4}, 1, kFloat32), kBFloat16), grid = input({1, 2, 2, 2}, 2);
  const AutocastGuard guard(kBFloat16, test_device().type);
  const Tensor found = grid_sample(image, grid);
  EXPECT_EQ(name(found.dtype()), "float32");
  EXPECT_EQ(found.to_vector<float>(), grid_sample(image.to(kFloat32), grid).to_vector<float>());
}

TEST(AutocastGuard, EndsWithItsScopeAndThread) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const Tensor a = input({3, 4}, 1), b = input({4, 2}, 2);
  const DeviceType device = test_device().type;
  {
    const AutocastGuard guard(kBFloat16, device);
    {
      const AutocastGuard off(kFloat32, device);
      EXPECT_EQ(matmul(a, b).dtype(), kFloat32);
    }
    EXPECT_EQ(matmul(a, b).dtype(), kBFloat16);
    std::thread([&] { EXPECT_EQ(matmul(a, b).dtype(), kFloat32); }).join();
  }
  EXPECT_EQ(matmul(a, b).dtype(), kFloat32);
  {
    const AutocastGuard other(kBFloat16, device == kCPU ? kCUDA : kCPU);
    EXPECT_EQ(matmul(a, b).dtype(), kFloat32);
  }
  EXPECT_NE(error_of([&] { AutocastGuard(kInt64, device); }).find("float16 or bfloat16"), std::string::npos);
}

// What backward() computes is in the types of its operations, whoever calls it.
TEST(AutocastGuard, DoesNotTouchBackward) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const auto gradient = [](bool within) {
    const Tensor x = leaf({3, 4}, 1), w = leaf({5, 4}, 2);
    std::optional<AutocastGuard> guard(std::in_place, kBFloat16, test_device().type);
    const Tensor loss = (linear(x, w).softmax(1).log() * input({3, 5}, 3)).sum();
    if (!within) guard.reset();
    loss.backward();
    return w.grad();
  };
  EXPECT_EQ(gradient(true).to_vector<double>(), gradient(false).to_vector<double>());
}

// As DistributedDataParallel's reducer sees it.
TEST(AutocastGuard, HooksSeeFloat32) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const Tensor w = leaf({2, 4}, 2);
  int calls = 0;
  w.register_post_accumulate_grad_hook([&](const Tensor& t) {
    ++calls;
    EXPECT_EQ(t.grad().dtype(), kFloat32);
  });
  Tensor loss;
  {
    const AutocastGuard guard(kFloat16, test_device().type);
    const Tensor x = input({3, 4}, 1);
    loss = (linear(x, w).sum() + linear(x, w).sum());
  }
  loss.backward();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace lockstep::testing
