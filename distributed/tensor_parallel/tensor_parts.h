#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/tensor_parallel/tensor_shards.h"

namespace lockstep::distributed {

/// How a tensor is divided along one of its dimensions, which has `parts` pieces of `size` each, one after the other,
/// that are each divided by themselves (Note [Divided sizes]).
struct TensorDivision {
  int dim = 0;
  std::int64_t size = 0;
  std::int64_t parts = 1;

  /// What this rank has of `whole`; contiguous.
  Tensor own_part(const Tensor& whole, const TensorShards& shards) const;
  /// The reverse, from what every rank has. A collective.
  Tensor whole(const Tensor& own, const TensorShards& shards) const;
  /// What each of this rank's shards has of `own`, its pieces one after the other; contiguous.
  std::vector<Tensor> by_shard(const Tensor& own, const TensorShards& shards) const;
};

}  // namespace lockstep::distributed
