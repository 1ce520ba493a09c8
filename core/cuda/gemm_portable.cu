// Products in the order of the CPU's: Note [Order of a product] in core/cpu/gemm/own.h, Note [Portable arithmetic].

#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/gemm.h"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep::cuda::detail {
namespace {

constexpr int kSide = 16;  // of the tile of the result that a block computes, and of those of a and b that it shares

/// Element (i, j) is at data[i * row + j * column].
template <typename T>
struct Matrix {
  const T* data;
  std::int64_t row, column, batch;

  explicit Matrix(const GemmOperand& operand)
      : data(static_cast<const T*>(operand.data)),
        row(operand.transposed ? 1 : operand.stride),
        column(operand.transposed ? operand.stride : 1),
        batch(operand.batch_stride) {}
};

/// A thread has an element: one chain of fused multiply-adds for each block of `inner` steps, the blocks one after the
/// other.
template <typename T>
__global__ void portable_gemm_kernel(Gemm g, Matrix<T> a, Matrix<T> b, std::int64_t inner) {
  using C = compute_t<T>;
  __shared__ C left[kSide][kSide + 1], right[kSide][kSide + 1];
  const int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;
  const std::int64_t columns = (g.n + kSide - 1) / kSide, rows = (g.m + kSide - 1) / kSide;
  for (std::int64_t tile = blockIdx.x; tile < columns * rows * g.batch; tile += gridDim.x) {
    const std::int64_t matrix = tile / (columns * rows);
    const std::int64_t i = tile / columns % rows * kSide + y, j = tile % columns * kSide + x;
    const T* const a_row = a.data + matrix * a.batch + i * a.row;
    const T* const b_column = b.data + matrix * b.batch + j * b.column;
    T* const out = static_cast<T*>(g.out) + matrix * g.out_batch_stride + i * g.out_stride + j;
    const bool counts = i < g.m && j < g.n;
    C result = 0;
    for (std::int64_t first = 0; first < g.k; first += inner) {
      const std::int64_t end = first + inner < g.k ? first + inner : g.k;
      C sum = 0;
      for (std::int64_t step = first; step < end; step += kSide) {
        __syncthreads();  // the last tiles have been used
        left[y][x] = i < g.m && step + x < end ? from_element<C>(a_row[(step + x) * a.column]) : C(0);
        right[y][x] = j < g.n && step + y < end ? from_element<C>(b_column[(step + y) * b.row]) : C(0);
        __syncthreads();
        const int count = end - step < kSide ? static_cast<int>(end - step) : kSide;
        for (int p = 0; p < count; ++p) sum = std::fma(left[y][p], right[p][x], sum);
      }
      const C value = g.alpha == 1.0 ? sum : static_cast<C>(g.alpha) * sum;
      if (first > 0)
        result = result + value;
      else if (g.beta == 0.0 || !counts)
        result = value;
      else
        result = (g.beta == 1.0 ? from_element<C>(*out) : static_cast<C>(g.beta) * from_element<C>(*out)) + value;
    }
    if (!counts) continue;
    if (g.bias) result = result + from_element<C>(static_cast<const T*>(g.bias)[j]);
    if (g.relu && result < C(0)) result = C(0);
    *out = to_element<T>(result);
  }
}

}  // namespace

void gemm_portable(const Gemm& problem, int device) {
  const DeviceGuard guard(device);
  const std::int64_t tiles = (problem.n + kSide - 1) / kSide * ((problem.m + kSide - 1) / kSide) * problem.batch;
  dispatch_floating(problem.dtype, "gemm", [&]<typename T>() {
    launch_on(Stream::current(device).handle(), portable_gemm_kernel<T>, blocks_for(tiles, 1), kSide * kSide, problem,
              Matrix<T>(problem.a), Matrix<T>(problem.b), cpu::gemm_detail::inner_block(problem.k));
  });
}

}  // namespace lockstep::cuda::detail
