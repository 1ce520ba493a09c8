#pragma once

// Rows of any dtype to and from the type that a CPU kernel computes in. For .cpp files only.

#include <cstdint>
#include <type_traits>

#include "lockstep/core/dtype.h"

namespace lockstep::cpu {

/// Note [Compute types]
/// Elementwise kernels and reductions are compiled for three types only: float (for float32, float16, bfloat16),
/// double, and int64 (for int64, int32, uint8 and bool). Rows of other dtypes, or with gaps, pass through a buffer of
/// kRowChunk elements that stays in the first-level cache. So type promotion costs no temporary tensor, and the number
/// of instantiations is that of the functors times three.
inline constexpr std::int64_t kRowChunk = 512;

/// The dtype of Note [Compute types] for elements of `dtype`: float32, float64 or int64.
constexpr DType compute_dtype(DType dtype) {
  if (dtype == kFloat64) return kFloat64;
  return is_floating_point(dtype) ? kFloat32 : kInt64;
}

/// Reads `count` elements that lie `stride` elements apart. C is float, double or std::int64_t; floating-point elements
/// are not read as integers.
template <typename C>
void load_row(DType dtype, const void* source, std::int64_t stride, std::int64_t count, C* values);

/// Writes `count` values, rounding to the target's dtype; integers wrap, and become bool by comparison to 0.
/// Floating-point values are not written to integers.
template <typename C>
void store_row(const C* values, std::int64_t count, DType dtype, void* target, std::int64_t stride);

/// The address of element `index` of a row of `dtype` elements.
inline const char* element_address(const void* base, std::int64_t index, DType dtype) {
  return static_cast<const char*>(base) + index * static_cast<std::int64_t>(element_size(dtype));
}
inline char* element_address(void* base, std::int64_t index, DType dtype) {
  return static_cast<char*>(base) + index * static_cast<std::int64_t>(element_size(dtype));
}

/// A strided row source of one tensor, read as C.
template <typename C>
struct RowSource {
  const void* data;
  DType dtype;

  bool readable(std::int64_t stride) const { return dtype == dtype_of<C> && stride == 1; }
  /// `count` elements from element `offset`: in place if they lie there as C, else in `buffer` (kRowChunk long).
  const C* row(std::int64_t offset, std::int64_t stride, std::int64_t count, C* buffer) const {
    const void* from = element_address(data, offset, dtype);
    if (readable(stride)) return static_cast<const C*>(from);
    load_row(dtype, from, stride, count, buffer);
    return buffer;
  }
  /// The same, but a row of stride 0 is read as one element.
  const C* row_or_one(std::int64_t offset, std::int64_t stride, std::int64_t count, C* buffer) const {
    if (stride != 0) return row(offset, stride, count, buffer);
    if (dtype == dtype_of<C>) return static_cast<const C*>(data) + offset;
    load_row(dtype, element_address(data, offset, dtype), 0, 1, buffer);
    return buffer;
  }
};

/// Where a kernel's rows of C (or bool) go. Write to row(), then call finish().
template <typename C>
struct RowTarget {
  void* data;
  DType dtype;

  bool writable(std::int64_t stride) const { return dtype == dtype_of<C> && stride == 1; }
  C* row(std::int64_t offset, std::int64_t stride, C* buffer) const {
    return writable(stride) ? static_cast<C*>(data) + offset : buffer;
  }
  void finish(const C* values, std::int64_t offset, std::int64_t stride, std::int64_t count) const {
    if (writable(stride)) return;
    char* to = element_address(data, offset, dtype);
    if constexpr (std::is_same_v<C, bool>) {
      for (std::int64_t i = 0; i < count; ++i) reinterpret_cast<bool*>(to)[i * stride] = values[i];
    } else {
      store_row(values, count, dtype, to, stride);
    }
  }
};

}  // namespace lockstep::cpu
