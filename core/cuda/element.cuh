#pragma once

// Elements of tensors in kernels: read as the type that is computed in, written with one rounding. For .cu files only.

#include <cuda_runtime.h>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

#include <cstdint>
#include <type_traits>

#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"

namespace lockstep::cuda {

/// From an element of T (lockstep's own types; Half and BFloat16 for the half types) to C.
template <typename C, typename T>
__device__ inline C from_element(T value) {
#if defined(__CUDACC__)
  if constexpr (std::is_same_v<T, Half>) {
    return static_cast<C>(__half2float(__ushort_as_half(value.bits)));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return static_cast<C>(__bfloat162float(__ushort_as_bfloat16(value.bits)));
  } else {
    return static_cast<C>(value);
  }
#else
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return static_cast<C>(static_cast<float>(value));
  } else {
    return static_cast<C>(value);
  }
#endif
}

/// And back; half types are rounded from float to nearest even, bool is "not 0".
template <typename T, typename C>
__device__ inline T to_element(C value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
#if defined(__CUDACC__)
    T result;
    if constexpr (std::is_same_v<T, Half>) {
      result.bits = __half_as_ushort(__float2half_rn(static_cast<float>(value)));
    } else {
      result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(value)));
    }
    return result;
#else
    return T(static_cast<float>(value));
#endif
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != C(0);
  } else {
    return static_cast<T>(value);
  }
}

/// W elements that are read or written at once.
template <typename T, int W>
struct alignas(sizeof(T) * W) Pack {
  T value[W];
};

inline bool aligned(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

/// Elements of any dtype, read as C: for kernels that would otherwise be compiled for every dtype. All threads take the
/// same branch.
template <typename C>
struct Source {
  const void* data = nullptr;  ///< null: `value` for every element
  DType dtype = kFloat32;
  C value{};

  Source() = default;
  /// An undefined tensor stands for `value`.
  explicit Source(const Tensor& tensor, C value = {}) : value(value) {
    if (!tensor.defined()) return;
    data = tensor.raw_data();
    dtype = tensor.dtype();
  }

  __device__ C at(std::int64_t i) const {
    if (!data) return value;
    switch (dtype) {
      case DType::float32:
        return from_element<C>(static_cast<const float*>(data)[i]);
      case DType::float64:
        return from_element<C>(static_cast<const double*>(data)[i]);
      case DType::float16:
        return from_element<C>(static_cast<const Half*>(data)[i]);
      case DType::bfloat16:
        return from_element<C>(static_cast<const BFloat16*>(data)[i]);
      case DType::int64:
        return from_element<C>(static_cast<const std::int64_t*>(data)[i]);
      case DType::int32:
        return from_element<C>(static_cast<const std::int32_t*>(data)[i]);
      case DType::uint8:
        return from_element<C>(static_cast<const std::uint8_t*>(data)[i]);
      default:
        return from_element<C>(static_cast<const bool*>(data)[i]);
    }
  }
};

/// Elements of any dtype, written from C.
template <typename C>
struct Target {
  void* data;
  DType dtype;

  explicit Target(const Tensor& tensor)
      : data(tensor.defined() ? tensor.raw_data() : nullptr), dtype(tensor.defined() ? tensor.dtype() : kFloat32) {}

  /// False for an undefined tensor: nobody asked for the result.
  __device__ bool wanted() const { return data != nullptr; }
  __device__ void set(std::int64_t i, C value) const {
    switch (dtype) {
      case DType::float32:
        static_cast<float*>(data)[i] = to_element<float>(value);
        return;
      case DType::float64:
        static_cast<double*>(data)[i] = to_element<double>(value);
        return;
      case DType::float16:
        static_cast<Half*>(data)[i] = to_element<Half>(value);
        return;
      case DType::bfloat16:
        static_cast<BFloat16*>(data)[i] = to_element<BFloat16>(value);
        return;
      case DType::int64:
        static_cast<std::int64_t*>(data)[i] = to_element<std::int64_t>(value);
        return;
      case DType::int32:
        static_cast<std::int32_t*>(data)[i] = to_element<std::int32_t>(value);
        return;
      case DType::uint8:
        static_cast<std::uint8_t*>(data)[i] = to_element<std::uint8_t>(value);
        return;
      default:
        static_cast<bool*>(data)[i] = to_element<bool>(value);
    }
  }
};

}  // namespace lockstep::cuda
