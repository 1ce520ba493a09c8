#include "lockstep/autograd/ops/matmul/matmul_kernels.h"
#include "lockstep/core/cuda/gemm_operand.h"

namespace lockstep {

void matmul_cuda(const Tensor& a, const Tensor& b, const Tensor& out) {
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
