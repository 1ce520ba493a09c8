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
bool is_turned(const MicroKernels<T>& kernels, const Gemm<T>& g) {
  const int lanes = kernels.lanes;
  const bool few = 2 * g.n < lanes + 4;
  if (g.m < (few && g.beta == T(0) ? lanes : 2 * lanes) || (g.bias && g.row_bias) || g.activation == Activation::gelu)
    return false;
  // Vectors that are well filled cost less than to transpose a, unless a kernel does it by pairs of vectors.
  const bool pairs = kernels.turning_vectors[std::min<std::int64_t>(g.n, kMaxRows)] == 2 && g.k >= lanes;
  if (g.n < lanes && (g.a.transposed || few || pairs)) return true;
  // Of a far matrix whose rows share places in a cache a tile would read a little of each; as b it is read in longer
  // runs. Where far is not slow, narrow vectors gain from that only if all rows have the same places.
  const std::int64_t row_bytes = g.a.stride * static_cast<std::int64_t>(sizeof(T));
  const bool suffers = far_is_slow() || lanes * sizeof(T) == 64 || (g.n > lanes && row_bytes % 4096 == 0);
  if (g.a.transposed && !g.b.transposed && g.n <= kFewColumns && g.k > kShort && row_bytes % 2048 == 0 && suffers &&
      is_far(row_bytes * g.k))
    return true;
  return g.b.transposed && !g.a.transposed && (g.m * g.k + 2 * g.m * g.n) < g.n * g.k;
}

template <typename T>
void multiply_turned(const MicroKernels<T>& kernels, const Gemm<T>& g, std::int64_t index) {
  // One column is its own transpose. More have rows of zeros that complete a vector, to transpose them back.
  const bool one_column = g.n == 1 && g.out_stride == 1;
  const std::int64_t lanes = kernels.lanes, whole = g.n / lanes * lanes, padded = divide_up(g.n, lanes) * lanes;
  T* const out = g.out + index * g.out_batch_stride;
  Space<T> space(one_column ? 0 : g.m * padded);
  T* const turned = one_column ? out : space.data;
  if (!one_column) {
    std::fill(turned + g.m * g.n, turned + g.m * padded, T(0));
    if (g.beta != T(0)) transpose(kernels, out, g.m, g.n, g.out_stride, turned, g.m);
  }
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
  if (one_column) return;
  if (whole > 0) kernels.pack_columns(turned, g.m, g.m, whole, out, g.out_stride);
  if (whole < g.n) kernels.turn_narrow(turned + whole * g.m, g.m, g.m, g.n - whole, out + whole, g.out_stride);
}

template <typename T>
void multiply(const Gemm<T>& problem, InstructionSet set) {
  const MicroKernels<T>& kernels = micro_kernels<T>(set);
  const auto one = [&](std::int64_t index) {
    if (has_long_sums(problem))
      multiply_long_sums(problem, index);
    else if (is_turned(kernels, problem))
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
