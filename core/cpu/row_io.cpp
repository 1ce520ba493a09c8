#include "lockstep/core/cpu/row_io.h"

#include <type_traits>

#include "lockstep/core/cpu/half_rows.h"
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

// Float32 beside a half type, for which there are kernels of their own.
template <typename C, typename T>
constexpr bool kHalves = std::is_same_v<C, float> && (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>);

}  // namespace

template <typename C>
void load_row(DType dtype, const void* source, std::int64_t stride, std::int64_t count, C* values) {
  const auto run = [&]<typename T>() {
    const T* from = static_cast<const T*>(source);
    if constexpr (kHalves<C, T>)
      if (stride == 1) return widen_row(from, count, values);
    load<C>(from, stride, count, values);
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
    if constexpr (kHalves<C, T>)
      if (stride == 1) return narrow_row(values, count, to);
    store(values, count, to, stride);
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
