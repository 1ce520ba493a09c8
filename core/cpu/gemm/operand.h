#pragma once

// Where the operands of a product lie in memory, and how a range is cut. For .cpp files only.

#include <algorithm>
#include <cstdint>

#include "lockstep/core/cpu/gemm/gemm.h"

namespace lockstep::cpu::gemm_detail {

inline constexpr std::int64_t kWays = 8;  // places of a cache for what lies a power of two apart

inline std::int64_t divide_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

// Whether so many rows of memory that lie `stride` elements apart have places of their own in a cache.
template <typename T>
bool keep_places(std::int64_t rows, std::int64_t stride) {
  constexpr std::int64_t kWay = 4096;  // bytes
  const std::int64_t bytes = stride * static_cast<std::int64_t>(sizeof(T));
  return rows * std::min(bytes & -bytes, kWay) <= kWays * kWay;
}

// Element (i, j) is at data[i * row + j * column]; row or column is 1.
template <typename T>
struct Strided {
  const T* data;
  std::int64_t row, column;
  const T* at(std::int64_t i, std::int64_t j) const { return data + i * row + j * column; }
  // Where to find, in column j, lines of the cache that the rows [begin, end) have and the row before has not: those of
  // their first elements, or of the last one if rows are neighbours in memory. Null if there are none.
  const T* new_lines(std::int64_t begin, std::int64_t end, std::int64_t j) const {
    if (row != 1) return at(begin, j);
    const auto line = [&](std::int64_t i) { return reinterpret_cast<std::uintptr_t>(at(i, j)) / 64; };
    return line(begin - 1) == line(end - 1) ? nullptr : at(end - 1, j);
  }
};

template <typename T>
Strided<T> strided(const GemmOperand<T>& operand, std::int64_t index) {
  const T* data = operand.data + index * operand.batch_stride;
  return operand.transposed ? Strided<T>{data, 1, operand.stride} : Strided<T>{data, operand.stride, 1};
}

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

// [0, size) in `count` parts whose lengths differ by one at most.
struct Parts {
  Parts(std::int64_t total, std::int64_t parts) : count(parts), length_(total / parts), longer_(total % parts) {}
  std::int64_t count;
  std::int64_t begin(std::int64_t i) const { return i * length_ + std::min(i, longer_); }

 private:
  std::int64_t length_, longer_;  // the first `longer_` have one more
};

}  // namespace lockstep::cpu::gemm_detail
