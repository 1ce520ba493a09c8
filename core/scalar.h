#pragma once

#include <cstdint>
#include <type_traits>

#include "lockstep/core/dtype.h"

namespace lockstep {

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
