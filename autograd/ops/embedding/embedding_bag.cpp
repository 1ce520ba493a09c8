// Bags of rows: their sums, or composed of a lookup and of sums, means and maxima at an index.

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/embedding/embedding.h"
#include "lockstep/autograd/ops/embedding/embedding_bag_kernels.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/ops/index/index.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<detail::BagSumsKernel> bag_sums_kernel{"embedding_bag", detail::bag_sums_cpu};

/// The bag of each index.
Tensor bags_of(const Tensor& index, const Tensor& offsets, bool include_last, std::int64_t& count) {
  LOCKSTEP_CHECK(offsets.defined() && offsets.dim() == 1 && (offsets.dtype() == kInt64 || offsets.dtype() == kInt32),
                 "[embedding_bag] expected offsets [bags] of int64 or int32 for an index of one dimension");
  const Tensor host = as_contiguous(cast_values(move_values(offsets, {}), kInt64));
  const std::int64_t n = index.numel(), *begins = host.data<std::int64_t>();
  LOCKSTEP_CHECK(!include_last || host.numel() > 0, "[embedding_bag] expected a last offset");
  count = host.numel() - (include_last ? 1 : 0);
  LOCKSTEP_CHECK(count == 0 || begins[0] == 0, "[embedding_bag] expected a first offset of 0, found {}", begins[0]);
  const Tensor bags = empty({n}, {.dtype = kInt64});
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t end = b + 1 < host.numel() ? begins[b + 1] : n;
    LOCKSTEP_CHECK(begins[b] <= end && end <= n,
                   "[embedding_bag] expected rising offsets of at most {}, the number of indices, found {} and {}", n,
                   begins[b], end);
    for (std::int64_t i = begins[b]; i < end; ++i) bags.data<std::int64_t>()[i] = b;
  }
  return move_values(bags, index.device());
}

/// Whether sums need no rows beside each other: nothing is done to a row or to its gradient on the way.
bool can_add_up(const Tensor& weight, const EmbeddingBagLookup& options, const Tensor& factors) {
  return weight.device().is_cpu() && (weight.dtype() == kFloat32 || weight.dtype() == kFloat64) &&
         options.mode != BagMode::max && !factors.defined() && !options.max_norm && !options.scale_grad_by_freq;
}

/// Sums of bags, which are linear in the weight.
Tensor bag_sums(const Tensor& weight, const Tensor& index, const Tensor& bags, std::int64_t count) {
  const Tensor rows = detail::prepare_index(index, weight, "embedding");
  detail::check_index_range(rows.data<std::int64_t>(), rows.numel(), weight.size(0), "embedding");
  const auto sums = [=](const Tensor& x) {
    const Tensor out = empty({count, x.size(1)}, options_of(x));
    if (out.numel() > 0) bag_sums_kernel(x)(as_contiguous(x), rows, bags, out);
    return out;
  };
  const auto spread = [=, sizes = weight.sizes()](const Tensor& grad) {
    return detail::index_add_rows(grad.index_select(0, bags), rows, sizes, 0);
  };
  return apply_linear(weight, {sums, spread});
}

}  // namespace

Tensor embedding_bag(const Tensor& weight, const Tensor& index, const Tensor& offsets,
                     const EmbeddingBagLookup& options, const Tensor& weights) {
  if (detail::index_comes_first(weight, index)) return embedding_bag(index, weight, offsets, options, weights);
  LOCKSTEP_CHECK(weight.defined() && weight.dim() == 2 && index.defined() && (index.dim() == 1 || index.dim() == 2),
                 "[embedding_bag] expected a weight [rows, width] and an index of one or two dimensions");
  LOCKSTEP_CHECK(index.dim() == 1 || !offsets.defined(),
                 "[embedding_bag] the rows of an index of two dimensions are the bags: leave the offsets out");
  LOCKSTEP_CHECK(!weights.defined() || (options.mode == BagMode::sum && weights.sizes() == index.sizes()),
                 "[embedding_bag] factors of the rows are for sums, and have the index's sizes");
  std::int64_t count = index.size(0);
  Tensor bags, flat = index.reshape({-1}), factors = weights.defined() ? weights.reshape({-1}) : weights;
  if (index.dim() == 2)
    bags = as_contiguous(
        arange(count, {.dtype = kInt64, .device = index.device()}).unsqueeze(1).expand(index.sizes()).reshape({-1}));
  else
    bags = bags_of(index, offsets, options.include_last_offset, count);
  if (options.padding_idx) {
    const std::int64_t row = *options.padding_idx < 0 ? *options.padding_idx + weight.size(0) : *options.padding_idx;
    LOCKSTEP_CHECK(row >= 0 && row < weight.size(0), "[embedding_bag] padding_idx {} is outside the {} rows",
                   *options.padding_idx, weight.size(0));
    const Tensor kept = nonzero(flat != row).view({-1});
    flat = flat.index_select(0, kept);
    bags = bags.index_select(0, kept);
    if (factors.defined()) factors = factors.index_select(0, kept);
  }
  Tensor sums;
  if (can_add_up(weight, options, factors)) {
    sums = bag_sums(weight, flat, bags, count);
  } else {
    Tensor rows = embedding(weight, flat,
                            EmbeddingLookup{.max_norm = options.max_norm,
                                            .norm_type = options.norm_type,
                                            .scale_grad_by_freq = options.scale_grad_by_freq});
    if (factors.defined()) rows = rows * factors.unsqueeze(1);
    const Tensor none = zeros({count, weight.size(1)}, options_of(weight));
    if (options.mode == BagMode::max) return index_reduce(none, 0, bags, rows, "amax", false);
    sums = index_add(none, 0, bags, rows);
  }
  if (options.mode == BagMode::sum) return sums;
  const Tensor one = ones({flat.numel()}, options_of(weight));
  const Tensor counts = index_add(zeros({count}, options_of(weight)), 0, bags, one);
  return sums / maximum(counts, 1.0).unsqueeze(1);
}

}  // namespace lockstep
