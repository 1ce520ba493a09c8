#pragma once

// Making and comparing tensors in tests. All inputs are deterministic.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
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

/// Fails with the first differing element. NaN equals NaN, and an infinity itself alone; without tolerance -0 is not 0.
/// Integers are compared as such.
inline void expect_close(const Tensor& actual, const Tensor& expected, double rtol = 1e-5, double atol = 1e-8) {
  ASSERT_TRUE(actual.defined()) << "actual is undefined";
  ASSERT_TRUE(expected.defined()) << "expected is undefined";
  ASSERT_EQ(to_string(actual.sizes()), to_string(expected.sizes()));
  if (!actual.is_floating_point() && !expected.is_floating_point()) {
    ASSERT_EQ(actual.to_vector<std::int64_t>(), expected.to_vector<std::int64_t>());
    return;
  }
  const bool exact = rtol == 0.0 && atol == 0.0;
  const std::vector<double> a = actual.to_vector<double>();
  const std::vector<double> e = expected.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(e[i])) continue;
    if (exact) {
      ASSERT_TRUE(a[i] == e[i] && std::signbit(a[i]) == std::signbit(e[i]))
          << "element " << i << ": actual " << a[i] << ", expected " << e[i];
    }
    if (a[i] == e[i]) continue;
    ASSERT_LE(std::abs(a[i] - e[i]), std::isinf(e[i]) ? 0.0 : atol + rtol * std::abs(e[i]))
        << "element " << i << ": actual " << a[i] << ", expected " << e[i];
  }
}

/// Whether dtype, sizes and every bit are the same: 0 is not -0, and a NaN is not another one.
inline ::testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) {
    if (a.defined() == b.defined()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << (a.defined() ? "the second" : "the first") << " is undefined";
  }
  if (a.dtype() != b.dtype() || a.sizes() != b.sizes())
    return ::testing::AssertionFailure() << name(a.dtype()) << to_string(a.sizes()) << " and " << name(b.dtype())
                                         << to_string(b.sizes());
  const Tensor x = copy_contiguous(move_values(a.detach(), Device()));
  const Tensor y = copy_contiguous(move_values(b.detach(), Device()));
  const auto* const bytes = static_cast<const char*>(x.raw_data());
  const auto* const others = static_cast<const char*>(y.raw_data());
  const std::size_t size = element_size(a.dtype());
  for (std::int64_t i = 0; i < x.numel(); ++i)
    if (std::memcmp(bytes + size * static_cast<std::size_t>(i), others + size * static_cast<std::size_t>(i), size) != 0)
      return ::testing::AssertionFailure()
             << "element " << i << ": " << x.to_vector<double>()[static_cast<std::size_t>(i)] << " and "
             << y.to_vector<double>()[static_cast<std::size_t>(i)];
  return ::testing::AssertionSuccess();
}

/// The same of numbers.
template <typename T>
requires(std::is_trivially_copyable_v<T>) inline ::testing::AssertionResult
    same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " elements";
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0)
      return ::testing::AssertionFailure()
             << "element " << i << ": " << static_cast<double>(a[i]) << " and " << static_cast<double>(b[i]);
  return ::testing::AssertionSuccess();
}

/// The same of lists.
inline ::testing::AssertionResult same_bits(std::span<const Tensor> a, std::span<const Tensor> b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " tensors";
  for (std::size_t i = 0; i < a.size(); ++i)
    if (const ::testing::AssertionResult same = same_bits(a[i], b[i]); !same)
      return ::testing::AssertionFailure() << "tensor " << i << ": " << same.message();
  return ::testing::AssertionSuccess();
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
