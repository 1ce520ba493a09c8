#pragma once

// Where the panels of a product's operands are packed, and which rows of memory are asked for before they are. For .cpp
// files only.

#include <algorithm>
#include <cstdint>

#include "lockstep/core/cpu/gemm/blocking.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/cpu/gemm/micro_kernel.h"
#include "lockstep/core/cpu/gemm/operand.h"
#include "lockstep/core/cpu/gemm/pack.h"
#include "lockstep/core/cpu/gemm/plan.h"

namespace lockstep::cpu::gemm_detail {

// Rows of an operand as it lies in memory, of which each panel of rows asks for a part while it is computed.
template <typename T>
struct Later {
  const T* from = nullptr;
  std::int64_t row = 0, rows = 0, lines = 0;
  void ask(Tile<T>& tile, Parts parts, std::int64_t panel) const {
    tile.later = from + parts.begin(panel) * row;
    tile.later_row = row;
    tile.later_rows = parts.begin(panel + 1) - parts.begin(panel);
    tile.later_lines = lines;
  }
};

// The panels of one matrix of a batch.
template <typename T>
class Packing {
 public:
  Packing(const MicroKernels<T>& kernels, const Gemm<T>& g, const Strided<T>& a, const Strided<T>& b,
          const Plan<T>& plan)
      : kernels_(kernels), g_(g), a_(a), b_(b), plan_(plan) {}

  std::int64_t padded(std::int64_t columns) const { return divide_up(columns, kernels_.lanes) * kernels_.lanes; }
  Range rows_of(std::int64_t panel) const { return {plan_.row_panels.begin(panel), plan_.row_panels.begin(panel + 1)}; }

  // Where a whole operand is packed, one block of k lies behind the other: those of some columns, and of some panels.
  T* place_of_b(T* b, Range columns, Range steps) const {
    return b + padded(g_.n) * steps.begin + columns.begin * steps.size();
  }
  T* place_of_a(T* a, std::int64_t panel, Range steps) const {
    return a + g_.m * (steps.begin + steps.begin / plan_.inner * kGap) +
           plan_.row_panels.begin(panel) * (steps.size() + (a_.row == 1 ? 0 : kGap));
  }

  void columns_of_b(Range columns, Range steps, T* to) const {
    const T* from = b_.at(steps.begin, columns.begin);
    if (b_.column == 1)
      return pack_row_panels(from, b_.row, steps.size(), columns.size(), plan_.tile_columns, kernels_.lanes, to);
    for (std::int64_t j = 0; j < columns.size(); j += plan_.tile_columns) {
      const std::int64_t width = std::min(plan_.tile_columns, columns.size() - j);
      kernels_.pack_columns(from + j * b_.column, b_.column, steps.size(), width, to + j * steps.size(), padded(width));
    }
  }

  // Rows are copied as they are. Of a transposed a, a line of the cache holds elements of several panels.
  void panels_of_a(Range panels, Range steps, T* to) const {
    const std::int64_t first = plan_.row_panels.begin(panels.begin), end = plan_.row_panels.begin(panels.end);
    if (a_.row != 1) {
      return copy_rows(a_.at(first, steps.begin), a_.row, end - first, steps.size(), to);
    }
    constexpr std::int64_t kTurn = 16;
    for (std::int64_t k = steps.begin; k < steps.end; k += kTurn) {
      const std::int64_t count = std::min(kTurn, steps.end - k);
      for (std::int64_t i = panels.begin; i < panels.end; ++i) {
        const Range rows = rows_of(i);
        pack_rows(a_.at(rows.begin, k), a_.column, count, rows.size(), rows.size(),
                  to + (rows.begin - first) * steps.size() + (k - steps.begin) * rows.size());
      }
    }
  }

  // The panel behind those of rows that are packed together with panel `first`.
  std::int64_t end_of_group(std::int64_t first, std::int64_t last) const {
    std::int64_t end = first;
    do ++end;
    while (end < last && (!plan_.pack_a ||
                          (a_.row == 1 && plan_.row_panels.begin(end) < plan_.row_panels.begin(first) + kGroupRows)));
    return end;
  }

  // What is packed after these columns of `all` in these steps.
  Later<T> columns_after(Range columns, Range steps, Range all) const {
    const std::int64_t wide = std::min(columns.size(), all.end - columns.end), deep = steps.size();
    if (wide == 0) return {};
    const T* const b = b_.at(steps.begin, columns.end);
    if (b_.column == 1) return {b, b_.row, deep, lines_of(wide)};
    return {b, b_.column, wide, lines_of(deep)};
  }
  // The rows of a transposed a that are packed from panel `first` on, if that is before `last`.
  Later<T> rows_after(std::int64_t first, std::int64_t last, Range steps) const {
    if (first == last) return {};
    const std::int64_t begin = plan_.row_panels.begin(first), end = plan_.row_panels.begin(end_of_group(first, last));
    return {a_.at(begin, steps.begin), a_.column, steps.size(), lines_of(end - begin)};
  }

 private:
  static std::int64_t lines_of(std::int64_t elements) { return divide_up(elements * std::int64_t{sizeof(T)}, 64); }

  const MicroKernels<T>& kernels_;
  const Gemm<T>& g_;
  const Strided<T>&a_, &b_;
  const Plan<T>& plan_;
};

}  // namespace lockstep::cpu::gemm_detail
