#include "lockstep/autograd/ops/dropout/dropout.h"

#include <algorithm>
#include <cmath>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/dropout/dropout_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/random.h"

namespace lockstep {

namespace {

constexpr KernelTable<detail::DropoutKernel> dropout_kernel{
    "dropout", detail::dropout_cpu, LOCKSTEP_CUDA_KERNEL(detail::dropout_cuda), detail::dropout_reference};
constexpr KernelTable<detail::DropoutKernel> dropout_apply_kernel{"dropout backward", detail::dropout_apply_cpu,
                                                                  LOCKSTEP_CUDA_KERNEL(detail::dropout_apply_cuda),
                                                                  detail::dropout_apply_reference};

struct DropoutBackward final : Node {
  detail::DropoutPlan plan;

  const char* name() const override { return "DropoutBackward"; }
  TensorList apply(TensorList grads) override { return {applied(grads[0], saved(0), plan)}; }
  TensorList apply_recorded(TensorList grads) override {
    const auto again = [mask = saved(0), plan = plan](const Tensor& x) { return applied(x, mask, plan); };
    return {apply_linear(grads[0], {again, again})};
  }

 private:
  static Tensor applied(const Tensor& x, const Tensor& mask, const detail::DropoutPlan& plan) {
    const Tensor grad = as_contiguous(x);
    const Tensor out = empty(grad.sizes(), options_of(grad));
    dropout_apply_kernel(grad)(grad, mask, out, plan);
    return out;
  }
};

/// `plan` says of which elements; the rest of it is filled in.
Tensor drop(const Tensor& x, double p, bool training, detail::DropoutPlan plan, const char* op) {
  LOCKSTEP_CHECK(p >= 0.0 && p <= 1.0, "[{}] expected a probability p in [0, 1], found {}", op, p);
  LOCKSTEP_CHECK(x.is_floating_point(), "[{}] expected a floating-point tensor, found {}", op, name(x.dtype()));
  if (!training || p == 0.0) return x;
  if (p == 1.0) return mul(x, 0.0);
  plan.key = next_random_key_source(RandomStream::dropout, x.device());
  plan.threshold = static_cast<std::uint32_t>(p * 0x1p32);
  plan.scale = 1.0 / (1.0 - p);
  const Tensor source = as_contiguous(x);
  const Tensor out = empty(x.sizes(), options_of(x));
  const Tensor mask = empty({x.numel() / plan.inner}, {.dtype = kUInt8, .device = x.device()});
  if (x.numel() > 0) dropout_kernel(x)(source, mask, out, plan);
  if (auto* node = record<DropoutBackward>(out, {&x})) {
    node->save(mask);
    node->plan = plan;
  }
  return out;
}

/// `places`: the last `dims` dimensions, as messages name them.
Tensor drop_channels(const Tensor& x, double p, bool training, int dims, const char* places, const char* op) {
  LOCKSTEP_CHECK(x.dim() == dims + 1 || x.dim() == dims + 2, "[{}] expected shape [N, C, {}] or [C, {}], found {}", op,
                 places, places, to_string(x.sizes()));
  detail::DropoutPlan plan;
  std::int64_t inner = 1;
  for (int d = x.dim() - dims; d < x.dim(); ++d) inner *= x.sizes()[d];
  plan.inner = std::max<std::int64_t>(1, inner);
  return drop(x, p, training, plan, op);
}

/// `sizes`: of what is dropped together; 1 where it is one.
Tensor drop_to_limit(const Tensor& x, const Shape& sizes, double p, bool training, const char* op) {
  LOCKSTEP_CHECK(p >= 0.0 && p <= 1.0, "[{}] expected a probability p in [0, 1], found {}", op, p);
  LOCKSTEP_CHECK(x.is_floating_point(), "[{}] expected a floating-point tensor, found {}", op, name(x.dtype()));
  if (!training || p == 0.0) return x;
  if (p == 1.0) return mul(x, 0.0);
  constexpr double kLimit = -1.7580993408473766;  // -scale * alpha of selu()
  const double factor = 1.0 / std::sqrt((1.0 - p) * (1.0 + p * kLimit * kLimit)), moved = -factor * kLimit * p;
  const Tensor kept = drop(ones(sizes, options_of(x)), p, true, {}, op) > 0.0;
  return where(kept, x * factor + moved, factor * kLimit + moved);
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training) {
  return drop(x, p, training, {}, "dropout");
}

Tensor dropout_of_part(const Tensor& x, const DropoutPart& part, double p, bool training) {
  const int dim = part.dim < 0 ? part.dim + x.dim() : part.dim;
  LOCKSTEP_CHECK(dim >= 0 && dim < x.dim() && part.first >= 0 && part.first + x.size(dim) <= part.size,
                 "[dropout_of_part] elements {} and on of {} in dimension {} do not fit a tensor {}", part.first,
                 part.size, part.dim, to_string(x.sizes()));
  std::int64_t inner = 1;
  for (int d = dim + 1; d < x.dim(); ++d) inner *= x.size(d);
  detail::DropoutPlan plan;
  if (x.size(dim) != part.size) {
    plan.row = x.size(dim) * inner;
    plan.first = part.first * inner;
    plan.all = part.size * inner;
  }
  return drop(x, p, training, plan, "dropout_of_part");
}

Tensor dropout1d(const Tensor& x, double p, bool training) {
  return drop_channels(x, p, training, 1, "L", "dropout1d");
}
Tensor dropout2d(const Tensor& x, double p, bool training) {
  return drop_channels(x, p, training, 2, "H, W", "dropout2d");
}
Tensor dropout3d(const Tensor& x, double p, bool training) {
  return drop_channels(x, p, training, 3, "D, H, W", "dropout3d");
}

Tensor alpha_dropout(const Tensor& x, double p, bool training) {
  return drop_to_limit(x, x.sizes(), p, training, "alpha_dropout");
}

Tensor feature_alpha_dropout(const Tensor& x, double p, bool training) {
  LOCKSTEP_CHECK(x.defined() && x.dim() >= 2, "[feature_alpha_dropout] expected channels [N, C, ...], found {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  Shape sizes = Shape::filled(x.dim(), 1);
  for (int d = 0; d < 2; ++d) sizes[d] = x.sizes()[d];
  return drop_to_limit(x, sizes, p, training, "feature_alpha_dropout");
}

}  // namespace lockstep
