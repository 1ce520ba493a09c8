// Products by our own kernels: which are computed as they are, which as their transpose.

#include "lockstep/core/cpu/gemm/own.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/cpu/gemm/long_sums.h"
#include "lockstep/core/cpu/gemm/micro_kernels.h"
#include "lockstep/core/cpu/gemm/product.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// to[j][i] = from[i][j]
template <typename T>
void transpose(const MicroKernels<T>& kernels, const T* from, std::int64_t rows, std::int64_t columns,
               std::int64_t stride, T* to, std::int64_t to_stride) {
  const std::int64_t whole = rows / kernels.lanes * kernels.lanes;
  if (whole > 0) kernels.pack_columns(from, stride, columns, whole, to, to_stride);
  for (std::int64_t i = whole; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) to[j * to_stride + i] = from[i * stride + j];
}

// Some results are computed as their transpose, b^T a^T, by the same sums: narrow ones, so that vectors are full, and
// those where a is smaller to transpose than b.
template <typename T>
bool is_turned(const Gemm<T>& g, int lanes) {
  if (g.m < 2 * lanes || (g.bias && g.row_bias) || g.activation == Activation::gelu) return false;
  // Vectors that are well filled cost less than to transpose a.
  if (g.n < lanes && (g.a.transposed || 2 * g.n < lanes + 4)) return true;
  // Of a far matrix whose rows share places in a cache a tile would read a little of each; as b it is read in longer
  // runs.
  const std::int64_t row_bytes = g.a.stride * static_cast<std::int64_t>(sizeof(T));
  if (g.a.transposed && !g.b.transposed && g.n <= kFewColumns && g.k > kShort && row_bytes % 2048 == 0 &&
      is_far(row_bytes * g.k))
    return true;
  return g.b.transposed && !g.a.transposed && (g.m * g.k + 2 * g.m * g.n) < g.n * g.k;
}

template <typename T>
void multiply_turned(const MicroKernels<T>& kernels, const Gemm<T>& g, std::int64_t index) {
  constexpr std::int64_t kLocal = 2048;
  alignas(64) T local[kLocal];
  const Tensor space = empty({g.m * g.n > kLocal ? g.m * g.n : 0}, {.dtype = dtype_of<T>});
  T* const turned = g.m * g.n > kLocal ? space.data<T>() : local;
  T* const out = g.out + index * g.out_batch_stride;
  if (g.beta != T(0)) transpose(kernels, out, g.m, g.n, g.out_stride, turned, g.m);
  Gemm<T> t = g;
  std::swap(t.m, t.n);
  std::swap(t.a, t.b);
  std::swap(t.bias, t.row_bias);
  t.a.transposed = !t.a.transposed;
  t.b.transposed = !t.b.transposed;
  t.a.data += index * t.a.batch_stride;
  t.b.data += index * t.b.batch_stride;
  t.out = turned;
  t.out_stride = t.n;
  Product<T>(kernels, t, 0).run();
  transpose(kernels, turned, g.n, g.m, g.m, out, g.out_stride);
}

template <typename T>
void multiply(const Gemm<T>& problem, InstructionSet set) {
  const MicroKernels<T>& kernels = micro_kernels<T>(set);
  const auto one = [&](std::int64_t index) {
    if (has_long_sums(problem))
      multiply_long_sums(problem, index);
    else if (is_turned(problem, kernels.lanes))
      multiply_turned(kernels, problem, index);
    else
      Product<T>(kernels, problem, index).run();
  };
  if (problem.batch == 1) return one(0);
  // Few matrices: parallel inside each product. Many: parallel over them.
  const double macs = static_cast<double>(problem.m) * static_cast<double>(problem.n) * static_cast<double>(problem.k);
  const std::int64_t each =
      problem.batch < 8 ? problem.batch : static_cast<std::int64_t>(std::max(1.0, kTaskFlops / 2 / macs));
  parallel_for(problem.batch, each, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) one(i);
  });
}

}  // namespace

void multiply_own(const Gemm<float>& problem, InstructionSet set) {
  multiply(problem, set);
}
void multiply_own(const Gemm<double>& problem, InstructionSet set) {
  multiply(problem, set);
}

}  // namespace lockstep::cpu::gemm_detail
