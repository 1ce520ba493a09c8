#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/rearrange/apart.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

/// How many elements stand before and after each dimension, from the first to the last.
struct Margins {
  Shape before, after;
};

/// Whether the rows of the result are so short that to fill all of it is faster than to fill the margins beside them, a
/// few elements at a time; measured, as far as margins in other dimensions let it pay.
bool has_thin_margins(const Tensor& x, const Shape& sizes, const Margins& margins) {
  const int last = sizes.dim() - 1;
  const auto has = [&](int d) { return margins.before[d] > 0 || margins.after[d] > 0; };
  if (last <= 0 || !has(last)) return false;
  bool has_others = false;
  for (int d = 0; d < last; ++d) has_others = has_others || has(d);
  return static_cast<std::size_t>(sizes[last]) * element_size(x.dtype()) <= (has_others ? 1024U : 256U);
}

/// x within a frame of `value` where margins are positive, without its edges where they are negative.
Tensor moved(const Tensor& x, const Shape& sizes, const Margins& margins, double value) {
  Tensor out = empty(sizes, options_of(x)), from = x, to = out;
  const bool fills_first = has_thin_margins(x, sizes, margins);
  if (fills_first && out.numel() > 0) fill_values(out, Scalar(value));
  const auto fill = [&](const Tensor& part) {
    if (!fills_first && part.numel() > 0) fill_values(part, Scalar(value));
  };
  for (int d = 0; d < sizes.dim(); ++d) {
    const std::int64_t skip = std::max<std::int64_t>(0, -margins.before[d]);
    const std::int64_t start = std::max<std::int64_t>(0, margins.before[d]);
    const std::int64_t length = std::min(x.sizes()[d] - skip, sizes[d] - start);
    if (length <= 0) {
      fill(to);
      return out;
    }
    fill(to.narrow(d, 0, start));
    fill(to.narrow(d, start + length, sizes[d] - start - length));
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

/// Where the elements of each dimension of a frame come from; empty: from the same places.
using Sources = std::vector<std::vector<std::int64_t>>;

/// Row by row of the last dimension: what lies before the row's own elements, these, and what lies behind. x and out
/// are contiguous and have dimensions.
template <typename T>
void frame_rows(const Tensor& x, const Tensor& out, const Margins& margins, const Sources& sources) {
  const int last = x.dim() - 1;
  const std::int64_t size = x.size(last), width = out.size(last), rows = out.numel() / width;
  // Of each dimension but the last, where its places lie in x.
  std::vector<std::vector<std::int64_t>> places;
  for (int d = 0; d < last; ++d) {
    std::vector<std::int64_t> offsets = sources[static_cast<std::size_t>(d)];
    if (offsets.empty()) {
      offsets.resize(static_cast<std::size_t>(x.size(d)));
      std::iota(offsets.begin(), offsets.end(), std::int64_t{0});
    }
    for (std::int64_t& offset : offsets) offset *= x.strides()[d];
    places.push_back(std::move(offsets));
  }
  const std::vector<std::int64_t>& index = sources[static_cast<std::size_t>(last)];
  const std::int64_t before = std::max<std::int64_t>(0, margins.before[last]),
                     skip = std::max<std::int64_t>(0, -margins.before[last]),
                     own = std::max<std::int64_t>(0, std::min(size - skip, width - before));
  const T* const from = x.data<T>();
  T* const to = out.data<T>();
  parallel_for(rows, std::max<std::int64_t>(1, cpu::kElementBlock / width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* source = from;
      std::int64_t rest = row;
      for (std::size_t d = places.size(); d-- > 0;) {
        const auto length = static_cast<std::int64_t>(places[d].size());
        source += places[d][static_cast<std::size_t>(rest % length)];
        rest /= length;
      }
      T* const target = to + row * width;
      for (std::int64_t i = 0; i < before; ++i) target[i] = source[index[static_cast<std::size_t>(i)]];
      std::copy_n(source + skip, own, target + before);
      for (std::int64_t i = before + own; i < width; ++i) target[i] = source[index[static_cast<std::size_t>(i)]];
    }
  });
}

/// x with what `sources` say around it; on a device other than the CPU one dimension after the other.
Tensor framed(const Tensor& x, const Margins& margins, const Sources& sources) {
  if (x.device().is_cpu() && x.dim() > 0) {
    Shape sizes = x.sizes();
    for (int d = 0; d < x.dim(); ++d) sizes[d] += margins.before[d] + margins.after[d];
    const Tensor out = empty(sizes, options_of(x)), contiguous = as_contiguous(x);
    if (out.numel() > 0)
      dispatch_all(x.dtype(), "pad", [&]<typename T>() { frame_rows<T>(contiguous, out, margins, sources); });
    return out;
  }
  Tensor out = x;
  for (int d = 0; d < x.dim(); ++d)
    if (const auto& index = sources[static_cast<std::size_t>(d)];
        !index.empty() || margins.before[d] + margins.after[d] != 0)
      out = out.index_select(d, tensor(index, x.device()));
  return apart(out, x);
}

/// Neighbouring places of a frame whose sources are neighbours too, `step` (1 or -1) apart.
struct Run {
  std::int64_t place, source, count, step;
};
std::vector<Run> runs_of(const std::vector<std::int64_t>& index) {
  std::vector<Run> runs;
  for (std::size_t k = 0; k < index.size(); ++k) {
    if (!runs.empty()) {
      Run& run = runs.back();
      if (run.count == 1 && index[k] == run.source - 1) run.step = -1;
      if (index[k] == run.source + run.count * run.step) {
        ++run.count;
        continue;
      }
    }
    runs.push_back({static_cast<std::int64_t>(k), index[k], 1, 1});
  }
  return runs;
}

/// The transpose of a frame's dimension `d`, whose elements stem from `index`: what meets is added up in the frame's
/// order, as index_add() does.
template <typename T>
void add_frame(const Tensor& grad, const Tensor& out, int d, const std::vector<std::int64_t>& index) {
  std::int64_t outer = 1, inner = 1;
  for (int i = 0; i < grad.dim(); ++i)
    if (i != d) (i < d ? outer : inner) *= grad.sizes()[i];
  const std::int64_t places = grad.sizes()[d], size = out.sizes()[d];
  const std::vector<Run> runs = inner == 1 ? runs_of(index) : std::vector<Run>();
  parallel_for(outer, std::max<std::int64_t>(1, cpu::kElementBlock / (std::max(places, size) * inner)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t o = begin; o < end; ++o) {
                   const T* const from = grad.data<T>() + o * places * inner;
                   T* const to = out.data<T>() + o * size * inner;
                   std::fill_n(to, size * inner, T(0));
                   for (const Run& run : runs) {
                     const T* const values = from + run.place;
                     T* const sums = to + run.source;
                     if (run.step == 1)
                       for (std::int64_t i = 0; i < run.count; ++i) sums[i] = sums[i] + values[i];
                     else
                       for (std::int64_t i = 0; i < run.count; ++i) sums[-i] = sums[-i] + values[i];
                   }
                   if (inner > 1)
                     for (std::int64_t k = 0; k < places; ++k) {
                       const T* const values = from + k * inner;
                       T* const sums = to + index[static_cast<std::size_t>(k)] * inner;
                       for (std::int64_t i = 0; i < inner; ++i) sums[i] = sums[i] + values[i];
                     }
                 }
               });
}

/// The transpose of framed().
Tensor unframed(Tensor grad, const Shape& sizes, const Sources& sources) {
  for (int d = sizes.dim() - 1; d >= 0; --d) {
    const std::vector<std::int64_t>& index = sources[static_cast<std::size_t>(d)];
    if (index.empty() && grad.sizes()[d] == sizes[d]) continue;
    Shape inner = grad.sizes();
    inner[d] = sizes[d];
    const bool wide = grad.dtype() == kFloat32 || grad.dtype() == kFloat64;  // others are added up as float32
    if (grad.device().is_cpu() && grad.numel() > 0 && wide) {
      const Tensor sums = empty(inner, options_of(grad)), contiguous = as_contiguous(grad);
      dispatch_compute(grad.dtype(), "pad", [&]<typename T>() { add_frame<T>(contiguous, sums, d, index); });
      grad = sums;
    } else {
      grad = zeros(inner, options_of(grad)).index_add(d, tensor(index, grad.device()), grad);
    }
  }
  return grad;
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
  Sources sources(static_cast<std::size_t>(x.dim()));
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
    margins.before[d] = before, margins.after[d] = after;
    const std::int64_t most = mode == PadMode::reflect    ? size - 1
                              : mode == PadMode::circular ? size
                              : size == 0                 ? 0
                                                          : std::max(before, after);
    LOCKSTEP_CHECK(before <= most && after <= most,
                   "[pad] dimension {} of {} has too little to fill paddings of {} and {} with", d,
                   to_string(x.sizes()), before, after);
    if (before == 0 && after == 0) continue;
    std::vector<std::int64_t>& index = sources[static_cast<std::size_t>(d)];
    for (std::int64_t at = -before; at < size + after; ++at) index.push_back(source_of(at, size, mode));
  }
  const auto shared = std::make_shared<const Sources>(std::move(sources));  // by both functions, which a graph keeps
  return apply_linear(out,
                      {[margins, shared](const Tensor& inner) { return framed(inner, margins, *shared); },
                       [sizes = out.sizes(), shared](const Tensor& grad) { return unframed(grad, sizes, *shared); }});
}

}  // namespace lockstep
