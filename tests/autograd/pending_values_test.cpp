// Results that are computed when they are first read (Note [Pending values]): the same bits as at the call, whatever
// happens between.

#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/computation.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::error_of;
using testing::make_input;
using testing::make_leaf;

/// Without fusion for its lifetime.
class AtTheCall {
 public:
  AtTheCall() { set_fusion(false); }
  ~AtTheCall() { set_fusion(true); }
};

bool is_pending(const Tensor& tensor) {
  return tensor.storage()->is_pending();
}

std::vector<float> bits(const Tensor& tensor) {
  return tensor.defined() ? tensor.to_vector<float>() : std::vector<float>();
}

/// Equal to the bit: NaN and the sign of zero count.
::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " elements";
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]))
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
  return ::testing::AssertionSuccess();
}

using Step = std::function<Tensor(const Tensor&)>;

/// Operations on an input x with parameters.
struct Chain {
  std::string name;
  Shape x, weight;
  std::function<std::vector<Step>(const std::vector<Tensor>& parameters)> steps;
};

Step convolution(const std::vector<Tensor>& p, Conv2dOptions options = {}) {
  return [=](const Tensor& x) { return conv2d(x, p[0], p[1], options); };
}
Step product(const std::vector<Tensor>& p) {
  return [=](const Tensor& x) { return linear(x, p[0], p[1]); };
}
Tensor pool(const Tensor& x) {
  return max_pool2d(x, 2);
}
Tensor normalized(const Tensor& x) {
  return batch_norm(x, {}, {}, {.weight = make_input({x.size(1)}, 5, kFloat32), .training = true});
}
Tensor rectified(const Tensor& x) {
  return relu(x);
}

const Chain kChains[] = {
    {"conv_relu",
     {3, 2, 9, 8},
     {5, 2, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), rectified};
     }},
    {"conv_pool",
     {3, 2, 9, 8},
     {5, 2, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), pool};
     }},
    {"conv_pool_relu",
     {5, 1, 28, 28},
     {10, 1, 5, 5},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), pool, rectified};
     }},
    {"conv_relu_pool",
     {5, 3, 13, 12},
     {6, 3, 5, 5},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), rectified, pool};
     }},
    {"conv_relu_pool_relu",
     {2, 3, 9, 8},
     {4, 3, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), rectified, pool, rectified};
     }},
    {"wide_conv_relu_pool",
     {3, 32, 9, 8},
     {40, 32, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p, {.padding = 1}), rectified, pool};
     }},
    {"strided_conv_pool_relu",
     {2, 3, 17, 16},
     {4, 3, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p, {.stride = 2}), pool, rectified};
     }},
    {"conv_other_pool",
     {2, 3, 9, 8},
     {4, 3, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), rectified, [](const Tensor& x) { return max_pool2d(x, 3, {.stride = 2}); }};
     }},
    {"conv_relu_relu",
     {2, 3, 9, 8},
     {4, 3, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), rectified, rectified};
     }},
    {"linear_relu",
     {37, 21},
     {18, 21},
     [](const auto& p) -> std::vector<Step> {
       return {product(p), rectified};
     }},
    {"linear_relu_3d",
     {3, 5, 21},
     {18, 21},
     [](const auto& p) -> std::vector<Step> {
       return {product(p), rectified};
     }},
    {"linear_relu_twice",
     {7, 18},
     {18, 18},
     [](const auto& p) -> std::vector<Step> {
       return {product(p), rectified, product(p), rectified};
     }},
    {"conv_norm_relu",
     {3, 2, 9, 8},
     {5, 2, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), normalized, rectified};
     }},
    {"norm_sum_relu",
     {6, 5, 7, 9},
     {5, 5, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p, {.padding = 1}), normalized,
               [](const Tensor& x) { return x + make_input(x.sizes(), 9, kFloat32); }, rectified};
     }},
    {"norm_sum_other_way",
     {6, 5, 7, 9},
     {5, 5, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), normalized, [](const Tensor& x) { return make_input(x.sizes(), 9, kFloat32) + x; }};
     }},
    {"norm_sum_norm",
     {6, 5, 7, 9},
     {5, 5, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), [](const Tensor& x) { return relu(normalized(x) + normalized(x * 2.0)); }};
     }},
    {"norm_pool_relu",
     {6, 5, 7, 9},
     {5, 5, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), normalized, pool, rectified};
     }},
    {"norm_of_rows",
     {6, 9},
     {5, 9},
     [](const auto& p) -> std::vector<Step> {
       return {product(p), normalized, rectified};
     }},
    {"linear_sum",
     {6, 9},
     {9, 9},
     [](const auto& p) -> std::vector<Step> {
       return {[=](const Tensor& x) { return x + linear(x, p[0], p[1]); }, rectified};
     }},
    {"conv_pool_view_linear",
     {3, 1, 8, 8},
     {4, 1, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), pool, [](const Tensor& x) { return x.flatten(1); }, rectified};
     }},
};

struct Results {
  std::vector<std::vector<float>> values;
};

void expect_same(const Results& a, const Results& b, const std::string& what) {
  ASSERT_EQ(a.values.size(), b.values.size());
  for (std::size_t i = 0; i < a.values.size(); ++i)
    EXPECT_TRUE(same_bits(a.values[i], b.values[i])) << what << ": " << i;
}

enum class Reads { nothing, values, gradients, all };

/// The chain's result and gradients, with what lies between read, or not. `special`: some inputs are NaN, -0 and 0.
Results run(const Chain& chain, Reads reads, bool special = false) {
  const bool reads_values = reads == Reads::values || reads == Reads::all;
  const bool reads_gradients = reads == Reads::gradients || reads == Reads::all;
  const Tensor x = make_leaf(chain.x, 1, kFloat32);
  const std::vector<Tensor> parameters = {make_leaf(chain.weight, 2, kFloat32),
                                          make_leaf({chain.weight[0]}, 3, kFloat32)};
  if (special) {
    float* const values = x.data<float>();
    values[7] = std::numeric_limits<float>::quiet_NaN();
    std::fill_n(values + 10, 40, -0.0f);
    parameters[1].data<float>()[0] = -0.0f;
    parameters[1].data<float>()[1] = 0.0f;
  }
  Tensor y = x;
  std::vector<Tensor> between;
  for (const Step& step : chain.steps(parameters)) {
    y = step(y);
    between.push_back(y);
    if (reads_values) (void)bits(y);
    if (reads_gradients)
      y.register_hook([](const Tensor& grad) {
        (void)bits(grad);
        return Tensor();
      });
  }
  y.backward(make_input(y.sizes(), 4, kFloat32));
  Results results{{bits(y), bits(x.grad()), bits(parameters[0].grad()), bits(parameters[1].grad())}};
  for (const Tensor& each : between) results.values.push_back(bits(each));
  return results;
}

TEST(PendingValues, BitsDoNotDependOnWhatIsRead) {
  const int before = num_threads();
  for (const Chain& chain : kChains)
    for (const bool special : {false, true}) {
      set_num_threads(1);
      const Results expected = [&] {
        const AtTheCall at_the_call;
        return run(chain, Reads::all, special);
      }();
      for (const int threads : {1, 2, 3}) {
        set_num_threads(threads);
        for (const Reads reads : {Reads::nothing, Reads::values, Reads::gradients, Reads::all})
          expect_same(run(chain, reads, special), expected,
                      chain.name + " reading " + std::to_string(static_cast<int>(reads)));
        const AtTheCall at_the_call;
        expect_same(run(chain, Reads::nothing, special), expected, chain.name + " at the call");
      }
    }
  set_num_threads(before);
}

/// A block as in LeNet; its operands.
struct Block {
  Tensor x = make_leaf({4, 2, 10, 10}, 1, kFloat32);
  Tensor weight = make_leaf({6, 2, 3, 3}, 2, kFloat32), bias = make_leaf({6}, 3, kFloat32);

  Tensor convolve() const { return conv2d(x, weight, bias); }
  Tensor operator()() const { return relu(max_pool2d(convolve(), 2)); }
  /// As if nothing had been left pending.
  std::vector<float> expected() const {
    const AtTheCall at_the_call;
    return bits((*this)());
  }
};

TEST(PendingValues, WhatIsComputedTogetherLeavesTheRestPending) {
  const Block block;
  const Tensor convolved = block.convolve(), pooled = max_pool2d(convolved, 2), result = relu(pooled);
  EXPECT_TRUE(is_pending(result));
  (void)bits(result);
  EXPECT_FALSE(is_pending(result));
  EXPECT_TRUE(is_pending(pooled));
  EXPECT_TRUE(is_pending(convolved));
  result.sum().backward();
  EXPECT_TRUE(is_pending(convolved));
  const AtTheCall at_the_call;
  EXPECT_TRUE(same_bits(bits(convolved), bits(block.convolve())));
}

TEST(PendingValues, ALayerBeginsWithItsInputComputed) {
  const Block block;
  const Tensor first = block(), second = linear(first.flatten(1), make_input({3, 96}, 4, kFloat32));
  EXPECT_FALSE(is_pending(first));
  EXPECT_TRUE(is_pending(second));
}

TEST(PendingValues, OrdinaryOperandsAreNotDeferred) {
  const Tensor x = make_input({4, 4}, 1, kFloat32);
  EXPECT_FALSE(is_pending(relu(x)));
  EXPECT_FALSE(is_pending(x + 1.0));
}

TEST(PendingValues, ErrorsOfArgumentsComeAtTheCall) {
  const Block block;
  EXPECT_NE(error_of([&] { (void)conv2d(block.x, ones({6, 3, 3, 3})); }).find("[conv2d]"), std::string::npos);
  EXPECT_NE(error_of([&] { (void)max_pool2d(block.convolve(), 20); }).find("[max_pool2d]"), std::string::npos);
}

TEST(PendingValues, InputsCountAsTheyWereAtTheCall) {
  using Change = std::function<void(Block&)>;
  const NoGradGuard no_grad;
  const std::pair<const char*, Change> changes[] = {
      {"fill_", [](Block& b) { b.x.fill_(3.0); }},
      {"add_", [](Block& b) { b.x.add_(1.0); }},
      {"mul_ by itself", [](Block& b) { b.weight.mul_(b.weight); }},
      {"copy_", [](Block& b) { b.bias.copy_(ones({6})); }},
      {"a view", [](Block& b) { b.x.select(0, 1).zero_(); }},
      {"detach()", [](Block& b) { b.weight.detach().zero_(); }},
      {"copy_values()", [](Block& b) { copy_values(zeros(b.weight.sizes()), b.weight); }},
      {"data()", [](Block& b) { b.x.data<float>()[5] = 9.0f; }},
      {"raw_data()", [](Block& b) { static_cast<float*>(b.weight.raw_data())[5] = 9.0f; }},
  };
  for (const auto& [what, change] : changes) {
    Block block;
    const std::vector<float> expected = block.expected();
    const Tensor result = block(), convolved = block.convolve();
    change(block);
    EXPECT_TRUE(same_bits(bits(result), expected)) << what;
    EXPECT_FALSE(is_pending(convolved)) << what;
    EXPECT_FALSE(same_bits(bits(block()), expected)) << what << " changed nothing";
  }
}

// An address that was given before the call, and is written through after it.
TEST(PendingValues, AnAddressGivenEarlierMayBeWrittenLater) {
  Block block;
  const std::vector<float> expected = block.expected();
  for (Tensor* const operand : {&block.x, &block.weight, &block.bias}) {
    float* const address = operand->data<float>();
    const Tensor result = block();
    const float kept = std::exchange(address[3], 1e6f);
    EXPECT_TRUE(same_bits(bits(result), expected));
    address[3] = kept;
  }
}

TEST(PendingValues, BorrowedMemoryMayBeWrittenLater) {
  Block block;
  const std::vector<float> expected = block.expected();
  std::vector<float> memory = bits(block.x);
  block.x = from_blob(memory.data(), block.x.sizes());
  const Tensor result = block();
  std::fill(memory.begin(), memory.end(), 0.0f);
  EXPECT_TRUE(same_bits(bits(result), expected));
}

TEST(PendingValues, AResultMayBeChangedInPlace) {
  const Block block;
  const NoGradGuard no_grad;
  const std::vector<float> expected = block.expected();
  Tensor convolved = block.convolve(), result = relu(max_pool2d(convolved, 2));
  convolved.zero_();  // after the pool has taken it
  EXPECT_TRUE(same_bits(bits(result), expected));
  EXPECT_EQ(convolved.sum().item(), 0.0);
  result = block();
  result += 1.0;
  EXPECT_FALSE(same_bits(bits(result), expected));
}

// As at once: the pool keeps positions alone, so its operand may be changed; a relu keeps its result.
TEST(PendingValues, InPlaceWhileRecording) {
  const Block block;
  const auto gradient = [&](bool changes) {
    block.weight.set_grad({});
    Tensor convolved = block.convolve();
    const Tensor pooled = max_pool2d(convolved, 2);
    if (changes) convolved.mul_(2.0);
    (changes ? pooled.sum() + convolved.sum() * 0.0 : pooled.sum()).backward();
    return bits(block.weight.grad());
  };
  EXPECT_TRUE(same_bits(gradient(true), gradient(false)));
  const Tensor rectified_result = relu(block.convolve());
  EXPECT_NE(error_of([&] { rectified_result.mul_(2.0); }).find("[mul_]"), std::string::npos);
}

TEST(PendingValues, AChangedInputIsNoticedByBackward) {
  const Block block;
  const Tensor result = block();
  {
    const NoGradGuard no_grad;
    block.x.zero_();
  }
  EXPECT_NE(error_of([&] { result.sum().backward(); }).find("[Conv2dBackward]"), std::string::npos);
}

TEST(PendingValues, ViewsReadTheSameValues) {
  const Block block;
  const NoGradGuard no_grad;
  const std::vector<float> expected = block.expected();
  for (int which = 0; which < 3; ++which) {
    const Tensor result = block();
    const Tensor view = which == 0 ? result.view({-1}) : which == 1 ? result.detach() : result;
    EXPECT_TRUE(same_bits(bits(view), expected));
    EXPECT_FALSE(is_pending(result));
  }
}

TEST(PendingValues, HooksMayReplaceAGradient) {
  const Block block;
  const auto gradient = [&](const std::function<Tensor(const Tensor&)>& hook) {
    for (const Tensor& each : {block.x, block.weight, block.bias}) each.set_grad({});
    const Tensor convolved = block.convolve();
    if (hook) convolved.register_hook(hook);
    relu(max_pool2d(convolved, 2)).sum().backward();
    std::vector<float> all = bits(block.weight.grad());
    for (const float value : bits(block.x.grad())) all.push_back(value);
    return all;
  };
  const std::vector<float> plain = gradient({});
  Tensor kept;
  EXPECT_TRUE(same_bits(gradient([](const Tensor& grad) { return grad.clone(); }), plain));
  EXPECT_TRUE(same_bits(gradient([&](const Tensor& grad) { return kept = grad, Tensor(); }), plain));
  EXPECT_EQ(kept.sizes(), block.convolve().sizes());
  EXPECT_TRUE(same_bits(gradient([](const Tensor& grad) { return grad.data<float>()[0] += 0.0f, Tensor(); }), plain));
  // Twice the gradient: powers of two change no rounding.
  std::vector<float> twice = gradient([](const Tensor& grad) { return grad * 2.0; });
  for (float& value : twice) value /= 2.0f;
  EXPECT_TRUE(same_bits(twice, plain));
  std::vector<float> in_place = gradient([](const Tensor& grad) { return grad.mul_(2.0), Tensor(); });
  for (float& value : in_place) value /= 2.0f;
  EXPECT_TRUE(same_bits(in_place, plain));
}

TEST(PendingValues, RetainedGradientsAreTheWholeOnes) {
  const Block block;
  const auto gradients = [&] {
    const Tensor convolved = block.convolve(), pooled = max_pool2d(convolved, 2);
    convolved.retain_grad();
    pooled.retain_grad();
    relu(pooled).sum().backward();
    return std::pair(bits(convolved.grad()), bits(pooled.grad()));
  };
  const auto fused = gradients();
  const AtTheCall at_the_call;
  const auto plain = gradients();
  EXPECT_TRUE(same_bits(fused.first, plain.first));
  EXPECT_TRUE(same_bits(fused.second, plain.second));
}

TEST(PendingValues, AResultUsedTwice) {
  const Block block;
  const auto gradient = [&] {
    block.weight.set_grad({});
    const Tensor convolved = block.convolve(), rectified_result = relu(convolved);
    (max_pool2d(rectified_result, 2).sum() + rectified_result.square().sum() + convolved.sum()).backward();
    return bits(block.weight.grad());
  };
  const std::vector<float> fused = gradient();
  const AtTheCall at_the_call;
  EXPECT_TRUE(same_bits(fused, gradient()));
}

TEST(PendingValues, BackwardTwice) {
  const Block block;
  const Tensor result = block().sum();
  result.backward({}, true);
  const std::vector<float> once = bits(block.weight.grad());
  block.weight.set_grad({});
  result.backward();
  EXPECT_TRUE(same_bits(bits(block.weight.grad()), once));
  EXPECT_NE(error_of([&] { result.backward(); }).find("freed by an earlier backward()"), std::string::npos);
}

// Nobody reads the result before its gradient comes.
TEST(PendingValues, BackwardOfAResultThatWasNeverRead) {
  const Block block;
  const Tensor seed = make_input({4, 6, 4, 4}, 5, kFloat32);
  block().backward(seed);
  const std::vector<float> fused = bits(block.weight.grad());
  block.weight.set_grad({});
  const AtTheCall at_the_call;
  block().backward(seed);
  EXPECT_TRUE(same_bits(fused, bits(block.weight.grad())));
}

TEST(PendingValues, AnotherThreadMayRead) {
  const Block block;
  const std::vector<float> expected = block.expected();
  for (int i = 0; i < 20; ++i) {
    const Tensor convolved = block.convolve(), result = relu(max_pool2d(convolved, 2));
    std::vector<std::vector<float>> seen(3);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < seen.size(); ++t)
      threads.emplace_back([&, t] {
        if (t == 2) (void)bits(convolved);
        seen[t] = bits(result);
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& each : seen) EXPECT_TRUE(same_bits(each, expected));
  }
}

// One thread leaves results pending and hands them on; another changes the weights.
TEST(PendingValues, AnotherThreadMayChangeInputsAfterwards) {
  Block block;
  const NoGradGuard no_grad;
  const std::vector<float> expected = block.expected();
  Tensor result;
  std::thread([&] {
    const NoGradGuard no_grad_here;
    result = block();
  }).join();
  block.weight.zero_();
  EXPECT_TRUE(same_bits(bits(result), expected));
}

// Threads that share the weights leave results pending, compute them and drop them, while others do.
TEST(PendingValues, ThreadsShareTheirInputs) {
  const Block block;
  const std::vector<float> expected = block.expected();
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      const NoGradGuard no_grad;
      for (int i = 0; i < 25; ++i) {
        const Tensor result = block(), dropped = block();
        if (t == 0) Computation::settle_all();
        wrong[t] += !same_bits(bits(result), expected);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(PendingValues, AnErrorLeavesTheResultPending) {
  const NoGradGuard no_grad;
  // 2^48 bytes are more than the address space has.
  const Tensor x = ones({std::int64_t{1} << 23, 1}), weight = ones({std::int64_t{1} << 23, 1});
  const Tensor result = relu(linear(x, weight));
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(error_of([&] { (void)result.data<float>(); }).find("the limit is 2^46"), std::string::npos);
    EXPECT_TRUE(is_pending(result));
  }
}

TEST(PendingValues, InputsAreFreedWithTheFirstRead) {
  const NoGradGuard no_grad;
  Block block;
  Tensor x = block.x.clone();
  const Tensor result = relu(conv2d(x, block.weight));
  EXPECT_GT(x.storage()->use_count(), 1u);
  (void)bits(result);
  EXPECT_EQ(x.storage()->use_count(), 1u);
  {
    const Tensor dropped = relu(conv2d(x, block.weight));
    EXPECT_GT(x.storage()->use_count(), 1u);
  }
  EXPECT_EQ(x.storage()->use_count(), 1u);
}

TEST(PendingValues, AwkwardLengthsOfChains) {
  const NoGradGuard no_grad;
  const Block block;
  Tensor result = block.convolve();
  for (int i = 0; i < 1000; ++i) result = relu(result);
  const AtTheCall at_the_call;
  EXPECT_TRUE(same_bits(bits(result), bits(relu(block.convolve()))));
}

}  // namespace
}  // namespace lockstep
