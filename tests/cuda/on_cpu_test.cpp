// Note [Operations of the CPU alone]: on a device they give the CPU's values and gradients, to the bit.

#include <gtest/gtest.h>

#include <functional>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/cuda/graph.h"
#include "lockstep/core/cuda/stream.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

using Operation = std::function<std::vector<Tensor>(const Tensor&)>;

/// The results and the gradient of the floating-point ones, each weighted.
std::vector<std::vector<double>> found_on(Device device, const Tensor& values, const Operation& operation) {
  const Tensor x = values.detach().to(device).requires_grad_();
  std::vector<std::vector<double>> found;
  Tensor total = zeros({}, {.dtype = values.dtype(), .device = device});
  for (const Tensor& each : operation(x)) {
    EXPECT_EQ(each.device(), device);
    found.push_back(each.to_vector<double>());
    if (each.is_floating_point()) total = total + sum(each * make_input(each.sizes(), 5, values.dtype()).to(device));
  }
  total.backward();
  EXPECT_EQ(x.grad().device(), device);
  found.push_back(x.grad().to(kCPU).to_vector<double>());
  return found;
}

TEST(OnCpu, ADeviceGetsTheCpusValuesAndGradients) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const Tensor any = make_input({3, 4, 4}, 1, kFloat64);
  const Tensor positive = matmul(any, any.transpose(1, 2)) + eye(4, 4, {.dtype = kFloat64});
  const Tensor right = make_input({4, 2}, 2, kFloat64), log_probs = log_softmax(make_input({6, 2, 5}, 3, kFloat64), 2);
  const Tensor labels = tensor({{1, 2, 1}, {3, 4, 0}}).to(kInt64),
               places = tensor({0, 1, 1, 0}).view({1, 4, 1}).expand({3, 4, 4});
  const struct {
    const char* name;
    Tensor x;
    Operation operation;
  } cases[] = {
      {"solve", any, [&](const Tensor& x) -> std::vector<Tensor> { return {linalg::solve(x, right.to(x.device()))}; }},
      {"inv", any, [](const Tensor& x) -> std::vector<Tensor> { return {linalg::inv(x)}; }},
      {"det", any, [](const Tensor& x) -> std::vector<Tensor> { return {linalg::det(x)}; }},
      {"slogdet", any,
       [](const Tensor& x) -> std::vector<Tensor> {
         const auto [sign, logabsdet] = linalg::slogdet(x);
         return {sign.detach(), logabsdet};
       }},
      {"cholesky", positive, [](const Tensor& x) -> std::vector<Tensor> { return {linalg::cholesky(x)}; }},
      {"qr", any,
       [](const Tensor& x) -> std::vector<Tensor> {
         const auto [q, r] = linalg::qr(x);
         return {q, r};
       }},
      {"eigh", positive,
       [](const Tensor& x) -> std::vector<Tensor> {
         const auto [values, vectors] = linalg::eigh(x);
         return {values, vectors};
       }},
      {"svd", any,
       [](const Tensor& x) -> std::vector<Tensor> {
         const auto [u, s, vh] = linalg::svd(x);
         return {u, s, vh};
       }},
      {"cummax", any,
       [](const Tensor& x) -> std::vector<Tensor> {
         const auto [values, indices] = cummax(x, 1);
         return {values, indices};
       }},
      {"logcumsumexp", any, [](const Tensor& x) -> std::vector<Tensor> { return {logcumsumexp(x, -1)}; }},
      {"scatter_reduce", any,
       [&](const Tensor& x) -> std::vector<Tensor> {
         return {scatter_reduce(x, 1, places.to(x.device()), x * 2, "amax")};
       }},
      {"ctc_loss", log_probs,
       [&](const Tensor& x) -> std::vector<Tensor> {
         return {ctc_loss(x, labels.to(x.device()), {6, 5}, {3, 2})};
       }},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    EXPECT_EQ(found_on(test_device(), each.x, each.operation), found_on(kCPU, each.x, each.operation));
  }
}

// As in PyTorch, a tensor without dimensions on the CPU is a number beside a tensor on a device.
TEST(OnCpu, ANumberMayStayOnTheCpu) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  using Pair = std::function<Tensor(const Tensor&, const Tensor&)>;
  const struct {
    const char* name;
    Pair operation;
  } cases[] = {
      {"add", [](const Tensor& a, const Tensor& b) { return add(a, b, 2.0); }},
      {"sub", [](const Tensor& a, const Tensor& b) { return b - a; }},
      {"mul", [](const Tensor& a, const Tensor& b) { return a * b; }},
      {"div", [](const Tensor& a, const Tensor& b) { return b / a; }},
      {"pow", [](const Tensor& a, const Tensor& b) { return pow(abs(a), b); }},
      {"maximum", [](const Tensor& a, const Tensor& b) { return maximum(a, b); }},
      {"where", [](const Tensor& a, const Tensor& b) { return where(a > b, a, b); }},
      {"fmod", [](const Tensor& a, const Tensor& b) { return fmod(a, b) + remainder(a, b); }},
      {"floor_divide",
       [](const Tensor& a, const Tensor& b) { return floor_divide(a, b) + floor_divide(b, a) + a * b; }},
      {"atan2", [](const Tensor& a, const Tensor& b) { return atan2(a, b) + atan2(b, a); }},
      {"hypot", [](const Tensor& a, const Tensor& b) { return hypot(a, b); }},
      {"logaddexp", [](const Tensor& a, const Tensor& b) { return logaddexp(b, a); }},
      {"xlogy", [](const Tensor& a, const Tensor& b) { return xlogy(a, b) + xlogy(b, abs(a)); }},
      {"copysign", [](const Tensor& a, const Tensor& b) { return copysign(a, b) + copysign(b, a); }},
      {"lerp", [](const Tensor& a, const Tensor& b) { return lerp(a, b, 0.25) + lerp(b, a, 0.75); }},
      {"lerp by tensors",
       [](const Tensor& a, const Tensor& b) { return lerp(a, b, b) + lerp(b, a, b) + lerp(b, b, a); }},
      {"lerp in place",
       [](const Tensor& a, const Tensor& b) {
         const Tensor c = a * 1.0;
         return c.lerp_(b, 0.25);
       }},
      {"in place",
       [](const Tensor& a, const Tensor& b) {
         const Tensor c = a * 1.0;
         c.mul_(b).add_(b);
         c -= b;
         return c /= b;
       }},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    const auto run = [&](Device device) {
      const Tensor a = make_input({3, 4}, 1, kFloat64).to(device).requires_grad_(),
                   b = full({}, 0.5, {.dtype = kFloat64}).requires_grad_();
      const Tensor y = each.operation(a, b);
      EXPECT_EQ(y.device(), device);
      sum(y * y).backward();
      EXPECT_EQ(a.grad().device(), device);
      EXPECT_EQ(b.grad().device(), Device(kCPU));
      return std::vector<std::vector<double>>{y.to_vector<double>(), a.grad().to_vector<double>(),
                                              b.grad().to_vector<double>()};
    };
    const auto found = run(test_device()), expected = run(kCPU);
    for (std::size_t i = 0; i < found.size(); ++i)
      for (std::size_t j = 0; j < found[i].size(); ++j) EXPECT_NEAR(found[i][j], expected[i][j], 1e-12);
  }
  // What has dimensions is not moved by itself, and a result does not go to the CPU.
  const Tensor there = ones({2}).to(test_device());
  EXPECT_NE(error_of([&] { there + ones({2}); }).find("on one device"), std::string::npos);
  EXPECT_NE(error_of([&] { lerp(ones({2}), there, ones({2})); }).find("[lerp] expected both"), std::string::npos);
  EXPECT_NE(error_of([&] { lerp(ones({2}), ones({2}), there); }).find("[lerp] expected both"), std::string::npos);
  const Tensor of_integers = arange(6).to(test_device()), mask = full({}, 3, {.dtype = kInt64});
  EXPECT_EQ(bitwise_and(of_integers, mask).to_vector<double>(), (std::vector<double>{0, 1, 2, 3, 0, 1}));
  EXPECT_NE(error_of([&] { ones({}).mul_(there.select(0, 0)); }).find("on one device"), std::string::npos);
}

TEST(OnCpu, ACapturedGraphCannotHoldThem) {
  if (!test_device().is_cuda()) GTEST_SKIP() << "LOCKSTEP_TEST_DEVICE names no CUDA device";
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const Tensor x = (make_input({3, 3}, 1, kFloat32) + eye(3, 3, {.dtype = kFloat32})).to(test_device());
  const std::string message = error_of([&] {
    const cuda::Stream stream = cuda::Stream::create(test_device().index);
    const cuda::StreamGuard on(stream);
    cuda::Graph::capture(stream, [&] { linalg::inv(x); });
  });
  EXPECT_NE(message.find("captur"), std::string::npos) << message;
  // And afterwards all is as before.
  EXPECT_EQ(linalg::inv(x).to_vector<float>(), linalg::inv(x.to(kCPU)).to_vector<float>());
}

}  // namespace
}  // namespace lockstep::testing
