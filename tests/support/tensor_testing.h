#pragma once

// Making and comparing tensors in tests. All inputs are deterministic.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/copy.h"
#include "lockstep/core/error.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep::testing {

/// Values in [low, high) that depend on `seed` and position alone.
inline Tensor make_input(const Shape& sizes, std::uint32_t seed = 1, DType dtype = kFloat64, double low = -1.0,
                         double high = 1.0) {
  Tensor values = empty(sizes, {.dtype = kFloat64});
  double* data = values.data<double>();
  for (std::int64_t i = 0; i < values.numel(); ++i)
    data[i] = low + (high - low) * philox::to_uniform(philox::word_at({seed, 77}, static_cast<std::uint64_t>(i)));
  return cast_values(values, dtype);
}

/// The same, as a leaf that requires gradients.
inline Tensor make_leaf(const Shape& sizes, std::uint32_t seed = 1, DType dtype = kFloat64, double low = -1.0,
                        double high = 1.0) {
  Tensor leaf = make_input(sizes, seed, dtype, low, high);
  leaf.set_requires_grad(true);
  return leaf;
}

/// The same values in memory with gaps and reversed dimension order.
inline Tensor make_strided(const Tensor& tensor) {
  Shape sizes = tensor.sizes();
  Shape strides = Shape::filled(sizes.dim(), 0);
  std::int64_t step = 2;
  for (int d = 0; d < sizes.dim(); ++d) {
    strides[d] = step;
    step *= std::max<std::int64_t>(sizes[d], 1);
  }
  Tensor base = empty({step + 1}, options_of(tensor));
  Tensor strided = base.as_strided(sizes, strides, 1);
  copy_values(tensor, strided);
  return strided;
}

/// Fails with the first differing element. NaN equals NaN.
inline void expect_close(const Tensor& actual, const Tensor& expected, double rtol = 1e-5, double atol = 1e-8) {
  ASSERT_TRUE(actual.defined()) << "actual is undefined";
  ASSERT_TRUE(expected.defined()) << "expected is undefined";
  ASSERT_EQ(to_string(actual.sizes()), to_string(expected.sizes()));
  const std::vector<double> a = actual.to_vector<double>();
  const std::vector<double> e = expected.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if ((std::isnan(a[i]) && std::isnan(e[i])) || a[i] == e[i]) continue;
    ASSERT_LE(std::abs(a[i] - e[i]), atol + rtol * std::abs(e[i]))
        << "element " << i << ": actual " << a[i] << ", expected " << e[i];
  }
}

/// Runs `body` and returns the message of the Error it must throw.
template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no lockstep::Error was thrown";
  return {};
}

}  // namespace lockstep::testing
