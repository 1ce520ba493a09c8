#include "lockstep/autograd/ops/rotary/rotary.h"

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/rotary/rotary_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<detail::RotaryKernel> rotary_kernel{"rotary", detail::rotary_cpu,
                                                          LOCKSTEP_CUDA_KERNEL(detail::rotary_cuda)};

Tensor rotated(const Tensor& values, const Tensor& cosine, const Tensor& sine, bool back) {
  const Tensor x = as_contiguous(values);
  Tensor out = empty(x.sizes(), options_of(x));
  if (x.numel() == 0) return out;
  const Shape flat{x.numel() / (x.size(-1) * x.size(-2)), x.size(-2), x.size(-1)};
  const auto rows = [&](const Tensor& t) { return t.as_strided(flat, contiguous_strides(flat), t.offset()); };
  rotary_kernel(x)(rows(x), cosine, sine, rows(out), back);
  return out;
}

struct RotaryBackward final : Node {
  const char* name() const override { return "RotaryBackward"; }
  TensorList apply(TensorList grads) override { return {rotated(grads[0], saved(0), saved(1), true)}; }
  TensorList apply_recorded(TensorList grads) override {
    const auto turn = [c = SavedTensor(saved(0)), s = SavedTensor(saved(1))](bool back) {
      return
          [c, s, back](const Tensor& x) { return rotated(x, c.get("RotaryBackward"), s.get("RotaryBackward"), back); };
    };
    return {apply_linear(grads[0], {turn(true), turn(false)})};
  }
};

}  // namespace

Tensor rotary(const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  LOCKSTEP_CHECK(x.defined() && x.is_floating_point() && x.dim() >= 2 && x.size(-1) % 2 == 0,
                 "[rotary] expected a floating-point tensor [..., T, D] with an even D, found {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined one");
  const Shape expected{x.size(-2), x.size(-1) / 2};
  for (const Tensor* t : {&cosine, &sine})
    LOCKSTEP_CHECK(t->defined() && t->sizes() == expected && t->device() == x.device() && t->is_floating_point(),
                   "[rotary] expected floating-point cosine and sine of shape {} on {}, found {}", to_string(expected),
                   to_string(x.device()), t->defined() ? to_string(t->sizes()) : "an undefined tensor");
  const DType compute = x.dtype() == kFloat64 ? kFloat64 : kFloat32;
  const Tensor c = as_contiguous(cast_values(cosine.detach(), compute));
  const Tensor s = as_contiguous(cast_values(sine.detach(), compute));
  const Tensor out = rotated(x, c, s, false);
  if (auto* node = record<RotaryBackward>(out, {&x})) node->save(c, s);
  return out;
}

}  // namespace lockstep
