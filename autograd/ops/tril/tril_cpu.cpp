#include <algorithm>

#include "lockstep/autograd/ops/tril/tril_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {

void triangle_cpu(const Tensor& x, const Tensor& out, std::int64_t diagonal, bool upper) {
  const std::int64_t rows = x.size(-2), columns = x.size(-1);
  // Kept: columns below `keep(row)`, or from there on.
  const auto bound = [&](std::int64_t row) {
    const std::int64_t shift = std::clamp(diagonal, -rows, columns) + (upper ? 0 : 1);
    return std::clamp<std::int64_t>(row + shift, 0, columns);
  };
  dispatch_all(x.dtype(), "tril", [&]<typename T>() {
    lockstep::parallel_for(x.numel() / columns, std::max<std::int64_t>(1, cpu::kElementBlock / columns),
                           [&](std::int64_t begin, std::int64_t end) {
                             for (std::int64_t r = begin; r < end; ++r) {
                               const T* from = x.data<T>() + r * columns;
                               T* to = out.data<T>() + r * columns;
                               const std::int64_t middle = bound(r % rows);
                               const std::int64_t first = upper ? middle : 0, last = upper ? columns : middle;
                               std::fill(to, to + columns, T(0));
                               std::copy(from + first, from + last, to + first);
                             }
                           });
  });
}

}  // namespace lockstep::detail
