#include "lockstep/autograd/add_values.h"

#include "lockstep/autograd/add_values_kernels.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

void add_values_cpu(const Tensor& target, const Tensor& a, const Tensor& b) {
  const auto loop = cpu::plan_loop<3>(target.sizes(), {&target, &a, &b});
  if (loop.numel == 0) return;
  dispatch_floating(target.dtype(), "add_values", [&]<typename T>() {
    T* out = target.data<T>();
    const T* x = a.data<T>();
    const T* y = b.data<T>();
    using C = compute_t<T>;
    cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
      T* to = out + offset[0];
      const T* from = x + offset[1];
      const T* other = y + offset[2];
      if (stride[0] == 1 && stride[1] == 1 && stride[2] == 1) {
        for (std::int64_t i = 0; i < length; ++i)
          to[i] = static_cast<T>(static_cast<C>(from[i]) + static_cast<C>(other[i]));
      } else {
        for (std::int64_t i = 0; i < length; ++i)
          to[i * stride[0]] =
              static_cast<T>(static_cast<C>(from[i * stride[1]]) + static_cast<C>(other[i * stride[2]]));
      }
    });
  });
}

constexpr KernelTable<AddValuesKernel> add_values_kernel{"add_values", add_values_cpu,
                                                         LOCKSTEP_CUDA_KERNEL(add_values_cuda)};

void check_same(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.sizes() == b.sizes() && a.dtype() == b.dtype() && a.device() == b.device(),
                 "gradients do not match: {} {} on {} and {} {} on {}", name(a.dtype()), to_string(a.sizes()),
                 to_string(a.device()), name(b.dtype()), to_string(b.sizes()), to_string(b.device()));
}

}  // namespace

void add_values_(const Tensor& target, const Tensor& source) {
  check_same(target, source);
  target.storage()->before_change();
  add_values_kernel(target)(target, target, source);
}

Tensor add_values(const Tensor& a, const Tensor& b) {
  check_same(a, b);
  if (channels_last_of(a).defined() || channels_last_of(b).defined()) {
    const Tensor values = to_channels_last(a), others = to_channels_last(b), sum = empty_like(values);
    add_values_kernel(a)(sum, values, others);
    return from_channels_last(sum);
  }
  Tensor out = empty_like(a);
  add_values_kernel(a)(out, a, b);
  return out;
}

}  // namespace lockstep
