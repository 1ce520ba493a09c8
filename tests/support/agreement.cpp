#include "tests/support/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

constexpr std::uint64_t kSeed = 5;  // operations that draw numbers draw the same on both

struct Outcome {
  TensorList results;
  TensorList gradients;  // undefined where there is none
};

Outcome run(const AgreementCase& test_case, Device device, DType dtype, bool strided) {
  manual_seed(kSeed);
  TensorList inputs;
  for (const Tensor& made : test_case.inputs()) {
    Tensor input = made.is_floating_point() ? cast_values(made.detach(), dtype) : made.detach();
    input = move_values(input, device);
    if (strided) input = make_strided(input);
    if (made.requires_grad()) input.set_requires_grad(true);
    inputs.push_back(input);
  }
  Outcome outcome;
  outcome.results = test_case.run(inputs);
  if (std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t.requires_grad(); })) {
    std::uint32_t seed = 100;
    for (const Tensor& result : outcome.results)
      if (result.requires_grad())
        result.backward(move_values(make_input(result.sizes(), seed++, result.dtype()), result.device()), true);
  }
  for (const Tensor& input : inputs) outcome.gradients.push_back(input.requires_grad() ? input.grad() : Tensor());
  return outcome;
}

void expect_equal(const Tensor& actual, const Tensor& expected, double tolerance, const std::string& what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(actual.defined(), expected.defined());
  if (!actual.defined()) return;
  ASSERT_TRUE(actual.device() == test_device()) << to_string(actual.device());
  ASSERT_EQ(name(actual.dtype()), name(expected.dtype()));
  double largest = 0.0;
  for (const double value : expected.to_vector<double>())
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  const double rtol = actual.is_floating_point() ? tolerance : 0.0;
  expect_close(actual, expected, rtol, rtol * largest);
}

}  // namespace

void check_agreement(const AgreementCase& test_case) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  struct Precision {
    DType dtype;
    double tolerance;
  };
  for (const auto& [dtype, tolerance] :
       {Precision{kFloat64, 1e-12}, {kFloat32, 1e-5}, {kFloat16, 2e-3}, {kBFloat16, 1.6e-2}}) {
    if (element_size(dtype) == 2 && !test_case.halves) continue;
    for (const bool strided : {false, true}) {
      if (strided && !test_case.any_layout) continue;
      SCOPED_TRACE(std::string(name(dtype)) + (strided ? ", not contiguous" : ""));
      const Outcome expected = run(test_case, Device(), dtype, strided);
      const Outcome actual = run(test_case, test_device(), dtype, strided);
      ASSERT_EQ(actual.results.size(), expected.results.size());
      for (std::size_t i = 0; i < actual.results.size(); ++i)
        ASSERT_NO_FATAL_FAILURE(expect_equal(actual.results[i], expected.results[i], tolerance * test_case.slack,
                                             "result " + std::to_string(i)));
      for (std::size_t i = 0; i < actual.gradients.size(); ++i)
        ASSERT_NO_FATAL_FAILURE(expect_equal(actual.gradients[i], expected.gradients[i], tolerance * test_case.slack,
                                             "gradient " + std::to_string(i)));
    }
  }
}

}  // namespace lockstep::testing
