#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace lockstep {

/// IEEE 754 binary16, stored; arithmetic is done in float. Conversions round to nearest even.
struct Half {
  std::uint16_t bits = 0;  ///< sign, 5 bits of exponent, 10 of mantissa
  Half() = default;
  Half(float value) : bits(from_float(value)) {}
  operator float() const { return to_float(bits); }  ///< exact

  static std::uint16_t from_float(float value);  ///< rounds to nearest, ties to even; infinity above 65504
  static float to_float(std::uint16_t bits);     ///< exact
};

/// bfloat16: the upper half of a float, rounded to nearest even.
struct BFloat16 {
  std::uint16_t bits = 0;  ///< sign, 8 bits of exponent, 7 of mantissa
  BFloat16() = default;
  BFloat16(float value) : bits(from_float(value)) {}
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }  ///< exact

  /// Rounds to nearest, ties to even.
  static std::uint16_t from_float(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((word >> 16) | 0x40u);  // keep NaN
    return static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
};

/// See above.
inline std::uint16_t Half::from_float(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
  const std::uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to infinity
  if (magnitude < 0x38800000u) {                        // subnormal: let the float adder round
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

/// See above.
inline float Half::to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

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
inline constexpr DType kFloat = kFloat32;            ///< kFloat32, as the next ones libtorch's other names
inline constexpr DType kDouble = kFloat64;           ///< kFloat64
inline constexpr DType kHalf = kFloat16;             ///< kFloat16
inline constexpr DType kLong = kInt64;               ///< kInt64
inline constexpr DType kInt = kInt32;                ///< kInt32
inline constexpr DType kByte = kUInt8;               ///< kUInt8
inline constexpr DType kF16 = kFloat16;              ///< kFloat16, as the next ones libtorch's short names
inline constexpr DType kBF16 = kBFloat16;            ///< kBFloat16
inline constexpr DType kF32 = kFloat32;              ///< kFloat32
inline constexpr DType kF64 = kFloat64;              ///< kFloat64
inline constexpr DType kI32 = kInt32;                ///< kInt32
inline constexpr DType kI64 = kInt64;                ///< kInt64
inline constexpr DType kU8 = kUInt8;                 ///< kUInt8

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

/// A number given to an operation beside tensors. It knows whether it was written as an integer, a floating-point
/// number or a bool, because that decides the result's dtype; see result_dtype().
class Scalar {
 public:
  /// From any arithmetic type.
  template <typename T>
  requires std::is_arithmetic_v<T>
  constexpr Scalar(T value)
      : real_(static_cast<double>(value)),
        whole_(std::is_floating_point_v<T> ? 0 : static_cast<std::int64_t>(value)),
        kind_(kind_of(value)) {}

  constexpr bool is_floating_point() const { return kind_ == Kind::real; }  ///< made from a floating-point number
  constexpr bool is_bool() const { return kind_ == Kind::boolean; }         ///< made from a bool
  constexpr double to_double() const { return real_; }  ///< the value, rounded if it is an integer above 2^53
  /// Only for numbers that are not floating-point.
  constexpr std::int64_t to_int64() const { return whole_; }
  /// True if -2^53 <= value <= 2^53 is a whole number.
  constexpr bool is_whole() const {
    return real_ >= -0x1p53 && real_ <= 0x1p53 && static_cast<double>(static_cast<std::int64_t>(real_)) == real_;
  }

 private:
  enum class Kind : std::uint8_t { whole, real, boolean };
  /// Whole numbers above the largest int64 count as floating-point ones.
  template <typename T>
  static constexpr Kind kind_of(T value) {
    if constexpr (std::is_same_v<T, bool>) {
      return Kind::boolean;
    } else if constexpr (std::is_floating_point_v<T>) {
      return Kind::real;
    } else if constexpr (std::is_unsigned_v<T> && sizeof(T) == sizeof(std::int64_t)) {
      return value > static_cast<T>(INT64_MAX) ? Kind::real : Kind::whole;
    } else {
      return Kind::whole;
    }
  }

  double real_;
  std::int64_t whole_;
  Kind kind_;
};

/// The dtype of `tensor op scalar`: the tensor's, unless the scalar is of a wider category (bool < integer < floating);
/// then int64 or float32. Follows torch.result_type.
constexpr DType result_dtype(DType tensor, Scalar scalar) {
  if (is_floating_point(tensor)) return tensor;
  if (scalar.is_floating_point()) return kFloat32;
  return tensor == kBool && !scalar.is_bool() ? kInt64 : tensor;
}

/// Throws Error naming `op` unless a tensor of `dtype` can hold `value`: an integer dtype's range is its own (fractions
/// are cut off), bool and the floating-point dtypes hold any number.
void check_in_range(Scalar value, DType dtype, const char* op);

}  // namespace lockstep
