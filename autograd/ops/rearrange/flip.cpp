#include <algorithm>
#include <array>
#include <vector>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/copy/copy.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/core/check.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

/// Copies x, read backwards along the dimensions where `backwards` is 1, to `out`, which is contiguous. One pass: to
/// read backwards is to go by negative strides from the last element.
template <typename T>
void copy_flipped(const Tensor& x, const Shape& backwards, const Tensor& out) {
  cpu::StridedLoop<2> loop;
  loop.numel = x.numel();
  const T* from = x.data<T>();
  for (int d = 0; d < x.dim(); ++d) {
    const std::int64_t size = x.sizes()[d];
    if (size == 1) continue;
    std::array<std::int64_t, 2> strides{out.strides()[d], x.strides()[d]};
    if (backwards[d] == 1) {
      from += (size - 1) * strides[1];
      strides[1] = -strides[1];
    }
    const int last = loop.sizes.dim() - 1;
    const bool merges =
        last >= 0 && loop.strides[0][last] == strides[0] * size && loop.strides[1][last] == strides[1] * size;
    if (merges)
      loop.sizes[last] *= size;
    else
      loop.sizes.push_back(size);
    for (std::size_t n = 0; n < 2; ++n)
      if (merges)
        loop.strides[n][last] = strides[n];
      else
        loop.strides[n].push_back(strides[n]);
  }
  if (loop.sizes.empty()) {  // of one element
    loop.sizes.push_back(loop.numel);
    for (Shape& strides : loop.strides) strides.push_back(1);
  }
  T* const to = out.data<T>();
  cpu::for_each_plane(loop, [from, to](const auto& at, const auto& row_steps, const auto& strides, std::int64_t rows,
                                       std::int64_t length) {
    const std::int64_t step = strides[1];
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* const source = from + at[1] + row * row_steps[1];
      T* const target = to + at[0] + row * row_steps[0];
      if (step == 1) {
        std::copy_n(source, length, target);
      } else if (step == -1) {
        for (std::int64_t i = 0; i < length; ++i) target[i] = source[-i];
      } else {
        for (std::int64_t i = 0; i < length; ++i) target[i] = source[i * step];
      }
    }
  });
}

Tensor flipped(const Tensor& x, const Shape& backwards) {
  if (x.device().is_cpu()) {
    const Tensor out = empty(x.sizes(), options_of(x));
    if (x.numel() > 0) dispatch_all(x.dtype(), "flip", [&]<typename T>() { copy_flipped<T>(x, backwards, out); });
    return out;
  }
  Tensor out = x;
  for (int d = 0; d < x.dim(); ++d) {
    if (backwards[d] == 0) continue;
    std::vector<std::int64_t> index;
    for (std::int64_t i = x.sizes()[d] - 1; i >= 0; --i) index.push_back(i);
    out = out.index_select(d, tensor(index, x.device()));
  }
  return out;
}

}  // namespace

Tensor flip(const Tensor& x, const Shape& dims) {
  LOCKSTEP_CHECK(x.defined(), "[flip] the tensor is undefined");
  Shape seen = Shape::filled(x.dim(), 0), backwards = seen;
  bool any = false;
  for (const std::int64_t dim : dims) {
    const int d = wrap_dim(dim, x.dim(), "flip");
    if (x.dim() == 0) continue;
    LOCKSTEP_CHECK(seen[d]++ == 0, "[flip] dimension {} is given twice", d);
    if (x.sizes()[d] > 1) backwards[d] = 1, any = true;
  }
  if (!any) return clone(x);
  const auto map = [backwards](const Tensor& values) { return flipped(values, backwards); };
  return apply_linear(x, {map, map});
}

}  // namespace lockstep
