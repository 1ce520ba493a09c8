// Functions of each element of large tensors, which are computed together (Note [Elementwise chains]).

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/autograd/backward.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/elementwise_computation.h"
#include "lockstep/core/random.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/pending_values.h"

namespace lockstep {
namespace {

using testing::AtTheCall;
using testing::error_of;
using testing::is_pending;
using testing::make_input;

const Shape kLarge{60, 520};

/// Tensors of this file are large for its tests.
class ElementwiseChains : public ::testing::Test {
 protected:
  ElementwiseChains() { ElementwiseComputation::set_least(20000); }
  ~ElementwiseChains() override { ElementwiseComputation::set_least(least_); }

 private:
  const std::int64_t least_ = ElementwiseComputation::least();
};

std::vector<double> values_of(const Tensor& tensor) {
  return tensor.defined() ? tensor.to(kFloat64).to_vector<double>() : std::vector<double>();
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

/// Of memory whose address nobody has.
Tensor large(std::uint32_t seed) {
  return make_input(kLarge, seed, kFloat32).clone();
}

Tensor large_leaf(std::uint32_t seed) {
  const Tensor x = large(seed);
  x.set_requires_grad(true);
  return x;
}

TEST_F(ElementwiseChains, AnExpressionIsComputedWhenItIsRead) {
  const Tensor x = large(1), y = large(2);
  const Tensor difference = x - y, root = sqrt(difference * difference + 1e-3);
  EXPECT_TRUE(is_pending(difference));
  EXPECT_TRUE(is_pending(root));
  const std::vector<double> values = values_of(root);
  EXPECT_FALSE(is_pending(root));
  const AtTheCall at_the_call;
  const Tensor now = x - y;
  EXPECT_FALSE(is_pending(now));
  EXPECT_TRUE(same_bits(values, values_of(sqrt(now * now + 1e-3))));
  EXPECT_TRUE(same_bits(values_of(difference), values_of(now)));
}

TEST_F(ElementwiseChains, SmallTensorsIntegersAndLentMemoryAreComputedAtTheCall) {
  EXPECT_FALSE(is_pending(make_input({4, 4}, 1, kFloat32) + 1.0));
  EXPECT_FALSE(is_pending(ones(kLarge, {.dtype = kInt64}) + 1));
  const Tensor lent = large(1);
  (void)lent.data<float>();
  EXPECT_FALSE(is_pending(lent + 1.0));
  EXPECT_FALSE(is_pending(large(2) * lent));
}

TEST_F(ElementwiseChains, ResultsAreWhereTheirOperandsAre) {
  const Tensor x = large(1).to(Device{kCPU, 1});
  const Tensor doubled = x * 2.0, mask = doubled > 0.0, chosen = where(mask, doubled, tanh(doubled));
  for (const Tensor& each : {doubled, mask, chosen, sum(chosen, {0})}) EXPECT_EQ(each.device(), x.device());
  (void)values_of(chosen.to(Device{kCPU, 0}));
  for (const Tensor& each : {doubled, mask, chosen}) EXPECT_EQ(each.device(), x.device());
}

TEST_F(ElementwiseChains, ErrorsOfArgumentsComeAtTheCall) {
  EXPECT_NE(error_of([] { (void)(large(1) * ones({521})); }).find("[mul]"), std::string::npos);
  EXPECT_NE(error_of([] { (void)(large(1) + Tensor()); }).find("undefined"), std::string::npos);
}

TEST_F(ElementwiseChains, OperandsCountAsTheyWereAtTheCall) {
  const std::function<void(const Tensor&)> changes[] = {
      [](const Tensor& x) { x.add_(1.0); },
      [](const Tensor& x) { x.fill_(0.0); },
      [](const Tensor& x) { x.narrow(0, 3, 20).mul_(2.0); },
      [](const Tensor& x) { x.copy_(large(9)); },
      [](const Tensor& x) { x.zero_(); },
  };
  for (const auto& change : changes) {
    const auto run = [&] {
      const NoGradGuard values_only;
      const Tensor x = large(1).clone();
      const Tensor a = tanh(x), b = a * x, c = b - a;
      change(x);
      const Tensor d = c + x;
      change(a);  // pending itself, and read by others
      std::vector<double> result = values_of(d * a);
      for (const Tensor& each : {b, c, x, a}) {
        const std::vector<double> more = values_of(each);
        result.insert(result.end(), more.begin(), more.end());
      }
      return result;
    };
    const std::vector<double> together = run();
    const AtTheCall at_the_call;
    EXPECT_TRUE(same_bits(together, run()));
  }
}

TEST_F(ElementwiseChains, AChangeOfWhatBackwardKeepsIsAnError) {
  const Tensor x = large_leaf(1);
  const Tensor root = sqrt(x * x + 1.0);
  const Tensor result = root * 2.0;
  {
    const NoGradGuard values_only;
    root.add_(1.0);
  }
  EXPECT_NE(error_of([&] { result.sum().backward(); }).find("SqrtBackward"), std::string::npos);
}

TEST_F(ElementwiseChains, WhatLiesBetweenIsKeptOnlyIfItIsDearAndHeld) {
  const Tensor x = large(1);
  const Tensor cheap = x * 2.0, dear = lgamma(cheap), result = dear + 1.0;
  (void)values_of(result);
  EXPECT_TRUE(is_pending(cheap));
  EXPECT_FALSE(is_pending(dear));
  const Tensor y = large(2), of_two = x + y;  // pending, it would hold twice its memory
  (void)values_of(of_two * 3.0);
  EXPECT_FALSE(is_pending(of_two));
}

TEST_F(ElementwiseChains, AReductionReadsWhatIsNeverWritten) {
  const Tensor x = large(1), y = large(2);
  const Tensor squares = x * x;
  const double total = (squares * 0.5).sum().item();
  const std::vector<double> rows = values_of(mean(squares, {1})), columns = values_of(sum(squares, {0}));
  EXPECT_TRUE(is_pending(squares));
  const AtTheCall at_the_call;
  const Tensor now = x * x;
  EXPECT_EQ(total, (now * 0.5).sum().item());
  EXPECT_TRUE(same_bits(rows, values_of(mean(now, {1}))));
  EXPECT_TRUE(same_bits(columns, values_of(sum(now, {0}))));
}

TEST_F(ElementwiseChains, LongExpressionsAreComputedInParts) {
  const auto run = [] {
    Tensor x = large(1);
    for (int i = 0; i < 500; ++i) x = i % 3 == 0 ? x * 0.99 : i % 3 == 1 ? x + large(7) : tanh(x);
    Tensor doubled = large(3);  // an expression that has its operand twice each time
    for (int i = 0; i < 40; ++i) doubled = (doubled + doubled) * 0.5;
    return values_of(x + doubled);
  };
  const std::vector<double> together = run();
  const AtTheCall at_the_call;
  EXPECT_TRUE(same_bits(together, run()));
}

TEST_F(ElementwiseChains, HooksAndRetainedGradientsSeeTrueValues) {
  const auto run = [] {
    const Tensor x = large_leaf(1);
    const Tensor middle = exp(x * 0.5);
    middle.retain_grad();
    std::vector<double> seen;
    middle.register_hook([&](const Tensor& grad) {
      seen = values_of(grad);
      return grad * 2.0;
    });
    (middle * middle + x).sum().backward();
    std::vector<double> result = values_of(x.grad());
    for (const auto& more : {seen, values_of(middle.grad())}) result.insert(result.end(), more.begin(), more.end());
    return result;
  };
  const std::vector<double> together = run();
  const AtTheCall at_the_call;
  EXPECT_TRUE(same_bits(together, run()));
}

TEST_F(ElementwiseChains, ThreadsMayReadWhatOthersCompute) {
  const Tensor x = large(1), y = large(2);
  const auto expected = [&] {
    const AtTheCall at_the_call;
    return std::pair(values_of(exp(x * y) - y), values_of((exp(x * y) - y) * x));
  }();
  for (int round = 0; round < 20; ++round) {
    const Tensor product = x * y, power = exp(product), a = power - y, b = a * x;
    std::vector<std::vector<double>> found(4);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < found.size(); ++i)
      threads.emplace_back([&, i] { found[i] = values_of(i % 2 == 0 ? a : b); });
    for (std::thread& each : threads) each.join();
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_TRUE(same_bits(found[i], i % 2 == 0 ? expected.first : expected.second)) << round << " " << i;
  }
}

TEST_F(ElementwiseChains, GradientsAndStatesCountAsTheyWere) {
  const Tensor weight = large_leaf(1), x = large(2);
  const auto pass = [&] { (weight * x).sum().backward(); };
  pass();
  const Tensor first = weight.grad() * 2.0;
  EXPECT_TRUE(is_pending(first));
  pass();  // added to in place
  EXPECT_TRUE(same_bits(values_of(first), values_of(x * 2.0)));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which keep memory of their own

double resident_mib() {
  std::ifstream statm("/proc/self/statm");
  double size = 0, resident = 0;
  statm >> size >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

TEST_F(ElementwiseChains, ResultsThatAreKeptDoNotKeepTheirOperands) {
  const Shape sizes{256, 1024};  // a mebibyte
  const auto fresh = [&] { return lockstep::rand(sizes); };
  const std::function<Tensor()> programs[] = {
      [&] {
        return lockstep::rand({2560, 1024}).narrow(0, 20, 256) * 2.0;
      },
      [&] { return fresh() * fresh() + fresh(); },
      [&] { return fresh() + fresh() + fresh() + fresh(); },
      [&] { return (fresh() - fresh()).abs() > 0.1; },
      [&] { return fresh() > 0.5; },
      [&] { return where(fresh() > 0.5, fresh(), 1.0); },
  };
  for (std::size_t i = 0; i < std::size(programs); ++i) {
    const double before = resident_mib();
    std::vector<Tensor> kept;
    for (int k = 0; k < 60; ++k) kept.push_back(programs[i]());
    EXPECT_LT(resident_mib() - before, 100.0) << i;
  }
  const double before = resident_mib();
  Tensor total = fresh();
  for (int i = 0; i < 200; ++i) total = total + fresh();
  EXPECT_LT(resident_mib() - before, 30.0);
}

#endif

TEST_F(ElementwiseChains, WhatIsReadAgainIsNotComputedAgain) {
  const NoGradGuard values_only;
  Tensor h = large(1);
  for (int i = 0; i < 20; ++i) {
    h = tanh(h);
    (void)mean(h).item();
    EXPECT_FALSE(is_pending(h));  // it took longer than a sum
  }
  const Tensor doubled = h * 2.0;
  for (int i = 0; i < 9; ++i) (void)mean(doubled).item();
  EXPECT_FALSE(is_pending(doubled));
}

/// A program of random operations on large tensors and what broadcasts to them, its results and its gradients.
class RandomProgram {
 public:
  explicit RandomProgram(std::uint64_t seed) : random_(seed), seed_(seed) {}

  std::vector<std::vector<double>> run() {
    static const Shape kShapes[] = {{256, 130},     {64, 513},  {33333},   {8, 64, 70},
                                    {5, 7, 31, 33}, {40000, 1}, {3, 20000}};
    static const DType kTypes[] = {kFloat32, kFloat32, kFloat32, kFloat64, kBFloat16, kFloat16};
    sizes_ = kShapes[index(std::size(kShapes))];
    type_ = kTypes[index(std::size(kTypes))];
    const int leaves = 2 + draw(4);
    for (int i = 0; i < leaves; ++i) values_.push_back(leaf());
    const int steps = 3 + draw(20);
    for (int i = 0; i < steps; ++i) step();
    std::vector<std::vector<double>> results;
    Tensor loss = zeros({}, {.dtype = kFloat64});
    for (std::size_t i = 0; i < values_.size(); ++i)
      if (draw(3) == 0 || i + 2 >= values_.size()) loss = loss + mean(values_[i].to(kFloat64));
    try {
      if (loss.requires_grad()) loss.backward();
    } catch (const Error& error) {  // the program changed what is needed
      results.push_back({static_cast<double>(std::strlen(error.what()))});
    }
    for (const Tensor& each : values_)
      if (draw(2) == 0) results.push_back(values_of(each));
    for (const Tensor& each : leaves_) results.push_back(values_of(each.grad()));
    results.push_back(values_of(loss));
    return results;
  }

 private:
  int draw(std::size_t n) { return static_cast<int>(random_() % n); }

  std::size_t index(std::size_t n) { return static_cast<std::size_t>(draw(n)); }

  Tensor leaf() {
    Shape sizes = sizes_;
    const int kind = draw(7);
    if (kind == 1)
      for (int d = 0; d < sizes.dim(); ++d)
        if (draw(2) == 0) sizes[d] = 1;
    if (kind == 2) sizes = Shape{sizes.back()};
    if (kind == 3) sizes = {};
    const bool turned = kind == 4 && sizes.dim() > 1, part = kind == 5;
    if (turned) std::swap(sizes[0], sizes[sizes.dim() - 1]);
    if (part) sizes[0] += 3;
    const DType type = draw(8) == 0 ? kFloat32 : type_;
    const Tensor x = (make_input(sizes, static_cast<std::uint32_t>(seed_ * 100 + ++made_), kFloat32) * 1.0).to(type);
    x.set_requires_grad(draw(3) != 0);
    leaves_.push_back(x);
    if (turned) return x.transpose(0, sizes.dim() - 1);
    return part ? x.narrow(0, draw(4), sizes_[0]) : x;
  }

  void step() {
    const Tensor a = values_[index(values_.size())], b = values_[index(values_.size())];
    const double number = draw(9) * 0.25 + 0.5;
    static const std::function<Tensor(const Tensor&, const Tensor&, double)> kOperations[] = {
        [](auto& a, auto& b, double) { return a + b; },
        [](auto& a, auto& b, double) { return a - b; },
        [](auto& a, auto& b, double) { return a * b; },
        [](auto& a, auto& b, double n) { return a / (b * b + n); },
        [](auto& a, auto& b, double) { return maximum(a, b); },
        [](auto& a, auto& b, double n) { return lerp(a, b, n * 0.4); },
        [](auto& a, auto&, double n) { return a * n; },
        [](auto& a, auto&, double n) { return n - a; },
        [](auto& a, auto&, double n) { return n / (a * a + 1.0); },
        [](auto& a, auto&, double) { return tanh(a); },
        [](auto& a, auto&, double) { return sigmoid(a); },
        [](auto& a, auto&, double) { return relu(a); },
        [](auto& a, auto&, double) { return gelu(a); },
        [](auto& a, auto&, double) { return silu(a); },
        [](auto& a, auto&, double) { return sqrt(a * a + 0.25); },
        [](auto& a, auto&, double) { return exp(clamp(a, -2.0, 2.0)); },
        [](auto& a, auto&, double) { return square(a); },
        [](auto& a, auto&, double) { return -a; },
        [](auto& a, auto&, double) { return a.dim() == 0 ? a : a - mean(a, {-1}, true); },
        [](auto& a, auto&, double) { return a.dim() == 0 ? a : a * rsqrt(sum(a * a, {0}, true) + 1.0); },
        [](auto& a, auto&, double) { return a.dim() == 0 ? a : exp(a - amax(a, {-1}, true)); },
        [](auto& a, auto&, double) { return a - mean(a); },
        [](auto& a, auto&, double) { return a.reshape({-1}).reshape(a.sizes()) * 1.5; },
        [](auto& a, auto& b, double) { return where(a > b, a, b * 2.0); },
        [](auto& a, auto&, double) { return a.detach() + 1.0; },
        [](auto& a, auto& b, double n) { return (a < b).to(a.dtype()) * n; },
        [](auto& a, auto& b, double n) { return where(logical_or(isnan(a), a * n > b), 1.0, a); },
        [](auto& a, auto&, double n) { return where(a != n, a, Scalar(n)) * (a >= 0.0); },
        [](auto& a, auto&, double n) { return (a * n).to(kBFloat16).to(kFloat32) - 1.0; },
        [](auto& a, auto&, double n) { return (a + n).to(kFloat64) * n; },
        [](auto& a, auto&, double) { return a.dim() == 0 ? a : softmax(a * 2.0, -1); },
        [](auto& a, auto& b, double) { return a.dim() == 0 ? a : log_softmax(a + b, -1); },
        [](auto& a, auto&, double) { return a.dim() == 0 ? a : var(a, {-1}, 0, true) * a; },
    };
    const Tensor result = kOperations[index(std::size(kOperations))](a, b, number);
    values_.push_back(result);
    if (draw(12) == 0) {
      const NoGradGuard values_only;
      if (!result.requires_grad()) result.mul_(0.5);
    }
    if (draw(8) == 0 && values_.size() > 3) values_.erase(values_.begin() + draw(values_.size() - 1));
  }

  std::mt19937_64 random_;
  std::uint64_t seed_, made_ = 0;
  Shape sizes_;
  DType type_ = kFloat32;
  std::vector<Tensor> leaves_, values_;
};

TEST_F(ElementwiseChains, RandomProgramsHaveTheBitsOfOperationsOneByOne) {
  const int threads = num_threads();
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto together = RandomProgram(seed).run();
    set_num_threads(seed % 2 == 0 ? 1 : 3);
    const auto again = RandomProgram(seed).run();
    const AtTheCall at_the_call;
    const auto expected = RandomProgram(seed).run();
    set_num_threads(threads);
    ASSERT_EQ(together.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(same_bits(together[i], expected[i])) << "program " << seed << ", result " << i;
      ASSERT_TRUE(same_bits(again[i], expected[i])) << "program " << seed << ", result " << i << ", other threads";
    }
  }
}

}  // namespace
}  // namespace lockstep
