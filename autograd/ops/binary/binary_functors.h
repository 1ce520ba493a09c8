#pragma once

// The arithmetic of the binary family, shared by every device. For kernels (.cpp and .cu) only.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "lockstep/autograd/ops/binary/binary_kernels.h"
#include "lockstep/autograd/ops/binary/bit_functors.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::binary {

// Each functor is made from alpha and maps two values of type T (float, double or std::int64_t) to one. Integers wrap.

template <typename T>
LOCKSTEP_HOST_DEVICE inline T multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

template <typename T>
struct Add {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(multiply(alpha, b)));
    } else {
      return a + alpha * b;
    }
  }
};

template <typename T>
struct Mul {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return multiply(a, b); }
};

template <typename T>
struct Div {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return a / b; }
};

/// a / b towards zero. Integers: 0 where b is.
template <typename T>
struct DivTrunc {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;
      return b == -1 ? multiply(a, b) : a / b;  // the smallest integer has no counterpart, and wraps
    } else {
      return std::trunc(a / b);
    }
  }
};

/// a / b downwards. Integers: 0 where b is. Floating-point numbers as Python's `//`: from the remainder, which is
/// exact, so that a quotient just below a whole number does not count as it.
template <typename T>
struct DivFloor {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;
      if (b == -1) return multiply(a, b);
      return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    } else {
      if (b == T(0)) return a / b;
      const T remainder = std::fmod(a, b);
      const bool below = remainder != T(0) && (remainder < T(0)) != (b < T(0));
      const T quotient = (a - remainder) / b - (below ? T(1) : T(0));
      if (quotient == T(0)) return std::copysign(T(0), a / b);
      return std::round(quotient);
    }
  }
};

/// a - b floor(a / b), exactly. Integers: 0 where b is.
template <typename T>
struct Remainder {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0 || b == -1) return 0;
      const T rest = a % b;
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    } else {
      const T rest = std::fmod(a, b);
      return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
    }
  }
};

/// The rest of a / b rounded towards zero, exactly. Integers: 0 where b is.
template <typename T>
struct Fmod {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return b == 0 || b == -1 ? T(0) : a % b;
    } else {
      return std::fmod(a, b);
    }
  }
};

/// The angle of the point (b, a), of float32 within 2 ulp.
template <typename T>
struct Atan2 {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    const T y = std::fabs(a), x = std::fabs(b), most = y < x ? x : y, least = y < x ? y : x;
    constexpr T kHalfPi = T(1.57079632679489661923), kQuarterPi = T(0.78539816339744830962);
    constexpr T kLow = std::is_same_v<T, float> ? T(-4.37113883e-8) : T(6.123233995736766e-17);  // of pi / 2
    T angle = of_quotient(least / (most == T(0) ? T(1) : most));                                 // in the first octant
    angle = least == most ? (most == T(0) ? T(0) : kQuarterPi) : angle;
    angle = y < x ? angle : (y == x ? angle : kHalfPi - (angle - kLow));
    angle = std::signbit(b) ? T(2) * kHalfPi - (angle - T(2) * kLow) : angle;
    return (a != a) | (b != b) ? a + b : std::copysign(angle, a);
  }

 private:
  LOCKSTEP_HOST_DEVICE static double of_quotient(double t) { return math::atan(t); }
  LOCKSTEP_HOST_DEVICE static float of_quotient(float t) { return math::fixed::atan_to_one(t); }
};

/// sqrt(a^2 + b^2), without overflow.
template <typename T>
struct Hypot {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    constexpr T kInfinity = static_cast<T>(INFINITY);
    const T x = std::fabs(a), y = std::fabs(b);
    if (x == kInfinity || y == kInfinity) return kInfinity;
    const T most = (x > y) | (x != x) ? x : y, least = (x > y) | (x != x) ? y : x;
    if (most == T(0)) return most;
    const T ratio = least / most;
    return most * std::sqrt(std::fma(ratio, ratio, T(1)));
  }
};

/// |a| with the sign of b.
template <typename T>
struct Copysign {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return std::copysign(a, b); }
};

/// log(exp(a) + exp(b))
template <typename T>
struct LogAddExp {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    const T most = a > b ? a : b, least = a > b ? b : a;
    const T sum = most + math::log1p(math::exp(a == b ? T(0) : least - most));  // equal infinities have no difference
    return (a != a) | (b != b) ? a + b : sum;
  }
};

/// What log_add_exp's gradient gives to a: exp(a) / (exp(a) + exp(b)).
template <typename T>
struct ExpShare {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return a == b ? T(0.5) : math::sigmoid(a - b); }
};

/// a + alpha (b - a)
template <typename T>
struct Lerp {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return a + alpha * (b - a); }
};

/// a where it is above 0, else a b.
template <typename T>
struct Prelu {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return a > T(0) ? a : b * a; }
};

/// d prelu(a, b) / da.
template <typename T>
struct PreluByInput {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return a > T(0) ? T(1) : b; }
};

/// What a gradient a gives to the weight beside the input b.
template <typename T>
struct PreluByWeight {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return b > T(0) ? T(0) : a * b; }
};

/// d(a / b) / db.
template <typename T>
struct DivByOther {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return -(a / b) / b; }
};

template <typename T>
struct Maximum {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return (a > b) | (a != a) ? a : b; }
};

template <typename T>
struct Minimum {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return (a < b) | (a != a) ? a : b; }
};

/// The part of maximum's gradient that goes to a: equal values share it, and beside a NaN both get all of it, as in
/// PyTorch.
template <typename T>
struct GreaterShare {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return a < b ? T(0) : (a == b ? T(0.5) : T(1)); }
};
/// A gradient a times such a part b: nothing passes where b is 0, not even what is not finite.
template <typename T>
struct Selected {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return b == T(0) ? T(0) : a * b; }
};

template <typename T>
struct Pow {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b < 0) return a == 1 ? 1 : (a == -1 ? (b % 2 == 0 ? 1 : -1) : 0);
      T result = 1;
      for (; b > 0; b >>= 1, a = multiply(a, a))
        if (b & 1) result = multiply(result, a);
      return result;
    } else {
      return math::pow(a, b);
    }
  }
};

/// d(a^b) / da.
template <typename T>
struct PowByBase {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return b == T(0) ? T(0) : b * math::pow(a, b - T(1)); }
};

/// d(a^b) / db.
template <typename T>
struct PowByExponent {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    return a == T(0) && b >= T(0) ? T(0) : math::pow(a, b) * math::log(a);
  }
};

/// exp(a - b): what logsumexp's backward multiplies by. Where b is -infinity all terms are, and the result is 0.
template <typename T>
struct ExpDifference {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    return math::exp(a - (b == static_cast<T>(-INFINITY) ? T(0) : b));
  }
};

/// Calls f.operator()<Functor>() with the functor of `op` for values of type T. Operations that are not defined for
/// integers are never asked of them.
template <typename T, typename F>
void visit(BinaryOp op, F&& f) {
  if constexpr (!std::is_integral_v<T>) {
    switch (op) {
      case BinaryOp::div:
        return f.template operator()<Div<T>>();
      case BinaryOp::prelu:
        return f.template operator()<Prelu<T>>();
      case BinaryOp::prelu_by_input:
        return f.template operator()<PreluByInput<T>>();
      case BinaryOp::prelu_by_weight:
        return f.template operator()<PreluByWeight<T>>();
      case BinaryOp::div_by_other:
        return f.template operator()<DivByOther<T>>();
      case BinaryOp::greater_share:
        return f.template operator()<GreaterShare<T>>();
      case BinaryOp::selected:
        return f.template operator()<Selected<T>>();
      case BinaryOp::pow_by_base:
        return f.template operator()<PowByBase<T>>();
      case BinaryOp::pow_by_exponent:
        return f.template operator()<PowByExponent<T>>();
      case BinaryOp::atan2:
        return f.template operator()<Atan2<T>>();
      case BinaryOp::lerp:
        return f.template operator()<Lerp<T>>();
      case BinaryOp::log_add_exp:
        return f.template operator()<LogAddExp<T>>();
      case BinaryOp::exp_share:
        return f.template operator()<ExpShare<T>>();
      case BinaryOp::hypot:
        return f.template operator()<Hypot<T>>();
      case BinaryOp::exp_difference:
        return f.template operator()<ExpDifference<T>>();
      case BinaryOp::copysign:
        return f.template operator()<Copysign<T>>();
      default:
        break;
    }
  } else {
    switch (op) {
      case BinaryOp::bit_and:
        return f.template operator()<BitAnd<T>>();
      case BinaryOp::bit_or:
        return f.template operator()<BitOr<T>>();
      case BinaryOp::bit_xor:
        return f.template operator()<BitXor<T>>();
      case BinaryOp::shift_left:
        return f.template operator()<ShiftLeft<T>>();
      case BinaryOp::shift_right:
        return f.template operator()<ShiftRight<T>>();
      default:
        break;
    }
  }
  switch (op) {
    case BinaryOp::add:
      return f.template operator()<Add<T>>();
    case BinaryOp::mul:
      return f.template operator()<Mul<T>>();
    case BinaryOp::maximum:
      return f.template operator()<Maximum<T>>();
    case BinaryOp::minimum:
      return f.template operator()<Minimum<T>>();
    case BinaryOp::pow:
      return f.template operator()<Pow<T>>();
    case BinaryOp::div_trunc:
      return f.template operator()<DivTrunc<T>>();
    case BinaryOp::div_floor:
      return f.template operator()<DivFloor<T>>();
    case BinaryOp::remainder:
      return f.template operator()<Remainder<T>>();
    case BinaryOp::fmod:
      return f.template operator()<Fmod<T>>();
    default:
      return;
  }
}

template <typename T>
struct Equal {
  LOCKSTEP_HOST_DEVICE bool operator()(T a, T b) const { return a == b; }
};
/// Equal, or both NaN.
template <typename T>
struct Same {
  LOCKSTEP_HOST_DEVICE bool operator()(T a, T b) const { return (a == b) | ((a != a) & (b != b)); }
};
template <typename T>
struct NotEqual {
  LOCKSTEP_HOST_DEVICE bool operator()(T a, T b) const { return a != b; }
};
template <typename T>
struct Less {
  LOCKSTEP_HOST_DEVICE bool operator()(T a, T b) const { return a < b; }
};
template <typename T>
struct LessEqual {
  LOCKSTEP_HOST_DEVICE bool operator()(T a, T b) const { return a <= b; }
};

/// The same for comparisons. greater and greater_equal are less and less_equal with the operands exchanged.
template <typename T, typename F>
void visit(CompareOp op, F&& f) {
  switch (op) {
    case CompareOp::equal:
      return f.template operator()<Equal<T>>();
    case CompareOp::same:
      return f.template operator()<Same<T>>();
    case CompareOp::not_equal:
      return f.template operator()<NotEqual<T>>();
    case CompareOp::less:
      return f.template operator()<Less<T>>();
    case CompareOp::less_equal:
      return f.template operator()<LessEqual<T>>();
  }
}

}  // namespace lockstep::binary
