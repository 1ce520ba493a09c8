// lerp() with a weight for each element.

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

template <typename T>
void interpolate(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& out) {
  const T *x = a.data<T>(), *y = b.data<T>(), *w = weight.data<T>();
  T* to = out.data<T>();
  parallel_for(out.numel(), cpu::kElementBlock, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T way = y[i] - x[i];
      to[i] = w[i] < T(0.5) ? x[i] + w[i] * way : y[i] - way * (T(1) - w[i]);
    }
  });
}

/// From the end that is nearer, so that both ends are met exactly, and an infinite one stays what it is half-way.
/// Operands of one shape and dtype.
Tensor values_of(const Tensor& a, const Tensor& b, const Tensor& weight) {
  const NoGradGuard values_only;
  if (!a.device().is_cpu()) {
    const Tensor way = b - a;
    return where(weight < 0.5, a + weight * way, b - way * (1.0 - weight));
  }
  if (element_size(a.dtype()) == 2) return values_of(a.to(kFloat32), b.to(kFloat32), weight.to(kFloat32)).to(a.dtype());
  const Tensor out = empty(a.sizes(), options_of(a));
  (a.dtype() == kFloat64 ? interpolate<double> : interpolate<float>)(as_contiguous(a), as_contiguous(b),
                                                                     as_contiguous(weight), out);
  return out;
}

class LerpByTensorBackward final : public Node {
 public:
  const char* name() const override { return "LerpByTensorBackward"; }
  TensorList apply(TensorList grads) override { return gradients_of(grads[0], saved(0), saved(1), saved(2)); }
  TensorList apply_recorded(TensorList grads) override {
    return gradients_of(grads[0], saved_input(0, 0), saved_input(1, 1), saved_input(2, 2));
  }

 private:
  TensorList gradients_of(const Tensor& grad, const Tensor& a, const Tensor& b, const Tensor& weight) const {
    TensorList results(3);
    if (needs_grad(0)) results[0] = grad * (1.0 - weight);
    if (needs_grad(1)) results[1] = grad * weight;
    if (needs_grad(2)) results[2] = grad * (b - a);
    return results;
  }
};

}  // namespace

Tensor lerp(const Tensor& start, const Tensor& end, const Tensor& weights) {
  using binary::beside;
  if (binary::are_apart(start, end)) [[unlikely]]
    return lerp(beside(start, end), beside(end, start), weights);
  if (binary::are_apart(start, weights)) [[unlikely]]
    return lerp(beside(start, weights), end, beside(weights, start));
  binary::check_operands(start, end, "lerp");
  binary::check_operands(start, weights, "lerp");
  const DType common = promote_types(binary::promote(start, end), weights.dtype());
  const DType dtype = is_floating_point(common) ? common : kFloat32;
  const Shape sizes = broadcast_shapes(broadcast_shapes(start.sizes(), end.sizes(), "lerp"), weights.sizes(), "lerp");
  const auto fitted = [&](const Tensor& x) { return x.to(dtype).expand(sizes); };
  const Tensor a = fitted(start), b = fitted(end), weight = fitted(weights);
  const Tensor out = values_of(a.detach(), b.detach(), weight.detach());
  if (auto* node = record<LerpByTensorBackward>(out, {&a, &b, &weight})) node->save(a, b, weight);
  return out;
}

}  // namespace lockstep
