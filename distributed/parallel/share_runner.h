#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/reduction/shard_sums.h"
#include "lockstep/distributed/parallel/shares.h"
#include "lockstep/distributed/parallel/step_runner.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

class ParameterShards;

/// Computes one worker's shares of a batch on one module (Note [Shares]), one after the other: all their forward passes
/// and all backward passes but the last one in begin(), and that one in finish().
///
/// Slices leave their gradients in the parameters, where they add up. Logical shards are computed alone, each with its
/// samples in memory of their own, its own random key and its own batch statistics, so that nothing in one depends on
/// where it runs or with which others; what they leave goes into a ShardSums.
class ShareRunner final : public StepRunner {
 public:
  /// Slices. The module must outlive this object.
  ShareRunner(nn::Module& module, std::int64_t slices) : module_(module), slices_(slices) {}
  /// Logical shards. Both must outlive this object.
  ShareRunner(nn::Module& module, ShardSums& sums) : module_(module), sums_(&sums) {}

  /// The part is moved to the module's device.
  void begin(const data::Batch& part, std::uint64_t step, const LossFunction& loss, double scale = 1.0,
             bool empty_slices = false) override;
  void look_for_unregistered() override { looks_ = true; }
  /// Parameters are divided: each pass is made under these, which must outlive this object; null: they are whole.
  void gather_by(ParameterShards* shards) { shards_ = shards; }
  /// Forward passes that begin() makes for `part`.
  std::int64_t passes_of(const data::Batch& part, bool empty_slices) const;
  /// True if there is a last share, and so a pass for finish().
  bool pending() const override { return last_.defined(); }
  /// Backward of the last share.
  void finish(double divisor) override;

 private:
  std::vector<Share> shares_of(const data::Batch& part, bool empty_slices) const;
  void add_to_sum(const Tensor& value, double factor);
  void backward(const Tensor& value, double factor, double divisor);

  nn::Module& module_;
  std::int64_t slices_ = 1;
  ShardSums* sums_ = nullptr;
  ParameterShards* shards_ = nullptr;
  bool looks_ = false;
  double scale_ = 1.0;
  double assumed_ = 1.0;  // the divisor of the passes before the last
  std::int64_t passes_ = 0;
  Tensor last_;
  double last_factor_ = 0.0;
};

}  // namespace lockstep::distributed
