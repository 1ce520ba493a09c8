#include <algorithm>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/rearrange/apart.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

/// How many elements stand before and after each dimension, from the first to the last.
struct Margins {
  Shape before, after;
};

/// A gradient of a frame's sizes without the frame; what the frame cut off is 0.
Tensor moved(const Tensor& x, const Shape& sizes, const Margins& margins, double value) {
  const Tensor out = full(sizes, value, options_of(x));
  Tensor from = x, to = out;
  for (int d = 0; d < sizes.dim(); ++d) {
    const std::int64_t skip = std::max<std::int64_t>(0, -margins.before[d]);
    const std::int64_t start = std::max<std::int64_t>(0, margins.before[d]);
    const std::int64_t length = std::min(x.sizes()[d] - skip, sizes[d] - start);
    if (length <= 0) return out;
    from = from.narrow(d, skip, length);
    to = to.narrow(d, start, length);
  }
  copy_values(from, to);
  return out;
}

class PadBackward final : public Node {
 public:
  Shape sizes;
  Margins back;
  const char* name() const override { return "PadBackward"; }
  TensorList apply(TensorList grads) override { return {moved(grads[0], sizes, back, 0.0)}; }
  TensorList apply_recorded(TensorList grads) override {
    Margins margins = back;
    for (int d = 0; d < sizes.dim(); ++d) margins.before[d] = -back.before[d], margins.after[d] = -back.after[d];
    return {apply_linear(
        grads[0], {[sizes = sizes, back = back](const Tensor& grad) { return moved(grad, sizes, back, 0.0); },
                   [framed = grads[0].sizes(), margins](const Tensor& x) { return moved(x, framed, margins, 0.0); }})};
  }
};

Tensor pad_constant(const Tensor& x, const Margins& margins, double value) {
  Shape sizes = x.sizes();
  Margins back = margins;
  for (int d = 0; d < x.dim(); ++d) {
    sizes[d] += margins.before[d] + margins.after[d];
    LOCKSTEP_CHECK(sizes[d] >= 0, "[pad] {} and {} cut off more than there is in dimension {} of {}", margins.before[d],
                   margins.after[d], d, to_string(x.sizes()));
    back.before[d] = -margins.before[d];
    back.after[d] = -margins.after[d];
  }
  check_in_range(value, x.dtype(), "pad");
  Tensor out;
  {
    const NoGradGuard values_only;
    out = moved(x.detach(), sizes, margins, value);
  }
  if (auto* node = record<PadBackward>(out, {&x})) {
    node->sizes = x.sizes();
    node->back = back;
  }
  return out;
}

constexpr std::int64_t kMostPadding = std::int64_t{1} << 40;  // sums of it and a size are sizes

/// The element of a dimension of `size` that stands at place `at`, which may be outside.
std::int64_t source_of(std::int64_t at, std::int64_t size, PadMode mode) {
  if (mode == PadMode::replicate) return std::clamp<std::int64_t>(at, 0, size - 1);
  if (mode == PadMode::circular) return (at % size + size) % size;
  if (at < 0) return -at;
  return at < size ? at : 2 * (size - 1) - at;
}

}  // namespace

Tensor pad(const Tensor& x, const std::vector<std::int64_t>& padding, PadMode mode, double value) {
  LOCKSTEP_CHECK(x.defined(), "[pad] the tensor is undefined");
  LOCKSTEP_CHECK(padding.size() % 2 == 0 && padding.size() / 2 <= static_cast<std::size_t>(x.dim()),
                 "[pad] expected a pair of paddings for each of at most {} dimensions, found {} numbers", x.dim(),
                 padding.size());
  Margins margins{Shape::filled(x.dim(), 0), Shape::filled(x.dim(), 0)};
  for (std::size_t i = 0; i < padding.size() / 2; ++i) {
    const int d = x.dim() - 1 - static_cast<int>(i);
    margins.before[d] = padding[2 * i];
    margins.after[d] = padding[2 * i + 1];
    LOCKSTEP_CHECK(std::max(margins.before[d], margins.after[d]) <= kMostPadding,
                   "[pad] expected paddings of at most {}, found {} and {}", kMostPadding, margins.before[d],
                   margins.after[d]);
  }
  if (mode == PadMode::constant) return pad_constant(x, margins, value);
  Tensor out = x;
  for (int d = 0; d < x.dim(); ++d) {
    std::int64_t size = x.sizes()[d], before = margins.before[d], after = margins.after[d];
    if (before == 0 && after == 0) continue;
    LOCKSTEP_CHECK(size + std::min<std::int64_t>(before, 0) + std::min<std::int64_t>(after, 0) >= 0,
                   "[pad] {} and {} cut off more than there is in dimension {} of {}", before, after, d,
                   to_string(x.sizes()));
    if (mode == PadMode::circular) {  // goes round what is left
      const std::int64_t skip = std::max<std::int64_t>(0, -before), drop = std::max<std::int64_t>(0, -after);
      size -= skip + drop;
      if (skip + drop > 0) out = out.narrow(d, skip, size);
      before = std::max<std::int64_t>(0, before), after = std::max<std::int64_t>(0, after);
    }
    const std::int64_t most = mode == PadMode::reflect    ? size - 1
                              : mode == PadMode::circular ? size
                              : size == 0                 ? 0
                                                          : std::max(before, after);
    LOCKSTEP_CHECK(before <= most && after <= most,
                   "[pad] dimension {} of {} has too little to fill paddings of {} and {} with", d,
                   to_string(x.sizes()), before, after);
    std::vector<std::int64_t> index;
    for (std::int64_t at = -before; at < size + after; ++at) index.push_back(source_of(at, size, mode));
    out = out.index_select(d, tensor(index, x.device()));
  }
  return apart(out, x);
}

}  // namespace lockstep
