#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/autograd/ops/reduce/reduce_kernels.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

// How many count as equal: NaNs do, or do not.
template <bool kNanToo, typename T>
bool hits(T value, T extreme) {
  if constexpr (kNanToo) return value == extreme || (value != value && extreme != extreme);
  return value == extreme;
}

// What goes to one of them: nothing to those that do not count. Where NaNs do not either, a share that is not finite
// makes all NaN, as in PyTorch.
template <bool kNanToo, typename T>
T part(bool hit, T share) {
  if constexpr (kNanToo) return hit ? share : T(0);
  return (hit ? T(1) : T(0)) * share;
}

template <bool kNanToo, typename T>
void one_row(const T* x, std::int64_t length, T extreme, T grad, T* out) {
  constexpr std::int64_t kBlock = 1 << 20;  // whose counts are short numbers, as wide as those that are compared
  std::int64_t count = 0;
  for (std::int64_t first = 0; first < length; first += kBlock) {
    std::int32_t some = 0;
    for (std::int64_t i = first, end = std::min(first + kBlock, length); i < end; ++i)
      some += hits<kNanToo>(x[i], extreme) ? 1 : 0;
    count += some;
  }
  const T share = grad / static_cast<T>(count);
  for (std::int64_t i = 0; i < length; ++i) out[i] = part<kNanToo>(hits<kNanToo>(x[i], extreme), share);
}

// Columns whose neighbours along the reduced dimensions are `inner` elements apart.
template <bool kNanToo, typename T>
void columns(const T* x, std::int64_t length, std::int64_t inner, std::int64_t count, const T* extreme, const T* grad,
             T* share, std::int64_t* equal, T* out) {
  std::fill_n(equal, count, 0);
  for (std::int64_t i = 0; i < length; ++i)
    for (std::int64_t j = 0; j < count; ++j) equal[j] += hits<kNanToo>(x[i * inner + j], extreme[j]) ? 1 : 0;
  for (std::int64_t j = 0; j < count; ++j) share[j] = grad[j] / static_cast<T>(equal[j]);
  for (std::int64_t i = 0; i < length; ++i)
    for (std::int64_t j = 0; j < count; ++j)
      out[i * inner + j] = part<kNanToo>(hits<kNanToo>(x[i * inner + j], extreme[j]), share[j]);
}

template <bool kNanToo, typename T>
void gradient(const Tensor& x, const Tensor& y, const Tensor& grad, const Tensor& out, std::int64_t length,
              std::int64_t inner) {
  const T *from = x.data<T>(), *extreme = y.data<T>(), *given = grad.data<T>();
  T* const to = out.data<T>();
  if (inner == 1) {
    const std::int64_t rows = std::max<std::int64_t>(1, cpu::kElementBlock / std::max<std::int64_t>(1, length));
    return parallel_for(y.numel(), rows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        one_row<kNanToo>(from + row * length, length, extreme[row], given[row], to + row * length);
    });
  }
  constexpr std::int64_t kColumns = 256;  // at a time
  const std::int64_t blocks = (inner + kColumns - 1) / kColumns, all = y.numel() / inner * blocks;
  parallel_for(all, std::max<std::int64_t>(1, cpu::kElementBlock / (kColumns * length)),
               [&](std::int64_t begin, std::int64_t end) {
                 T share[kColumns];
                 std::int64_t equal[kColumns];
                 for (std::int64_t at = begin; at < end; ++at) {
                   const std::int64_t plane = at / blocks, first = at % blocks * kColumns, of_y = plane * inner + first;
                   const std::int64_t of_x = plane * length * inner + first;
                   columns<kNanToo>(from + of_x, length, inner, std::min(kColumns, inner - first), extreme + of_y,
                                    given + of_y, share, equal, to + of_x);
                 }
               });
}

}  // namespace

void extreme_gradient_cpu(const Tensor& x, const Tensor& y, const Tensor& grad, const Tensor& out, std::int64_t length,
                          std::int64_t inner, bool nan_too) {
  if (x.dtype() == kFloat64)
    return (nan_too ? gradient<true, double> : gradient<false, double>)(x, y, grad, out, length, inner);
  (nan_too ? gradient<true, float> : gradient<false, float>)(x, y, grad, out, length, inner);
}

}  // namespace lockstep
