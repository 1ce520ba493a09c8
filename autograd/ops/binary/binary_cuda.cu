#include "lockstep/autograd/ops/binary/binary_cuda.cuh"
#include "lockstep/autograd/ops/binary/binary_functors.h"
#include "lockstep/core/cuda/math_mode.h"

namespace lockstep {
namespace {

template <typename F, typename C>
struct Apply {
  F f;
  __device__ C operator()(C a, C b) const { return f(a, b); }
};

// What every training step asks of large tensors has packed loops for each dtype; the rest shares one loop a compute
// type, which keeps the compiler's time down.
template <typename F, typename C>
inline constexpr bool kCommon =
    std::is_same_v<F, binary::Add<C>> || std::is_same_v<F, binary::Mul<C>> || std::is_same_v<F, binary::Div<C>>;

}  // namespace

void binary_cuda(BinaryOp op, double alpha, const Operand& a, const Operand& b, DType compute, const Tensor& out) {
  if (op >= BinaryOp::pow) cuda::require_not_portable("a power, a remainder or the gradient of a binary operation");
  with_compute_type(compute, [&]<typename C>() {
    const cuda::Input<C> first = binary::cuda_input<C>(a), second = binary::cuda_input<C>(b);
    binary::visit<C>(op, [&]<typename F>() {
      const Apply<F, C> apply{F{static_cast<C>(alpha)}};
      if constexpr (kCommon<F, C>) {
        cuda::map<C>(out, apply, first, second);
      } else {
        cuda::map_strided<C>(out, apply, first, second);
      }
    });
  });
}

}  // namespace lockstep
