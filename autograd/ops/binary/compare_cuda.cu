#include "lockstep/autograd/ops/binary/binary_cuda.cuh"
#include "lockstep/autograd/ops/binary/binary_functors.h"
#include "lockstep/core/cpu/row_io.h"

namespace lockstep {
namespace {

template <typename F, typename C>
struct Compare {
  __device__ bool operator()(C a, C b) const { return F()(a, b); }
};

template <typename C>
struct Choose {
  __device__ C operator()(C condition, C a, C b) const { return condition != C(0) ? a : b; }
};

}  // namespace

void compare_cuda(CompareOp op, const Operand& a, const Operand& b, DType compute, const Tensor& out) {
  with_compute_type(compute, [&]<typename C>() {
    binary::visit<C>(op, [&]<typename F>() {
      cuda::map_strided<C, true>(out, Compare<F, C>(), binary::cuda_input<C>(a), binary::cuda_input<C>(b));
    });
  });
}

void where_cuda(const Tensor& condition, const Operand& a, const Operand& b, const Tensor& out) {
  with_compute_type(cpu::compute_dtype(out.dtype()), [&]<typename C>() {
    cuda::map_strided<C>(out, Choose<C>(), cuda::Input<C>(condition), binary::cuda_input<C>(a),
                         binary::cuda_input<C>(b));
  });
}

}  // namespace lockstep
