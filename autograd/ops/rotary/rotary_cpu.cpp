#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops/rotary/rotary_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {

void rotary_cpu(const Tensor& x, const Tensor& cosine, const Tensor& sine, const Tensor& out, bool back) {
  const std::int64_t length = x.size(1), width = x.size(2), half = width / 2;
  dispatch_floating(x.dtype(), "rotary", [&]<typename T>() {
    using C = compute_t<T>;
    const C direction = back ? C(-1) : C(1);
    lockstep::parallel_for(x.numel() / width, std::max<std::int64_t>(1, cpu::kElementBlock / width),
                           [&](std::int64_t begin, std::int64_t end) {
                             for (std::int64_t row = begin; row < end; ++row) {
                               const T *a = x.data<T>() + row * width, *b = a + half;
                               T *to_a = out.data<T>() + row * width, *to_b = to_a + half;
                               const C* c = cosine.data<C>() + row % length * half;
                               const C* s = sine.data<C>() + row % length * half;
                               for (std::int64_t i = 0; i < half; ++i) {
                                 const C left = static_cast<C>(a[i]), right = static_cast<C>(b[i]),
                                         turn = direction * s[i];
                                 to_a[i] = static_cast<T>(std::fma(left, c[i], -(right * turn)));
                                 to_b[i] = static_cast<T>(std::fma(right, c[i], left * turn));
                               }
                             }
                           });
  });
}

}  // namespace lockstep::detail
