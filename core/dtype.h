#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "lockstep/core/half.h"

namespace lockstep {

/// The type of a tensor's elements; bool8 is C++'s bool, one byte.
enum class DType : std::uint8_t { float32, float64, float16, bfloat16, int64, int32, uint8, bool8 };

/// Under libtorch's names.
inline constexpr DType kFloat32 = DType::float32;
inline constexpr DType kFloat64 = DType::float64;    ///< double
inline constexpr DType kFloat16 = DType::float16;    ///< IEEE 754 binary16
inline constexpr DType kBFloat16 = DType::bfloat16;  ///< the upper half of a float
inline constexpr DType kInt64 = DType::int64;        ///< std::int64_t: indices and class numbers
inline constexpr DType kInt32 = DType::int32;        ///< std::int32_t
inline constexpr DType kUInt8 = DType::uint8;        ///< unsigned char: bytes of images
inline constexpr DType kBool = DType::bool8;         ///< bool

/// Size of one element in bytes.
constexpr std::size_t element_size(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
    case DType::int32:
      return 4;
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::uint8:
    case DType::bool8:
      return 1;
  }
  return 0;
}

/// Only floating-point tensors can require gradients.
constexpr bool is_floating_point(DType dtype) {
  return dtype == kFloat32 || dtype == kFloat64 || dtype == kFloat16 || dtype == kBFloat16;
}

/// "float32", "int64", "bool" ...: NumPy's and PyTorch's names.
std::string_view name(DType dtype);

/// The dtype of a binary operation's result: the wider category (bool < integer < floating), then the wider type;
/// float16 with bfloat16 gives float32. Follows torch.promote_types.
DType promote_types(DType a, DType b);

/// dtype_of<float> == kFloat32, and so on.
template <typename T>
inline constexpr DType dtype_of = DType(255);
template <>
inline constexpr DType dtype_of<float> = kFloat32;
template <>
inline constexpr DType dtype_of<double> = kFloat64;
template <>
inline constexpr DType dtype_of<Half> = kFloat16;
template <>
inline constexpr DType dtype_of<BFloat16> = kBFloat16;
template <>
inline constexpr DType dtype_of<std::int64_t> = kInt64;
template <>
inline constexpr DType dtype_of<std::int32_t> = kInt32;
template <>
inline constexpr DType dtype_of<std::uint8_t> = kUInt8;
template <>
inline constexpr DType dtype_of<bool> = kBool;

}  // namespace lockstep
