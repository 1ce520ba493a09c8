#pragma once

// core/dispatch.h for .cu files, whose compiler does not take fmt.
//   dispatch_floating(x.dtype(), "softmax", [&]<typename T>() { ... });

#include <utility>

#include "lockstep/core/dtype.h"

namespace lockstep::cuda {

namespace detail {
[[noreturn]] void throw_unsupported_dtype(const char* op, DType dtype);
}

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
void dispatch_floating(DType dtype, const char* op, F&& f) {
  switch (dtype) {
    case DType::float32:
      return f.template operator()<float>();
    case DType::float64:
      return f.template operator()<double>();
    case DType::float16:
      return f.template operator()<Half>();
    case DType::bfloat16:
      return f.template operator()<BFloat16>();
    default:
      detail::throw_unsupported_dtype(op, dtype);
  }
}

/// float for all floating-point dtypes but float64: what their kernels compute in.
template <typename F>
void dispatch_compute(DType dtype, const char* op, F&& f) {
  if (dtype == kFloat64) return f.template operator()<double>();
  if (is_floating_point(dtype)) return f.template operator()<float>();
  detail::throw_unsupported_dtype(op, dtype);
}

}  // namespace lockstep::cuda
