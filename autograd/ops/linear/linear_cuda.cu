#include "lockstep/autograd/ops/linear/linear_kernels.h"
#include "lockstep/core/cuda/elementwise.cuh"
#include "lockstep/core/cuda/gemm_operand.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

constexpr int kColumns = 32;  // of a block: a warp reads 32 neighbours
constexpr int kLanes = 8;     // rows that a block reads at a time
// Rows that one block adds up. Fixed, so that the order of the sums depends on the sizes alone.
constexpr std::int64_t kRows = 512;

/// out[c][j] = sum of in[i][j] over the rows i of chunk c, computed in C.
template <typename C, typename T, typename O>
__global__ void column_sums_kernel(const T* in, O* out, std::int64_t rows, std::int64_t columns) {
  __shared__ C partial[kLanes][kColumns];
  const int lane = static_cast<int>(threadIdx.x) / kColumns, at = static_cast<int>(threadIdx.x) % kColumns;
  const std::int64_t strips = (columns + kColumns - 1) / kColumns, chunks = (rows + kRows - 1) / kRows;
  for (std::int64_t piece = blockIdx.x; piece < strips * chunks; piece += gridDim.x) {
    const std::int64_t column = piece % strips * kColumns + at, first = piece / strips * kRows;
    const std::int64_t end = first + kRows < rows ? first + kRows : rows;
    C sum = 0;
    if (column < columns)
      for (std::int64_t i = first + lane; i < end; i += kLanes) sum += cuda::from_element<C>(in[i * columns + column]);
    __syncthreads();  // the last piece's sums have been read
    partial[lane][at] = sum;
    __syncthreads();
    if (lane == 0 && column < columns) {
      for (int l = 1; l < kLanes; ++l) sum += partial[l][at];
      out[piece / strips * columns + column] = cuda::to_element<O>(sum);
    }
  }
}

template <typename C, typename T, typename O>
void start(const Tensor& in, const Tensor& out) {
  const std::int64_t rows = in.sizes()[0], columns = in.sizes()[1];
  const std::int64_t strips = (columns + kColumns - 1) / kColumns, chunks = (rows + kRows - 1) / kRows;
  const cuda::Launch launch(in);
  launch(column_sums_kernel<C, T, O>, cuda::blocks_for(strips * chunks, 1), kColumns * kLanes,
         static_cast<const T*>(in.raw_data()), static_cast<O*>(out.raw_data()), rows, columns);
}

// Passes over ever fewer rows until one chunk is left. Those between are kept in C.
template <typename C, typename T, typename O>
void column_sums(const Tensor& in, const Tensor& out) {
  const std::int64_t chunks = (in.sizes()[0] + kRows - 1) / kRows;
  if (chunks == 1) return start<C, T, O>(in, out);
  const Tensor partial = empty({chunks, in.sizes()[1]}, {.dtype = dtype_of<C>, .device = in.device()});
  start<C, T, C>(in, partial);
  column_sums<C, C, O>(partial, out);
}

/// In the order of linear_bias_grad_cpu(); a thread has a column.
template <typename T>
__global__ void portable_column_sums_kernel(const T* in, T* out, std::int64_t rows, std::int64_t columns) {
  using C = compute_t<T>;
  constexpr std::int64_t kRun = 64;
  for (std::int64_t column = cuda::global_thread(); column < columns; column += cuda::all_threads()) {
    C total = 0;
    for (std::int64_t start = 0; start < rows; start += kRun) {
      const std::int64_t end = start + kRun < rows ? start + kRun : rows;
      C run = 0;
      for (std::int64_t i = start; i < end; ++i) run += cuda::from_element<C>(in[i * columns + column]);
      total += run;
    }
    out[column] = cuda::to_element<T>(total);
  }
}

}  // namespace

void linear_forward_cuda(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out, bool relu) {
  Tensor left = x,
         right = weight.as_strided({weight.sizes()[1], weight.sizes()[0]}, {1, weight.sizes()[1]}, weight.offset());
  cuda::Gemm problem{.dtype = out.dtype(), .m = out.sizes()[0], .n = out.sizes()[1], .k = x.sizes()[1]};
  problem.a = cuda::gemm_operand(left);
  problem.b = cuda::gemm_operand(right);
  problem.out = out.raw_data();
  problem.out_stride = problem.n;
  problem.bias = bias.defined() ? bias.raw_data() : nullptr;
  problem.relu = relu;
  cuda::gemm(problem, out.device().index);
}

void linear_bias_grad_cuda(const Tensor& grad, const Tensor& out) {
  dispatch_floating(grad.dtype(), "linear bias grad", [&]<typename T>() {
    if (!cuda::portable()) return column_sums<compute_t<T>, T, T>(grad, out);
    const cuda::Launch launch(grad);
    launch(portable_column_sums_kernel<T>, cuda::blocks_for(out.numel()), cuda::kThreads,
           static_cast<const T*>(grad.raw_data()), static_cast<T*>(out.raw_data()), grad.sizes()[0], grad.sizes()[1]);
  });
}

}  // namespace lockstep
