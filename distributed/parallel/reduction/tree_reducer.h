#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/parallel/reduction/reducer.h"
#include "lockstep/distributed/parallel/reduction/shard_sums.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Adds gradients up over the ranks of a group along the shard tree, in buckets like Reducer's and launched in the same
/// way while the last backward pass runs. A bucket holds one row for each unit of the tree that this rank has, so that
/// a parameter's last additions write straight to where its sum travels from.
class TreeReducer {
 public:
  TreeReducer(std::vector<nn::NamedTensor> parameters, ProcessGroupPtr group, std::int64_t shards,
              const ReducerOptions& options);

  /// Starts a step; `divisor` (one float64 element) may still be on its way in an earlier operation of the group.
  void begin(const Tensor& divisor);
  /// This rank's parts of one parameter's gradient.
  void add(std::size_t parameter, const ShardRunner::Parts& parts);
  /// Waits for all buckets and makes their results, views of the buckets, the parameters' gradients.
  void finish();

  std::size_t num_buckets() const { return buckets_.size(); }
  const ReducerTrace& trace() const { return trace_; }

 private:
  struct Slot {
    nn::NamedTensor parameter;
    std::size_t bucket = 0;
    std::int64_t offset = 0;
  };
  struct Bucket {
    Tensor units;  // [units, elements]
    Tensor sum;    // [elements]; the memory of `units` if there is one
    OperationLabel label;
    std::vector<std::size_t> slots;
    std::size_t pending = 0;
    WorkPtr work;
  };

  ProcessGroupPtr group_;
  std::int64_t shards_;
  std::vector<TreeNode> units_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  Tensor divisor_;
  std::size_t next_bucket_ = 0;  // the first one not launched
  ReducerTrace trace_;
};

/// target = the sum of `parts` along the tree, divided by `divisor`; `target` may be the first part. Runs in parallel.
void sum_parts(const Tensor& target, const ShardRunner::Parts& parts, double divisor = 1.0);

}  // namespace lockstep::distributed
