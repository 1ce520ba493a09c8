#include "tests/support/op_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/random.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

constexpr std::uint64_t kSeed = 5;                              // operations that draw numbers draw the same on both
constexpr std::int64_t kAllElements = 300, kSomeElements = 60;  // that central differences are taken of

struct Outcome {
  TensorList results;
  TensorList gradients;  // undefined where there is none
};

/// The case's inputs, rounded to `rounded`, in dtype `dtype`.
TensorList make_inputs(const OpCase& test_case, Device device, DType rounded, DType dtype, bool strided) {
  TensorList inputs;
  for (const Tensor& made : test_case.inputs()) {
    Tensor input = made.is_floating_point() ? cast_values(cast_values(made.detach(), rounded), dtype) : made.detach();
    input = move_values(input, device);
    if (strided) input = make_strided(input);
    if (made.requires_grad()) input.set_requires_grad(true);
    inputs.push_back(input);
  }
  return inputs;
}

Outcome run_on(const OpCase& test_case, const TensorList& inputs) {
  manual_seed(kSeed);
  Outcome outcome;
  outcome.results = test_case.run(inputs);
  if (std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t.requires_grad(); })) {
    std::uint32_t seed = 100;
    bool any = false;
    for (const Tensor& result : outcome.results) {
      if (!result.requires_grad()) continue;
      any = true;
      result.backward(move_values(make_input(result.sizes(), seed++, result.dtype()), result.device()), true);
    }
    const bool indices = std::none_of(outcome.results.begin(), outcome.results.end(),
                                      [](const Tensor& result) { return result.is_floating_point(); });
    EXPECT_TRUE(any || indices || test_case.constant)
        << "an input requires gradients, and no result has a backward pass";
  }
  for (const Tensor& input : inputs) outcome.gradients.push_back(input.requires_grad() ? input.grad() : Tensor());
  return outcome;
}

Outcome run(const OpCase& test_case, Device device, DType dtype, bool strided) {
  return run_on(test_case, make_inputs(test_case, device, dtype, dtype, strided));
}

/// Within `tolerance` of the largest magnitude, or of a hundredth: where all is 0, differences of sums leave rounding.
void expect_near(const Tensor& actual, const Tensor& expected, double tolerance, const std::string& what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(actual.defined(), expected.defined());
  if (!actual.defined()) return;
  double largest = 0.01;
  for (const double value : expected.to_vector<double>())
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  const double rtol = actual.is_floating_point() ? tolerance : 0.0;
  expect_close(actual, expected, rtol, rtol * largest);
}

void expect_near(const TensorList& actual, const TensorList& expected, double tolerance, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NO_FATAL_FAILURE(expect_near(actual[i], expected[i], tolerance, what + (" " + std::to_string(i))));
}

void expect_near(const Outcome& actual, const Outcome& expected, double tolerance) {
  ASSERT_NO_FATAL_FAILURE(expect_near(actual.results, expected.results, tolerance, "result"));
  ASSERT_NO_FATAL_FAILURE(expect_near(actual.gradients, expected.gradients, tolerance, "gradient"));
}

struct Precision {
  DType dtype;
  double tolerance;
};
constexpr Precision kPrecisions[] = {{kFloat64, 1e-12}, {kFloat32, 1e-5}, {kFloat16, 2e-3}, {kBFloat16, 1.6e-2}};

void check_gradients(const OpCase& test_case) {
  const TensorList inputs = make_inputs(test_case, Device(), kFloat64, kFloat64, false);
  std::int64_t elements = 0;
  for (const Tensor& input : inputs) elements += input.requires_grad() ? input.numel() : 0;
  if (elements == 0) return;
  // Of many elements some are leaves, which are put into the rest.
  TensorList leaves, places;
  for (const Tensor& input : inputs) {
    places.emplace_back();
    leaves.push_back(input);
    if (elements <= kAllElements || !input.requires_grad() || input.numel() == 0) continue;
    const std::int64_t count = std::max<std::int64_t>(1, kSomeElements * input.numel() / elements);
    std::vector<std::int64_t> chosen;
    for (std::int64_t i = 0; i < count; ++i) chosen.push_back((2 * i + 1) * input.numel() / (2 * count));
    places.back() = tensor(chosen);
    leaves.back() = copy_contiguous(gather(input.detach().reshape({-1}), 0, places.back()));
    leaves.back().set_requires_grad(true);
  }
  const auto run = [&](const TensorList& given) {
    manual_seed(kSeed);
    TensorList whole = given;
    for (std::size_t i = 0; i < whole.size(); ++i)
      if (places[i].defined())
        whole[i] = scatter(inputs[i].detach().reshape({-1}), 0, places[i], given[i]).view(inputs[i].sizes());
    return test_case.run(whole);
  };
  const TensorList results = run(leaves);
  GradcheckOptions options;
  if (elements > kAllElements) options.eps *= 10;  // a sum over large results is rounded more
  for (std::size_t i = 0; i < results.size(); ++i)
    if (results[i].requires_grad()) gradcheck([&](const TensorList& given) { return run(given)[i]; }, leaves, options);
}

}  // namespace

void check_op(const OpCase& test_case) {
  for (const auto& [dtype, tolerance] : kPrecisions) {
    if (element_size(dtype) == 2 && !test_case.halves) continue;
    SCOPED_TRACE(std::string(name(dtype)));
    const double allowed = tolerance * test_case.slack;
    const Outcome actual = run(test_case, Device(), dtype, false);
    const TensorList wide = make_inputs(test_case, Device(), dtype, kFloat64, false);
    if (test_case.expected) {
      ASSERT_NO_FATAL_FAILURE(expect_near(actual.results, test_case.expected(wide), allowed, "result"));
    }
    ASSERT_NO_FATAL_FAILURE(expect_near(actual, run_on(test_case, wide), allowed));
    for (const Tensor& result : actual.results) EXPECT_EQ(name(result.dtype()), name(dtype));
    if (test_case.any_layout) {
      SCOPED_TRACE("not contiguous");
      const Outcome strided = run(test_case, Device(), dtype, true);
      EXPECT_TRUE(same_bits(strided.results, actual.results));
      EXPECT_TRUE(same_bits(strided.gradients, actual.gradients)) << "of the gradients";
    }
    SCOPED_TRACE("reference kernels");
    set_reference_kernels(true);
    const Outcome plain = run(test_case, Device(), dtype, false);
    set_reference_kernels(false);
    ASSERT_NO_FATAL_FAILURE(expect_near(actual, plain, allowed));
  }
  check_gradients(test_case);
  check_threads(test_case);
}

void check_threads(const OpCase& test_case) {
  SCOPED_TRACE("1 and 3 threads");
  const int before = num_threads();
  set_num_threads(1);
  const Outcome one = run(test_case, Device(), kFloat32, false);
  set_num_threads(3);
  const Outcome three = run(test_case, Device(), kFloat32, false);
  set_num_threads(before);
  EXPECT_TRUE(same_bits(three.results, one.results));
  EXPECT_TRUE(same_bits(three.gradients, one.gradients)) << "of the gradients";
}

void check_on_device(const OpCase& test_case) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  for (const auto& [dtype, tolerance] : kPrecisions) {
    if (element_size(dtype) == 2 && !test_case.halves) continue;
    for (const bool strided : {false, true}) {
      if (strided && !test_case.any_layout) continue;
      SCOPED_TRACE(std::string(name(dtype)) + (strided ? ", not contiguous" : ""));
      const Outcome expected = run(test_case, Device(), dtype, strided);
      const Outcome actual = run(test_case, test_device(), dtype, strided);
      for (const TensorList* tensors : {&actual.results, &actual.gradients})
        for (const Tensor& tensor : *tensors)
          ASSERT_TRUE(!tensor.defined() || tensor.device() == test_device()) << to_string(tensor.device());
      ASSERT_EQ(actual.results.size(), expected.results.size());
      for (std::size_t i = 0; i < actual.results.size(); ++i)
        ASSERT_EQ(name(actual.results[i].dtype()), name(expected.results[i].dtype()));
      ASSERT_NO_FATAL_FAILURE(expect_near(actual, expected, tolerance * test_case.slack));
    }
  }
}

}  // namespace lockstep::testing
