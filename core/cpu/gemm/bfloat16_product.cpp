#include "lockstep/core/cpu/gemm/bfloat16_product.h"

#include <algorithm>
#include <vector>

#include "lockstep/core/cpu/gemm/bfloat16_kernels.h"
#include "lockstep/core/cpu/gemm/bfloat16_panels.h"
#include "lockstep/core/cpu/gemm/blocking.h"
#include "lockstep/core/cpu/gemm/operand.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/cpu/half_rows.h"
#include "lockstep/core/cpu/instruction_set.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace gemm_detail {

#if defined(__x86_64__)
const Bfloat16Kernels* bfloat16_kernels_avx512();
#endif

const Bfloat16Kernels* bfloat16_kernels() {
#if defined(__x86_64__)
  static const Bfloat16Kernels* const found =
      has_instruction_set(InstructionSet::avx512) && __builtin_cpu_supports("avx512bf16") ? bfloat16_kernels_avx512()
                                                                                          : nullptr;
  return found;
#else
  return nullptr;
#endif
}

}  // namespace gemm_detail

namespace {

using gemm_detail::Bfloat16Kernels;
using gemm_detail::Bfloat16Panels;
using gemm_detail::divide_up;
using gemm_detail::kBfloat16Columns;
using gemm_detail::kBfloat16Rows;

constexpr std::int64_t kSmall = std::int64_t{1} << 18;       // multiply-adds
constexpr std::int64_t kSmallOfFew = std::int64_t{1} << 13;  // with so few rows that b is read once
constexpr std::int64_t kRowPanels = 20;                      // at once, whose steps stay in a cache of the second level
constexpr std::int64_t kColumnPanels = 8;
constexpr std::int64_t kTaskPanels = 16;  // tiles of a task, at least: some 10 microseconds

/// Sums, `stride` apart, of the rows from `row` and the columns from `column` on, as results, rounded once.
void finish(const Bfloat16Product& g, float* sums, std::int64_t stride, std::int64_t row, std::int64_t rows,
            std::int64_t column, std::int64_t columns) {
  if (g.bias || g.activation != Activation::none)
    gemm_detail::finish_rows({.m = rows,
                              .n = columns,
                              .k = g.k,
                              .out = sums,
                              .out_stride = stride,
                              .bias = g.bias ? g.bias + column : nullptr,
                              .activation = g.activation},
                             sums, 0, rows, 1.0F);
  for (std::int64_t r = 0; r < rows; ++r)
    narrow_row(sums + r * stride, columns, g.out + (row + r) * g.out_stride + column);
}

/// Panels of rows times panels of columns, some of both at a time, whose sums stay in a cache until they are rounded.
class Multiplier {
 public:
  Multiplier(const Bfloat16Kernels& kernels, const Bfloat16Panels& a, const Bfloat16Panels& b, const Bfloat16Product& g)
      : kernels_(kernels), a_(a), b_(b), g_(g) {}

  void run(std::int64_t row_begin, std::int64_t row_end, std::int64_t column_begin, std::int64_t column_end) const {
    const Tensor space = empty({std::min(kRowPanels, row_end - row_begin) * kBfloat16Rows *
                                std::min(kColumnPanels, column_end - column_begin) * kBfloat16Columns});
    for (std::int64_t i = row_begin; i < row_end; i += kRowPanels)
      for (std::int64_t j = column_begin; j < column_end; j += kColumnPanels)
        multiply(i, std::min(i + kRowPanels, row_end), j, std::min(j + kColumnPanels, column_end), space.data<float>());
  }

 private:
  void multiply(std::int64_t row_begin, std::int64_t row_end, std::int64_t column_begin, std::int64_t column_end,
                float* sums) const {
    const std::int64_t row = a_.first_of(row_begin), rows = std::min(a_.first_of(row_end), g_.m) - row;
    const std::int64_t column = b_.first_of(column_begin), columns = std::min(b_.first_of(column_end), g_.n) - column;
    for (std::int64_t block = 0; block < a_.blocks(); ++block)
      for (std::int64_t j = column_begin; j < column_end; ++j)
        for (std::int64_t i = row_begin; i < row_end; ++i) {
          const auto& tiles = fits(a_.range(i, block), b_.range(j, block)) ? kernels_.paired : kernels_.fused;
          tiles[a_.lanes_of(i)](a_.at(i, block), b_.at(j, block), a_.steps_of(block),
                                sums + (a_.first_of(i) - row) * columns + b_.first_of(j) - column, columns,
                                b_.lanes_of(j), block > 0);
        }
    finish(g_, sums, columns, row, rows, column, columns);
  }

  const Bfloat16Kernels& kernels_;
  const Bfloat16Panels &a_, &b_;
  const Bfloat16Product& g_;
};

/// A product of so few rows that b is read once: it is packed a panel at a time, or not at all.
class FewRows {
 public:
  FewRows(const Bfloat16Kernels& kernels, const Bfloat16Product& g)
      : kernels_(kernels), g_(g), a_(g.m, kBfloat16Rows, g.k) {
    a_.pack(kernels, 0, g.a.data, g.a.transposed ? 1 : g.a.stride, g.a.transposed ? g.a.stride : 1);
  }

  void run() const {
    constexpr std::int64_t kElements = 1 << 16;  // of b, of a task
    const std::int64_t panels = divide_up(g_.n, kBfloat16Columns);
    parallel_for(panels, std::max<std::int64_t>(1, kElements / (g_.k * kBfloat16Columns)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t j = begin; j < end; ++j) panel(j * kBfloat16Columns);
                 });
  }

 private:
  using Sums = float[kBfloat16Rows * kBfloat16Columns];

  void panel(std::int64_t column) const {
    const std::int64_t columns = std::min(kBfloat16Columns, g_.n - column);
    Sums sums, more;
    for (std::int64_t block = 0; block < a_.blocks(); ++block) {
      multiply(column, columns, block, block == 0 ? sums : more);
      if (block == 0) continue;
      for (std::int64_t i = 0; i < g_.m * kBfloat16Columns; ++i) sums[i] = sums[i] + more[i];
    }
    finish(g_, sums, kBfloat16Columns, 0, g_.m, column, columns);
  }

  void multiply(std::int64_t column, std::int64_t columns, std::int64_t block, Sums& sums) const {
    const std::int64_t steps = a_.steps_of(block), step = block * a_.steps_of(0);
    const std::int64_t lane_stride = g_.b.transposed ? g_.b.stride : 1, step_stride = g_.b.transposed ? 1 : g_.b.stride;
    const gemm_detail::Bfloat16Lines lines{g_.b.data + column * lane_stride + step * step_stride, columns, steps,
                                           lane_stride, step_stride};
    const std::uint32_t* const a = a_.at(0, block);
    if (g_.m <= gemm_detail::kBfloat16Few && step_stride == 1 &&
        fits(a_.range(0, block), kernels_.lines[g_.m](a, lines, sums)))
      return;
    const Tensor space = empty({divide_up(steps, 2) * kBfloat16Columns}, {.dtype = kInt32});
    auto* const b = reinterpret_cast<std::uint32_t*>(space.data<std::int32_t>());
    const auto& tiles =
        fits(a_.range(0, block), kernels_.pack(lines, kBfloat16Columns, b)) ? kernels_.paired : kernels_.fused;
    tiles[g_.m](a, b, steps, sums, kBfloat16Columns, kBfloat16Columns, false);
  }

  const Bfloat16Kernels& kernels_;
  const Bfloat16Product& g_;
  Bfloat16Panels a_;
};

}  // namespace

bool has_bfloat16_pairs() {
  return kernels() == Kernels::own && instruction_set() == InstructionSet::avx512 && gemm_detail::bfloat16_kernels();
}

bool goes_by_bfloat16_pairs(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m >= 1 && n >= 16 && k >= 32 && m * n * k >= (m < kBfloat16Rows ? kSmallOfFew : kSmall) &&
         has_bfloat16_pairs();
}

void multiply_bfloat16(const Bfloat16Product& g) {
  const Bfloat16Kernels* const found = gemm_detail::bfloat16_kernels();
  if (g.m < kBfloat16Rows) return FewRows(*found, g).run();
  Bfloat16Panels a(g.m, kBfloat16Rows, g.k), b(g.n, kBfloat16Columns, g.k);
  const std::int64_t packed_at_once = std::max<std::int64_t>(1, gemm_detail::kPackElements / (g.k * kBfloat16Rows));
  parallel_for(a.count() + b.count(), packed_at_once, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      if (i < a.count())
        a.pack(*found, i, g.a.data, g.a.transposed ? 1 : g.a.stride, g.a.transposed ? g.a.stride : 1);
      else
        b.pack(*found, i - a.count(), g.b.data, g.b.transposed ? g.b.stride : 1, g.b.transposed ? 1 : g.b.stride);
  });
  // A grid of tasks, of which rows are cut first: what follows reads the result by rows.
  const std::int64_t tiles = a.count() * b.count();
  const std::int64_t wanted =
      num_threads() == 1 ? 1 : std::min(num_threads() * gemm_detail::kTasksPerThread, tiles / kTaskPanels);
  const std::int64_t row_tasks = std::clamp<std::int64_t>(wanted, 1, a.count());
  const std::int64_t column_tasks = std::clamp<std::int64_t>(wanted / row_tasks, 1, b.count());
  const Multiplier multiplier(*found, a, b, g);
  parallel_for(row_tasks * column_tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t row = task / column_tasks, column = task % column_tasks;
      multiplier.run(row * a.count() / row_tasks, (row + 1) * a.count() / row_tasks, column * b.count() / column_tasks,
                     (column + 1) * b.count() / column_tasks);
    }
  });
}

}  // namespace lockstep::cpu
