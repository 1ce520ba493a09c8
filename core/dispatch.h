#pragma once

// Turns a run-time dtype into a template argument, on the CPU and on CUDA devices. For .cpp and .cu files only.
//   dispatch_floating(x.dtype(), "softmax", [&]<typename T>() { kernel<T>(x, out); });

#include <cstdint>
#include <utility>

#include "lockstep/core/dtype.h"

namespace lockstep {

namespace detail {
[[noreturn]] void throw_unsupported_dtype(const char* op, DType dtype);
}  // namespace detail

/// The type in which a kernel computes on elements of T: float for the half types, else T.
template <typename T>
struct ComputeType {
  using type = T;
};
template <>
struct ComputeType<Half> {
  using type = float;
};
template <>
struct ComputeType<BFloat16> {
  using type = float;
};
template <typename T>
using compute_t = typename ComputeType<T>::type;

/// float32, float64, float16, bfloat16.
template <typename F>
decltype(auto) dispatch_floating(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::float32:
      return std::forward<F>(f).template operator()<float>();
    case DType::float64:
      return std::forward<F>(f).template operator()<double>();
    case DType::float16:
      return std::forward<F>(f).template operator()<Half>();
    case DType::bfloat16:
      return std::forward<F>(f).template operator()<BFloat16>();
    default:
      detail::throw_unsupported_dtype(op, dtype);
  }
}

/// double for float64, float for the other floating-point dtypes: what kernels compute in.
template <typename F>
decltype(auto) dispatch_compute(DType dtype, const char* op, F&& f) {
  if (dtype == kFloat64) return std::forward<F>(f).template operator()<double>();
  if (is_floating_point(dtype)) return std::forward<F>(f).template operator()<float>();
  detail::throw_unsupported_dtype(op, dtype);
}

/// int64, int32, uint8.
template <typename F>
decltype(auto) dispatch_integer(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::int64:
      return std::forward<F>(f).template operator()<std::int64_t>();
    case DType::int32:
      return std::forward<F>(f).template operator()<std::int32_t>();
    case DType::uint8:
      return std::forward<F>(f).template operator()<std::uint8_t>();
    default:
      detail::throw_unsupported_dtype(op, dtype);
  }
}

/// Everything but bool.
template <typename F>
decltype(auto) dispatch_numeric(DType dtype, const char* op, F&& f) {
  if (is_floating_point(dtype)) return dispatch_floating(dtype, op, std::forward<F>(f));
  return dispatch_integer(dtype, op, std::forward<F>(f));
}

/// Every dtype.
template <typename F>
decltype(auto) dispatch_all(DType dtype, const char* op, F&& f) {
  if (dtype == kBool) return std::forward<F>(f).template operator()<bool>();
  return dispatch_numeric(dtype, op, std::forward<F>(f));
}

}  // namespace lockstep
