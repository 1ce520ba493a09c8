#include <type_traits>

#include "lockstep/autograd/ops/unary/unary_functors.h"
#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/cuda/elementwise.cuh"
#include "lockstep/core/cuda/math_mode.h"

namespace lockstep {
namespace {

template <typename F, typename C>
struct Value {
  F f;
  __device__ C operator()(C x) const { return f.value(x); }
};
template <typename F, typename C>
struct Gradient {
  F f;
  __device__ C operator()(C grad, C saved) const { return f.gradient(grad, saved); }
};

/// Activations and their like have kernels of their own for contiguous tensors of each dtype; the others share one,
/// which keeps the time that this file takes to compile within bounds.
template <typename F, typename C>
inline constexpr bool kOften = std::is_same_v<C, float> &&
                               (std::is_same_v<F, unary::Neg<C>> || std::is_same_v<F, unary::Relu<C>> ||
                                std::is_same_v<F, unary::Exp<C>> || std::is_same_v<F, unary::Tanh<C>> ||
                                std::is_same_v<F, unary::Sigmoid<C>> || std::is_same_v<F, unary::Gelu<C>> ||
                                std::is_same_v<F, unary::GeluTanh<C>> || std::is_same_v<F, unary::Silu<C>>);

template <typename F, typename C, typename Function, typename... In>
void apply(const Tensor& out, const Function& function, const In&... in) {
  if constexpr (kOften<F, C>) {
    cuda::map<C>(out, function, cuda::Input<C>(in)...);
  } else {
    cuda::map_strided<C>(out, function, cuda::Input<C>(in)...);
  }
}

template <typename C>
void run(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& out) {
  unary::visit<C>(op, [&]<typename F>() { apply<F, C>(out, Value<F, C>{F(params)}, x); });
}

template <typename C>
void run_backward(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved, const Tensor& out) {
  unary::visit<C>(op, [&]<typename F>() { apply<F, C>(out, Gradient<F, C>{F(params)}, grad, saved); });
}

// Note [Portable arithmetic]: those without functions of CUDA's library in them.
void require_portable(UnaryOp op) {
  if (!cuda::portable() || op < UnaryOp::exp) return;
  switch (op) {
    case UnaryOp::sqrt:
    case UnaryOp::reciprocal:
    case UnaryOp::square:
    case UnaryOp::leaky_relu:
    case UnaryOp::hardtanh:
    case UnaryOp::softsign:
    case UnaryOp::hardswish:
    case UnaryOp::hardsigmoid:
    case UnaryOp::frac:
    case UnaryOp::nan_to_num:
      return;
    default:
      cuda::require_not_portable(profile_label(op));
  }
}

}  // namespace

void unary_cuda(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& out) {
  require_portable(op);
  switch (cpu::compute_dtype(out.dtype())) {
    case kFloat32:
      return run<float>(op, params, x, out);
    case kFloat64:
      return run<double>(op, params, x, out);
    default:
      return run<std::int64_t>(op, params, x, out);
  }
}

void unary_backward_cuda(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved, const Tensor& out) {
  require_portable(op);
  if (out.dtype() == kFloat64) return run_backward<double>(op, params, grad, saved, out);
  run_backward<float>(op, params, grad, saved, out);
}

}  // namespace lockstep
