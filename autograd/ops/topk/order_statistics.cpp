// What follows from an order: single places of it, and counts between bounds.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/topk/topk.h"
#include "lockstep/autograd/ops/topk/topk_kernels.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {

TopK kthvalue(const Tensor& x, std::int64_t k, std::int64_t dim, bool keepdim) {
  LOCKSTEP_CHECK(x.defined(), "[kthvalue] the tensor is undefined");
  if (x.dim() == 0) {
    wrap_dim(dim, 0, "kthvalue");
    const TopK one = kthvalue(x.view({1}), k, 0, false);
    return {one.values.view({}), one.indices.view({})};
  }
  const int d = wrap_dim(dim, x.dim(), "kthvalue");
  LOCKSTEP_CHECK(k >= 1 && k <= x.size(d), "[kthvalue] expected k between 1 and {}, the size of dimension {}, found {}",
                 x.size(d), d, k);
  const Tensor place = detail::place_in_order(x, k - 1, d, false);
  const Tensor value = gather(x, d, place);
  return keepdim ? TopK{value, place} : TopK{value.squeeze(d), place.squeeze(d)};
}

Tensor quantile(const Tensor& x, const Tensor& q, std::optional<std::int64_t> dim, bool keepdim) {
  LOCKSTEP_CHECK(x.defined() && (x.dtype() == kFloat32 || x.dtype() == kFloat64) && x.numel() > 0,
                 "[quantile] expected a float32 or float64 tensor with elements");
  LOCKSTEP_CHECK(q.defined() && q.dim() <= 1 && q.dtype() == x.dtype() && q.device() == x.device(),
                 "[quantile] expected fractions of dtype {} on {}, with at most one dimension", name(x.dtype()),
                 to_string(x.device()));
  LOCKSTEP_CHECK(q.numel() == 0 || all((q >= 0.0) * (q <= 1.0)).item<bool>(),
                 "[quantile] expected fractions between 0 and 1");
  const bool of_all = !dim.has_value() || x.dim() == 0;
  if (dim) wrap_dim(*dim, x.dim(), "quantile");
  const int d = of_all ? 0 : wrap_dim(*dim, x.dim(), "quantile");
  const Tensor line = of_all ? x.reshape({-1}) : x;
  const std::int64_t last = line.size(d) - 1;
  const Tensor sorted = sort(line, d).values.movedim(d, -1);  // [..., n]
  Tensor low, high, part;
  {
    const NoGradGuard values_only;
    const Tensor place = q.detach().reshape({-1}) * static_cast<double>(last);
    low = floor(place).to(kInt64);
    high = ceil(place).to(kInt64);
    part = place - low.to(x.dtype());
  }
  const int end = sorted.dim() - 1;
  const Tensor below = sorted.index_select(end, low), above = sorted.index_select(end, high);
  Tensor found = below + part * (above - below);
  // NaN comes last: where the last element is one, all are.
  const Tensor lost = isnan(sorted.narrow(end, last, 1));
  found = where(lost, sorted.narrow(end, last, 1), found).movedim(end, 0);  // [q, ...]
  if (keepdim) {
    if (of_all) {
      Shape sizes = Shape::filled(x.dim() + 1, 1);
      sizes[0] = q.numel();
      found = found.reshape(sizes);
    } else {
      found = found.unsqueeze(d + 1);
    }
  }
  return q.dim() == 0 ? found.squeeze(0) : found;
}

Tensor quantile(const Tensor& x, double q, std::optional<std::int64_t> dim, bool keepdim) {
  LOCKSTEP_CHECK(x.defined() && q >= 0.0 && q <= 1.0, "[quantile] expected a tensor and a fraction in [0, 1], found {}",
                 q);
  return quantile(x, full({}, q, options_of(x)), dim, keepdim);
}

Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool out_int32, bool right, std::string_view side) {
  LOCKSTEP_CHECK(
      side.empty() || side == "right" || (side == "left" && !right),
      "[searchsorted] expected \"left\", or \"right\" as with right = true, found the side \"{}\" and right = {}", side,
      right);
  right = right || side == "right";
  LOCKSTEP_CHECK(sorted.defined() && values.defined() && sorted.dim() >= 1,
                 "[searchsorted] expected two tensors, and "
                 "boundaries of at least one dimension");
  LOCKSTEP_CHECK(sorted.dtype() != kBool && values.dtype() != kBool, "[searchsorted] expected numbers, found bool");
  LOCKSTEP_CHECK(sorted.device() == values.device(),
                 "[searchsorted] expected two tensors on one device, found {} and {}", to_string(sorted.device()),
                 to_string(values.device()));
  bool fits = sorted.dim() == 1 || sorted.dim() == values.dim();
  for (int d = 0; fits && sorted.dim() > 1 && d + 1 < sorted.dim(); ++d) fits = sorted.sizes()[d] == values.sizes()[d];
  LOCKSTEP_CHECK(fits, "[searchsorted] expected boundaries [n], or with the leading sizes of the values {}, found {}",
                 to_string(values.sizes()), to_string(sorted.sizes()));
  const Tensor none = zeros(values.sizes(), {.dtype = kInt64});
  const auto result = [&] { return move_values(out_int32 ? cast_values(none, kInt32) : none, values.device()); };
  if (values.numel() == 0) return result();
  DType dtype = promote_types(sorted.dtype(), values.dtype());
  if (is_floating_point(dtype) && dtype != kFloat64) dtype = kFloat32;
  const Tensor from = as_contiguous(move_values(cast_values(sorted.detach(), dtype), {}));
  const Tensor wanted = as_contiguous(move_values(cast_values(values.detach(), dtype), {}));
  const std::int64_t length = sorted.size(-1), rows = sorted.numel() / std::max<std::int64_t>(length, 1);
  const std::int64_t each = length == 0 ? wanted.numel() : wanted.numel() / rows;
  dispatch_all(dtype, "searchsorted", [&]<typename T>() {
    const T *edges = from.data<T>(), *value = wanted.data<T>();
    std::int64_t* out = none.data<std::int64_t>();
    // NaN is above all numbers.
    const auto below = [](T a, T b) { return a < b || (b != b && a == a); };
    parallel_for(length == 0 ? 0 : wanted.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T* row = edges + i / each * length;
        const T* at = right ? std::upper_bound(row, row + length, value[i], below)
                            : std::lower_bound(row, row + length, value[i], below);
        out[i] = at - row;
      }
    });
  });
  return result();
}

Tensor searchsorted(const Tensor& sorted, Scalar value, bool out_int32, bool right, std::string_view side) {
  LOCKSTEP_CHECK(sorted.defined() && sorted.dim() == 1,
                 "[searchsorted] expected boundaries of one dimension for a number");
  const DType dtype = result_dtype(sorted.dtype(), value);
  return searchsorted(sorted, full({}, value, {.dtype = dtype, .device = sorted.device()}), out_int32, right, side);
}

Tensor bucketize(const Tensor& x, const Tensor& boundaries, bool out_int32, bool right) {
  LOCKSTEP_CHECK(boundaries.defined() && boundaries.dim() == 1, "[bucketize] expected boundaries of one dimension");
  return searchsorted(boundaries, x, out_int32, right);
}

namespace {

/// counts[b]: how many values from `first` to `last` lie in bin b of as many equal ones. Values' bins are found some at
/// a time, by vectors; what lies outside is counted behind the last.
template <typename T>
void count_bins(const T* values, std::int64_t n, std::int64_t bins, T first, T last, T* counts) {
  constexpr std::int64_t kChunk = 512, kTables = 2;
  // Of neighbours apart: to count two in one bin in turn is to wait for the first count to be written.
  std::vector<std::int64_t> tables(static_cast<std::size_t>(kTables * (bins + 1)));
  using Number = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  LOCKSTEP_CHECK(bins < std::numeric_limits<Number>::max(), "[histc] expected fewer bins, found {}", bins);
  Number bin[kChunk];
  for (std::int64_t begin = 0; begin < n; begin += kChunk) {
    const std::int64_t count = std::min(kChunk, n - begin);
    for (std::int64_t i = 0; i < count; ++i) {
      const T value = values[begin + i];
      const bool inside = (value >= first) & (value <= last);
      // Multiplied first, so that a value that is an edge is in the bin that begins there.
      const T place = ((inside ? value : first) - first) * static_cast<T>(bins) / (last - first);
      const auto number = static_cast<Number>(std::min(static_cast<T>(bins), place));  // a NaN is the former
      bin[i] = inside ? std::min(number, static_cast<Number>(bins - 1)) : static_cast<Number>(bins);
    }
    for (std::int64_t i = 0; i < count; ++i)
      ++tables[static_cast<std::size_t>(i % kTables * (bins + 1) + static_cast<std::int64_t>(bin[i]))];
  }
  for (std::int64_t b = 0; b < bins; ++b)
    counts[b] = static_cast<T>(tables[static_cast<std::size_t>(b)] + tables[static_cast<std::size_t>(bins + 1 + b)]);
}

}  // namespace

Tensor histc(const Tensor& x, std::int64_t bins, double low, double high) {
  LOCKSTEP_CHECK(x.defined() && x.is_floating_point(), "[histc] expected a floating-point tensor");
  if (element_size(x.dtype()) == 2) return histc(x.to(kFloat32), bins, low, high).to(x.dtype());
  LOCKSTEP_CHECK(bins > 0, "[histc] expected at least one bin, found {}", bins);
  LOCKSTEP_CHECK(low <= high, "[histc] expected min <= max, found {} and {}", low, high);
  if (low == high && x.numel() > 0) {
    low = min(x.detach()).item();
    high = max(x.detach()).item();
  }
  if (low == high) {
    low -= 1.0;
    high += 1.0;
  }
  LOCKSTEP_CHECK(std::isfinite(low) && std::isfinite(high), "[histc] the range from {} to {} is not finite", low, high);
  const Tensor host = as_contiguous(move_values(x.detach(), {}));
  const Tensor counts = zeros({bins}, {.dtype = x.dtype()});
  dispatch_compute(x.dtype(), "histc", [&]<typename T>() {
    count_bins(host.data<T>(), host.numel(), bins, static_cast<T>(low), static_cast<T>(high), counts.data<T>());
  });
  return move_values(counts, x.device());
}

}  // namespace lockstep
