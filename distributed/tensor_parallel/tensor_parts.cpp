#include "lockstep/distributed/tensor_parallel/tensor_parts.h"

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::distributed {
namespace {

/// [outer, size of dim, inner] of a contiguous tensor.
Tensor around(const Tensor& t, int dim) {
  std::int64_t outer = 1, inner = 1;
  for (int d = 0; d < t.dim(); ++d)
    if (d != dim) (d < dim ? outer : inner) *= t.size(d);
  return t.as_strided({outer, t.size(dim), inner}, {t.size(dim) * inner, inner, 1}, t.offset());
}

Tensor middle(const Tensor& t, std::int64_t begin, std::int64_t count) {
  return t.as_strided({t.size(0), count, t.size(2)}, t.strides(), t.offset() + begin * t.strides()[1]);
}

}  // namespace

Tensor TensorDivision::own_part(const Tensor& whole, const TensorShards& shards) const {
  const NoGradGuard values_only;
  const Tensor full = as_contiguous(whole.detach());
  const SizeRun mine = shards.run_of(size, shards.group().rank());
  Shape sizes = full.sizes();
  sizes[dim] = mine.size * parts;
  const Tensor own = empty(sizes, options_of(full));
  for (std::int64_t p = 0; p < parts; ++p)
    copy_values(middle(around(full, dim), p * size + mine.begin, mine.size),
                middle(around(own, dim), p * mine.size, mine.size));
  return own;
}

Tensor TensorDivision::whole(const Tensor& own, const TensorShards& shards) const {
  const NoGradGuard values_only;
  ProcessGroup& group = shards.group();
  const int ranks = group.world_size();
  const Tensor mine = as_contiguous(own.detach());
  shards.size_of_whole(mine.size(dim) / parts, size, "TensorParallel");
  Shape sizes = mine.sizes();
  sizes[dim] = size * parts;
  const Tensor full = empty(sizes, options_of(mine));
  if (full.numel() == 0) return full;
  const Tensor all = empty({full.numel()}, options_of(mine));
  if (ranks == 1 || shards.divided(size).is_even()) {
    group.all_gather(all, mine)->wait();
  } else {
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < ranks; ++rank)
      counts.push_back(mine.numel() / mine.size(dim) * parts * shards.run_of(size, rank).size);
    group.all_gather_uneven(all, mine, counts)->wait();
  }
  std::int64_t at = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const SizeRun run = shards.run_of(size, rank);
    sizes[dim] = run.size * parts;
    const Tensor theirs = all.as_strided(sizes, contiguous_strides(sizes), at);
    at += theirs.numel();
    for (std::int64_t p = 0; p < parts; ++p)
      copy_values(middle(around(theirs, dim), p * run.size, run.size),
                  middle(around(full, dim), p * size + run.begin, run.size));
  }
  return full;
}

std::vector<Tensor> TensorDivision::by_shard(const Tensor& own, const TensorShards& shards) const {
  const NoGradGuard values_only;
  const Tensor mine = as_contiguous(own.detach()), all = around(mine, dim);
  const std::int64_t height = mine.size(dim) / parts, outer = all.size(0), inner = all.size(2);
  const DividedSize runs = shards.own_runs(height, "TensorParallel");
  std::vector<Tensor> result;
  for (std::int64_t s = 0; s < runs.count(); ++s) {
    const SizeRun run = runs.run(s);
    const Tensor shard = empty({parts, outer, run.size, inner}, options_of(mine));
    for (std::int64_t p = 0; p < parts; ++p)
      copy_values(
          middle(all, p * height + run.begin, run.size),
          shard.as_strided({outer, run.size, inner}, {run.size * inner, inner, 1}, p * outer * run.size * inner));
    result.push_back(shard);
  }
  return result;
}

}  // namespace lockstep::distributed
