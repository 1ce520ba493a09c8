// Chains of operations whose results are computed when they are first read (Note [Pending values]): the same bits as at
// the call, whatever is read between.

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/pending_values.h"

namespace lockstep {
namespace {

using testing::AtTheCall;
using testing::bits;
using testing::make_input;
using testing::make_leaf;
using testing::same_bits;

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
    {"norm_pool_of_odd_planes",  // rows of more than one vector, and a row and a column that no window covers
     {2, 2, 21, 27},
     {3, 2, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), normalized, pool, rectified};
     }},
    {"norm_relu_pool_of_small_planes",  // two rows of windows to a vector, and one left over
     {2, 2, 12, 10},
     {3, 2, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), normalized, rectified, pool};
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
    {"linear_gelu",
     {37, 21},
     {18, 21},
     [](const auto& p) -> std::vector<Step> {
       return {product(p), [](const Tensor& x) { return gelu(x); }};
     }},
    {"linear_gelu_tanh_linear",
     {3, 6, 21},
     {21, 21},
     [](const auto& p) -> std::vector<Step> {
       return {product(p), [](const Tensor& x) { return gelu(x, GeluMode::tanh); }, product(p)};
     }},
    {"norm_silu_sum",
     {3, 2, 9, 8},
     {5, 2, 3, 3},
     [](const auto& p) -> std::vector<Step> {
       return {convolution(p), normalized, [](const Tensor& x) { return silu(x) + silu(x * 30.0); }};
     }},
    {"gelu_of_a_view",
     {6, 8, 5},
     {5, 5},
     [](const auto& p) -> std::vector<Step> {
       return {product(p), [](const Tensor& x) { return gelu(x.transpose(0, 1)); }};
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

TEST(PendingChains, BitsDoNotDependOnWhatIsRead) {
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

}  // namespace
}  // namespace lockstep
