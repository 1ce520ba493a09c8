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
#include "lockstep/core/integer_cast.h"
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
  } else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<C>) {
    return integer_cast<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

/// W elements that are read or written at once.
template <typename T, int W>
struct alignas(sizeof(T) * W) Pack {
  T value[W];
};

/// Pack `index` of what lies at `data`, as C.
template <typename C, int W, typename T>
__device__ inline Pack<C, W> read_pack(const T* data, std::int64_t index) {
  const auto read = reinterpret_cast<const Pack<T, W>*>(data)[index];
  Pack<C, W> values;
#pragma unroll
  for (int j = 0; j < W; ++j) values.value[j] = from_element<C>(read.value[j]);
  return values;
}
/// And back.
template <typename T, typename C, int W>
__device__ inline void write_pack(T* data, std::int64_t index, const Pack<C, W>& values) {
  Pack<T, W> written;
#pragma unroll
  for (int j = 0; j < W; ++j) written.value[j] = to_element<T>(values.value[j]);
  reinterpret_cast<Pack<T, W>*>(data)[index] = written;
}
template <int W, typename C>
__device__ inline Pack<C, W> pack_of(C value) {
  Pack<C, W> values;
#pragma unroll
  for (int j = 0; j < W; ++j) values.value[j] = value;
  return values;
}

inline bool aligned(const void* data, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

/// Calls f.operator()<T>() for lockstep's type of that name. All threads take the same branch.
template <typename F>
__device__ inline void with_element_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float32:
      return f.template operator()<float>();
    case DType::float64:
      return f.template operator()<double>();
    case DType::float16:
      return f.template operator()<Half>();
    case DType::bfloat16:
      return f.template operator()<BFloat16>();
    case DType::int64:
      return f.template operator()<std::int64_t>();
    case DType::int32:
      return f.template operator()<std::int32_t>();
    case DType::uint8:
      return f.template operator()<std::uint8_t>();
    default:
      return f.template operator()<bool>();
  }
}

/// How many elements of any dtype are read or written at once where they lie densely.
inline constexpr int kPack = 4;

/// Elements of any dtype, read as C: for kernels that would otherwise be compiled for every dtype.
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
    C found = value;
    if (data) with_element_type(dtype, [&]<typename T>() { found = from_element<C>(static_cast<const T*>(data)[i]); });
    return found;
  }
  /// Pack i, where kPack elements may be read at once.
  __device__ Pack<C, kPack> pack(std::int64_t i) const {
    Pack<C, kPack> found = pack_of<kPack>(value);
    if (data)
      with_element_type(dtype, [&]<typename T>() { found = read_pack<C, kPack>(static_cast<const T*>(data), i); });
    return found;
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
    with_element_type(dtype, [&]<typename T>() { static_cast<T*>(data)[i] = to_element<T>(value); });
  }
  __device__ void set_pack(std::int64_t i, const Pack<C, kPack>& values) const {
    with_element_type(dtype, [&]<typename T>() { write_pack(static_cast<T*>(data), i, values); });
  }
};

}  // namespace lockstep::cuda
