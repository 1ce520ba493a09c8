#include "lockstep/autograd/ops/dropout/dropout_kernels.h"
#include "lockstep/core/dispatch.h"

namespace lockstep::detail {

void dropout_apply_reference(const Tensor& x, const Tensor& mask, const Tensor& out, const DropoutPlan& plan) {
  const std::uint8_t* keep = mask.data<std::uint8_t>();
  dispatch_floating(x.dtype(), "dropout", [&]<typename T>() {
    const auto scale = static_cast<compute_t<T>>(plan.scale);
    for (std::int64_t i = 0; i < x.numel(); ++i)
      out.data<T>()[i] = keep[i / plan.inner] ? T(x.data<T>()[i] * scale) : T(0);
  });
}

void dropout_reference(const Tensor& x, const Tensor& mask, const Tensor& out, const DropoutPlan& plan) {
  for (std::int64_t m = 0; m < mask.numel(); ++m)
    mask.data<std::uint8_t>()[m] =
        philox::word_at(plan.key.get(), static_cast<std::uint64_t>(plan.word_of(m))) >= plan.threshold;
  dropout_apply_reference(x, mask, out, plan);
}

}  // namespace lockstep::detail
