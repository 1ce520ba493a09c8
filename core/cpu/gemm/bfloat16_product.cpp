#include "lockstep/core/cpu/gemm/bfloat16_product.h"

#include <algorithm>
#include <vector>

#include "lockstep/core/cpu/gemm/bfloat16_kernels.h"
#include "lockstep/core/cpu/gemm/bfloat16_panels.h"
#include "lockstep/core/cpu/gemm/blocking.h"
#include "lockstep/core/cpu/gemm/operand.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/cpu/instruction_set.h"
#include "lockstep/core/elementwise.h"
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

constexpr std::int64_t kSmall = std::int64_t{1} << 18;  // multiply-adds
constexpr std::int64_t kPanelsAtOnce = 40;              // of rows, whose steps stay in a cache of the second level
constexpr std::int64_t kTaskPanels = 16;                // tiles of a task, at least: some 10 microseconds

/// Panels of rows times panels of columns.
void multiply_panels(const Bfloat16Kernels& kernels, const Bfloat16Panels& a, const Bfloat16Panels& b,
                     const Bfloat16Product& g, std::int64_t row_begin, std::int64_t row_end, std::int64_t column_begin,
                     std::int64_t column_end) {
  for (std::int64_t first = row_begin; first < row_end; first += kPanelsAtOnce)
    for (std::int64_t block = 0; block < a.blocks(); ++block)
      for (std::int64_t j = column_begin; j < column_end; ++j)
        for (std::int64_t i = first; i < std::min(first + kPanelsAtOnce, row_end); ++i) {
          const auto& tiles = fits(a.range(i, block), b.range(j, block)) ? kernels.paired : kernels.fused;
          tiles[a.lanes_of(i)](a.at(i, block), b.at(j, block), a.steps_of(block),
                               g.out + a.first_of(i) * g.out_stride + b.first_of(j), g.out_stride, b.lanes_of(j),
                               block > 0);
        }
}

}  // namespace

bool has_bfloat16_pairs() {
  return kernels() == Kernels::own && instruction_set() == InstructionSet::avx512 && gemm_detail::bfloat16_kernels();
}

bool goes_by_bfloat16_pairs(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m >= kBfloat16Rows && n >= 16 && k >= 32 && m * n * k >= kSmall && has_bfloat16_pairs();
}

void multiply_bfloat16(const Bfloat16Product& g) {
  const Bfloat16Kernels* const found = gemm_detail::bfloat16_kernels();
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
  parallel_for(row_tasks * column_tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t row = task / column_tasks, column = task % column_tasks;
      multiply_panels(*found, a, b, g, row * a.count() / row_tasks, (row + 1) * a.count() / row_tasks,
                      column * b.count() / column_tasks, (column + 1) * b.count() / column_tasks);
    }
  });
  if (!g.bias && g.activation == Activation::none) return;
  const Gemm<float> rest{.m = g.m,
                         .n = g.n,
                         .k = g.k,
                         .out = g.out,
                         .out_stride = g.out_stride,
                         .bias = g.bias,
                         .activation = g.activation};
  parallel_for(g.m, std::max<std::int64_t>(1, kElementBlock / g.n),
               [&](std::int64_t begin, std::int64_t end) { gemm_detail::finish_rows(rest, g.out, begin, end, 1.0F); });
}

}  // namespace lockstep::cpu
