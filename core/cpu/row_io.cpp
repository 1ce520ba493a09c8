#include "lockstep/core/cpu/row_io.h"

#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "lockstep/core/dispatch.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::cpu {
namespace {

template <typename C, typename T>
C widen(T value) {
  return static_cast<C>(static_cast<compute_t<T>>(value));
}

template <typename T, typename C>
T narrow(C value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value != C(0);
  } else {
    return static_cast<T>(static_cast<compute_t<T>>(value));
  }
}

template <typename C, typename T>
void load(const T* source, std::int64_t stride, std::int64_t count, C* values) {
  if (stride == 1) {
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < count; ++i) values[i] = widen<C>(source[i]);
  } else if (stride == 0) {
    const C value = widen<C>(source[0]);
    for (std::int64_t i = 0; i < count; ++i) values[i] = value;
  } else {
    for (std::int64_t i = 0; i < count; ++i) values[i] = widen<C>(source[i * stride]);
  }
}

template <typename C, typename T>
void store(const C* values, std::int64_t count, T* target, std::int64_t stride) {
  if (stride == 1) {
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < count; ++i) target[i] = narrow<T>(values[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) target[i * stride] = narrow<T>(values[i]);
  }
}

#if defined(__F16C__)
// The processor converts eight halves at a time, with the same rounding as Half.
std::int64_t load_halves(const Half* source, std::int64_t count, float* values) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
  return i;
}
std::int64_t store_halves(const float* values, std::int64_t count, Half* target) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
#else
std::int64_t load_halves(const Half*, std::int64_t, float*) {
  return 0;
}
std::int64_t store_halves(const float*, std::int64_t, Half*) {
  return 0;
}
#endif

}  // namespace

template <typename C>
void load_row(DType dtype, const void* source, std::int64_t stride, std::int64_t count, C* values) {
  const auto run = [&]<typename T>() {
    const T* from = static_cast<const T*>(source);
    if constexpr (std::is_same_v<C, float> && std::is_same_v<T, Half>) {
      const std::int64_t done = stride == 1 ? load_halves(from, count, values) : 0;
      load<C>(from + done * stride, stride, count - done, values + done);
    } else {
      load<C>(from, stride, count, values);
    }
  };
  if constexpr (std::is_same_v<C, std::int64_t>) {
    if (dtype == kBool) return run.template operator()<bool>();
    dispatch_integer(dtype, "load_row", run);
  } else {
    dispatch_all(dtype, "load_row", run);
  }
}

template <typename C>
void store_row(const C* values, std::int64_t count, DType dtype, void* target, std::int64_t stride) {
  const auto run = [&]<typename T>() {
    T* to = static_cast<T*>(target);
    if constexpr (std::is_same_v<C, float> && std::is_same_v<T, Half>) {
      const std::int64_t done = stride == 1 ? store_halves(values, count, to) : 0;
      store(values + done, count - done, to + done * stride, stride);
    } else {
      store(values, count, to, stride);
    }
  };
  if constexpr (std::is_same_v<C, std::int64_t>) {
    if (dtype == kBool) return run.template operator()<bool>();
    dispatch_integer(dtype, "store_row", run);
  } else {
    dispatch_floating(dtype, "store_row", run);
  }
}

template void load_row(DType, const void*, std::int64_t, std::int64_t, float*);
template void load_row(DType, const void*, std::int64_t, std::int64_t, double*);
template void load_row(DType, const void*, std::int64_t, std::int64_t, std::int64_t*);
template void store_row(const float*, std::int64_t, DType, void*, std::int64_t);
template void store_row(const double*, std::int64_t, DType, void*, std::int64_t);
template void store_row(const std::int64_t*, std::int64_t, DType, void*, std::int64_t);

}  // namespace lockstep::cpu
