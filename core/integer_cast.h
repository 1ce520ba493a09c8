#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define LOCKSTEP_ON_BOTH __host__ __device__
#else
#define LOCKSTEP_ON_BOTH
#endif

namespace lockstep {

namespace detail {
/// integer_cast() for any processor.
template <typename T, typename F>
LOCKSTEP_ON_BOTH inline T checked_integer_cast(F value) {
  using Whole = std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>;
  constexpr F kEnd = sizeof(T) == 8 ? F(0x1p63) : F(0x1p31);
  constexpr auto kLeast = static_cast<Whole>(sizeof(T) == 8 ? INT64_MIN : INT32_MIN);
  return static_cast<T>(value >= -kEnd && value < kEnd ? static_cast<Whole>(value) : kLeast);
}
}  // namespace detail

/// The integer part of a floating-point value, as T. C++ leaves open what becomes of a value that T cannot hold, and
/// processors differ; here it is what x86 gives, on all of them: the least std::int64_t or std::int32_t, by T's size,
/// where the value is not a number or beyond these types, and the low bits of the integer part where T is smaller.
template <typename T, typename F>
LOCKSTEP_ON_BOTH inline T integer_cast(F value) {
  static_assert(std::is_integral_v<T> && std::is_floating_point_v<F>);
#if defined(__x86_64__) && !defined(__CUDA_ARCH__)
  // By its own instruction, but of what the compiler would compute itself.
  if (!__builtin_constant_p(value))
    return static_cast<T>(static_cast<std::conditional_t<sizeof(T) == 8, std::int64_t, std::int32_t>>(value));
#endif
  return detail::checked_integer_cast<T>(value);
}

}  // namespace lockstep

#undef LOCKSTEP_ON_BOTH
