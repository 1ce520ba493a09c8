// A table of embeddings and a softmax whose rows and classes are divided over ranks.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/tensor_parallel/tensor_functions.h"
#include "lockstep/nn/container.h"

namespace lockstep::distributed {
namespace {

/// 1 where an index lies outside of `all` rows or classes, else 0. Throws Error on the CPU if any does.
Tensor outside_of(const Tensor& index, std::int64_t all, const char* index_name, const char* what) {
  const Tensor outside = maximum(lt(index, 0).to(kFloat32), ge(index, all).to(kFloat32));
  LOCKSTEP_CHECK(!index.device().is_cpu() || index.numel() == 0 || max(outside).item<double>() == 0.0,
                 "{} is outside of the {} {}; expected 0 to {}", index_name, all, what, all - 1);
  return outside;
}

/// Where values of an index lie in this rank's rows: 1 to their number, and one less or more is what others have.
Tensor places_here(const Tensor& index, const SizeRun& mine) {
  return clamp(sub(index, mine.begin - 1), 0.0, static_cast<double>(mine.size + 1));
}

class VocabularyParallelEmbeddingBackward final : public Node {
 public:
  const char* name() const override { return "VocabularyParallelEmbeddingBackward"; }

  TensorList apply(TensorList grads) override {
    if (!grads[0].defined()) return {Tensor()};
    // Others' rows gather at both ends.
    const Tensor padded = detail::index_add_rows(grads[0], saved(0), {count + 2, grads[0].size(-1)}, 0);
    return {copy_contiguous(rows(padded, 1, count))};
  }

  std::int64_t count = 0;
};

Tensor column(const Tensor& values) {
  return values.as_strided({values.numel(), 1}, {1, 1}, values.offset());
}

/// [N, classes]: 1 at the target's place, if it is here.
Tensor one_hot(const Tensor& places, const Tensor& like) {
  const Tensor classes =
      arange(1.0, static_cast<double>(like.size(1)) + 1.0, 1.0, {.dtype = places.dtype(), .device = like.device()});
  return eq(column(places), classes).to(like.dtype());
}

/// Of the losses of each row.
class VocabularyParallelLossesBackward final : public Node {
 public:
  const char* name() const override { return "VocabularyParallelLossesBackward"; }

  TensorList apply(TensorList grads) override {
    if (!grads[0].defined()) return {Tensor()};
    const Tensor &logits = saved(0), &largest = saved(1), &total = saved(2), &places = saved(3), &counts = saved(4);
    const Tensor shares = div(exp(sub(logits, column(largest))), column(total));
    return {mul(sub(shares, one_hot(places, logits)), column(where(counts, grads[0], 0.0)))};
  }
};

/// vocabulary_parallel_cross_entropy() of each row, 0 where the target counts for nothing.
Tensor losses_of(const Tensor& logits, const Tensor& target, const TensorShards& shards, std::int64_t classes,
                 std::int64_t ignore_index) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& l) { return losses_of(l, target, shards, classes, ignore_index); },
                             logits);
  const std::int64_t own = logits.size(1),
                     all = shards.size_of_whole(own, classes, "vocabulary_parallel_cross_entropy");
  const DividedSize runs = shards.own_runs(own, "vocabulary_parallel_cross_entropy");
  Tensor out, largest, total, places, counts;
  const Tensor values = as_contiguous(logits.detach());
  {
    const NoGradGuard values_only;
    shards.check_alike(target, "targets");
    counts = ne(target, ignore_index);
    const Tensor outside =
        outside_of(mul(target, counts.to(kInt64)), all, "[vocabulary_parallel_cross_entropy] a target", "classes");
    largest = copy_contiguous(max(values, {1}));
    shards.max(largest);
    std::vector<Tensor> sums;
    for (std::int64_t s = 0; s < runs.count(); ++s) {
      const SizeRun run = runs.run(s);
      const Tensor part =
          as_contiguous(values.as_strided({values.size(0), run.size}, {own, 1}, values.offset() + run.begin));
      sums.push_back(sum(exp(sub(part, column(largest))), {1}));
    }
    total = shards.sum(std::move(sums));
    places = places_here(target, shards.run_of(all, shards.group().rank()));
    const Tensor here = sub(clamp(places, 1.0, static_cast<double>(own)), 1);
    const Tensor found = gather(values, 1, here.view({-1, 1})).view({-1});
    const Tensor is_here = eq(add(here, 1), places);
    const Tensor picked = shards.sum_of_one(copy_contiguous(where(is_here, found, 0.0)));
    out = sub(add(log(total), largest), picked);
    out = where(gt(outside, 0.0), std::numeric_limits<double>::quiet_NaN(), out);
    out = where(counts, out, 0.0);
  }
  if (auto* node = record<VocabularyParallelLossesBackward>(out, {&logits}))
    node->save(values, largest, total, places, counts);
  return out;
}

}  // namespace

Tensor vocabulary_parallel_embedding(const Tensor& weight, const Tensor& index, const TensorShards& shards,
                                     std::int64_t rows) {
  LOCKSTEP_CHECK(weight.defined() && weight.dim() == 2 && index.defined() && !index.is_floating_point(),
                 "[vocabulary_parallel_embedding] expected a weight [rows, width] and an integer index");
  const std::int64_t count = weight.size(0), all = shards.size_of_whole(count, rows, "vocabulary_parallel_embedding");
  Tensor out, places;
  {
    const NoGradGuard values_only;
    shards.check_alike(index, "tokens");
    if (index.device().is_cpu()) outside_of(index, all, "[vocabulary_parallel_embedding] an index", "rows");
    places = places_here(index, shards.run_of(all, shards.group().rank()));
    const Tensor none = zeros({1, weight.size(1)}, options_of(weight));
    out = shards.sum_of_one(embedding(cat({none, weight.detach(), none}), places));
  }
  if (auto* node = record<VocabularyParallelEmbeddingBackward>(out, {&weight})) {
    node->save(places);
    node->count = count;
  }
  return out;
}

Tensor mean_of_counted(const Tensor& losses, const Tensor& target, std::int64_t ignore_index) {
  const DType wide = losses.dtype() == kFloat64 ? kFloat64 : kFloat32;
  const Tensor counted = sum(ne(target.detach(), ignore_index).to(wide));  // a tensor, so that no device is waited for
  return div(sum(losses.to(wide)), counted).to(losses.dtype());
}

Tensor vocabulary_parallel_cross_entropy(const Tensor& logits, const Tensor& target, const TensorShards& shards,
                                         std::int64_t classes, std::int64_t ignore_index) {
  LOCKSTEP_CHECK(logits.defined() && logits.dim() == 2 && logits.is_floating_point() && target.defined() &&
                     target.dtype() == kInt64 && target.sizes() == Shape({logits.size(0)}),
                 "[vocabulary_parallel_cross_entropy] expected logits [N, classes] and an int64 target [N]");
  return mean_of_counted(losses_of(logits, target, shards, classes, ignore_index), target, ignore_index);
}

Tensor losses_in_pieces(const Tensor& x, const Tensor& weight, const Tensor& target, std::int64_t columns,
                        const std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>& losses) {
  const std::int64_t rows = x.size(0);
  if (rows * columns <= kLogitsAtOnce) return losses(x, weight, target);
  const std::int64_t piece = std::max<std::int64_t>(1, kLogitsAtOnce / 2 / columns);
  std::vector<Tensor> parts;
  for (std::int64_t first = 0; first < rows; first += piece) {
    const std::int64_t count = std::min(piece, rows - first);
    parts.push_back(nn::recompute({x.narrow(0, first, count), weight},
                                  [losses, labels = target.narrow(0, first, count)](const std::vector<Tensor>& inputs) {
                                    return losses(inputs[0], inputs[1], labels);
                                  }));
  }
  return cat(parts);
}

Tensor vocabulary_parallel_head_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                                              const TensorShards& shards, std::int64_t classes,
                                              std::int64_t ignore_index) {
  LOCKSTEP_CHECK(target.defined() && target.dtype() == kInt64 && target.sizes() == Shape({x.size(0)}),
                 "[vocabulary_parallel_cross_entropy] expected an int64 target [{}]", x.size(0));
  // By the sizes of a shard, so that the pieces are those of any number of ranks.
  const std::int64_t all = shards.size_of_whole(weight.size(0), classes, "vocabulary_parallel_cross_entropy");
  const auto losses = [&shards, classes, ignore_index](const Tensor& input, const Tensor& table, const Tensor& labels) {
    return losses_of(column_parallel_linear(input, table, {}, shards), labels, shards, classes, ignore_index);
  };
  return mean_of_counted(losses_in_pieces(x, weight, target, shards.divided(all).run(0).size, losses), target,
                         ignore_index);
}

}  // namespace lockstep::distributed
