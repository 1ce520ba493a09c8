#include <utility>

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

/// Of vectors that begin 3 `inner` apart, whose three elements lie `inner` apart.
template <typename T>
void cross_vectors(const T* a, const T* b, T* out, std::int64_t outer, std::int64_t inner) {
  const auto lines = [=](std::int64_t at, std::int64_t step, std::int64_t count, std::int64_t apart) {
    const T *const x = a + at, *const y = b + at;
    T* const to = out + at;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t j = i * apart;
      const T x0 = x[j], x1 = x[j + step], x2 = x[j + 2 * step], y0 = y[j], y1 = y[j + step], y2 = y[j + 2 * step];
      to[j] = x1 * y2 - x2 * y1;
      to[j + step] = x2 * y0 - x0 * y2;
      to[j + 2 * step] = x0 * y1 - x1 * y0;
    }
  };
  if (inner == 1) {
    parallel_for(outer, cpu::kElementBlock / 3,
                 [=](std::int64_t begin, std::int64_t end) { lines(3 * begin, 1, end - begin, 3); });
    return;
  }
  parallel_for(outer, std::max<std::int64_t>(1, cpu::kElementBlock / (3 * inner)),
               [=](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t o = begin; o < end; ++o) lines(3 * o * inner, inner, inner, 1);
               });
}

/// What has a kernel: vectors of one shape and type on the CPU.
bool has_kernel(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() && a.device().is_cpu() && b.device().is_cpu() &&
         (a.dtype() == kFloat32 || a.dtype() == kFloat64);
}

Tensor crossed(const Tensor& a, const Tensor& b, int d) {
  const Tensor x = as_contiguous(a), y = as_contiguous(b), out = empty(x.sizes(), options_of(x));
  if (out.numel() == 0) return out;
  const Shape around = detail::around_dim(x.sizes(), d);
  dispatch_compute(x.dtype(), "cross",
                   [&]<typename T>() { cross_vectors(x.data<T>(), y.data<T>(), out.data<T>(), around[0], around[2]); });
  return out;
}

class CrossBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "CrossBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList results{Tensor(), Tensor()};
    if (needs_grad(0)) results[0] = crossed(saved(1), grads[0], dim);
    if (needs_grad(1)) results[1] = crossed(grads[0], saved(0), dim);
    return results;
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor a = saved_input(0, 0), b = saved_input(1, 1);
    TensorList results{Tensor(), Tensor()};
    if (needs_grad(0)) results[0] = cross(b, grads[0], dim);
    if (needs_grad(1)) results[1] = cross(grads[0], a, dim);
    return results;
  }
};

}  // namespace

Tensor cross(const Tensor& a, const Tensor& b, std::int64_t dim) {
  LOCKSTEP_CHECK(a.defined() && b.defined() && a.dim() == b.dim() && a.dim() > 0,
                 "[cross] expected two tensors of as many dimensions, at least one");
  const int d = wrap_dim(dim, a.dim(), "cross");
  LOCKSTEP_CHECK(a.size(d) == 3 && b.size(d) == 3, "[cross] expected a dimension of size 3, found {} and {} along {}",
                 to_string(a.sizes()), to_string(b.sizes()), d);
  if (has_kernel(a, b)) {
    const Tensor out = crossed(a, b, d);
    if (auto* node = record<CrossBackward>(out, {&a, &b})) {
      node->dim = d;
      node->save(a, b);
    }
    return out;
  }
  const auto turned = [d](const Tensor& x, std::int64_t by) { return roll(x, {by}, {d}); };
  return turned(a, -1) * turned(b, -2) - turned(a, -2) * turned(b, -1);
}

}  // namespace lockstep
