#include "lockstep/autograd/ops/matmul/matmul_kernels.h"
#include "lockstep/core/cuda/elementwise.cuh"
#include "lockstep/core/cuda/gemm_operand.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

/// Elements of both operands by the number of an element of the result: row times the last dimension, column times the
/// one before.
template <typename T>
__global__ void integer_matmul_kernel(cuda::Strides<2> elements, const T* a, std::int64_t step_a, const T* b,
                                      std::int64_t step_b, std::int64_t k, T* out) {
  for (std::int64_t i = cuda::global_thread(); i < elements.numel; i += cuda::all_threads()) {
    std::int64_t offset[2];
    elements.offsets(i, offset);
    std::uint64_t sum = 0;  // wraps
    for (std::int64_t t = 0; t < k; ++t)
      sum +=
          static_cast<std::uint64_t>(a[offset[0] + t * step_a]) * static_cast<std::uint64_t>(b[offset[1] + t * step_b]);
    out[i] = static_cast<T>(sum);
  }
}

void integer_matmul(const Tensor& a, const Tensor& b, const Tensor& out) {
  const cuda::Launch launch(out);
  const int last = out.dim() - 1;
  Shape rows = a.strides(), columns = b.strides();
  const std::int64_t step_a = rows[last], step_b = columns[last - 1];
  rows[last] = 0;
  columns[last - 1] = 0;
  const cuda::Strides<2> elements(cpu::StridedLoop<2>{out.sizes(), {rows, columns}, out.numel()});
  dispatch_integer(out.dtype(), "matmul", [&]<typename T>() {
    launch(integer_matmul_kernel<T>, cuda::blocks_for(out.numel()), cuda::kThreads, elements, a.data<T>(), step_a,
           b.data<T>(), step_b, a.size(-1), out.data<T>());
  });
}

}  // namespace

void matmul_cuda(const Tensor& a, const Tensor& b, const Tensor& out) {
  if (!out.is_floating_point()) return integer_matmul(a, b, out);
  Tensor left = a, right = b;
  cuda::Gemm problem{.dtype = out.dtype(), .m = out.size(-2), .n = out.size(-1), .k = a.size(-1)};
  problem.batch = out.numel() / (problem.m * problem.n);
  problem.a = cuda::gemm_operand(left);
  problem.b = cuda::gemm_operand(right);
  problem.out = out.raw_data();
  problem.out_stride = problem.n;
  problem.out_batch_stride = problem.m * problem.n;
  cuda::gemm(problem, out.device().index);
}

}  // namespace lockstep
