#include <algorithm>
#include <numeric>
#include <vector>

#include "lockstep/autograd/ops/topk/topk_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {

void topk_cpu(const Tensor& x, const Tensor& indices, bool largest) {
  const std::int64_t length = x.size(1), k = indices.size(1);
  dispatch_numeric(x.dtype(), "topk", [&]<typename T>() {
    using C = compute_t<T>;
    lockstep::parallel_for(x.size(0), std::max<std::int64_t>(1, cpu::kElementBlock / length),
                           [&](std::int64_t begin, std::int64_t end) {
                             std::vector<std::int64_t> order(static_cast<std::size_t>(length));
                             for (std::int64_t row = begin; row < end; ++row) {
                               const T* values = x.data<T>() + row * length;
                               // NaN is above all numbers; ties go to the lower index.
                               const auto above = [](C a, C b) { return a > b || (a != a && b == b); };
                               const auto better = [&](std::int64_t i, std::int64_t j) {
                                 const C a = static_cast<C>(values[i]), b = static_cast<C>(values[j]);
                                 if (largest ? above(a, b) : above(b, a)) return true;
                                 if (largest ? above(b, a) : above(a, b)) return false;
                                 return i < j;
                               };
                               std::iota(order.begin(), order.end(), std::int64_t{0});
                               std::partial_sort(order.begin(), order.begin() + k, order.end(), better);
                               std::copy_n(order.begin(), k, indices.data<std::int64_t>() + row * k);
                             }
                           });
  });
}

}  // namespace lockstep::detail
