#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/options.h"
#include "lockstep/distributed/parallel/reduction/shard_sums.h"
#include "lockstep/distributed/parallel/shares.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

struct Division;
class ParameterShards;

/// What computes one worker's shares of a batch (Note [Shares]), and knows what their losses add up to.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  /// `part` is what this worker computes of a batch of part.global_size samples. `step` enters the random keys of
  /// logical shards. Gradients of slices are multiplied by `scale`. Layers that communicate in forward() need
  /// `empty_slices`: the loss function is called for slices without samples too. Throws what the loss function throws.
  virtual void begin(const data::Batch& part, std::uint64_t step, const LossFunction& loss, double scale = 1.0,
                     bool empty_slices = false) = 0;
  /// True if there is something for finish() to do.
  virtual bool pending() const = 0;
  /// What can only be done when the divisor of all losses is known. The gradients of slices then are scale / divisor
  /// times those of the sum; those of logical shards are divided when all are added up, and `divisor` is 1.
  virtual void finish(double divisor) = 0;
  /// `final` is called in begin() for each list of ModelPart::trained() whose gradients are final, while others are
  /// still computed; without samples too, so that all workers make the same calls.
  void when_final(std::function<void(std::size_t list)> final) { when_final_ = std::move(final); }
  /// Gradients are divided over the workers, and perhaps values (Note [Divided parameters]); before the first step.
  virtual void divided_by(std::shared_ptr<Division>) {}
  /// When the gradients of all workers have been added up.
  virtual void after_reduction() {}
  /// The first loss is looked at for tensors that are trained by nobody; see nn::detail::warn_of_unregistered().
  virtual void look_for_unregistered() {}

  /// Sum of the losses of slices, one float64 element on the module's device; undefined without samples.
  const Tensor& device_sum() const { return sum_; }
  /// The same, waiting for the device.
  double sum() const { return sum_.defined() ? sum_.item<double>() : 0.0; }
  /// What the sum is to be divided by.
  double count() const { return count_; }
  /// The loss function gave counts of its own: the divisor is the sum of count() over all parts of the batch, not the
  /// number of samples.
  bool counted() const { return counted_; }

 protected:
  Tensor sum_;
  double count_ = 0.0;
  bool counted_ = false;
  std::function<void(std::size_t list)> when_final_;
};

/// Of a model that is spread over the workers, each with a part of its layers: what takes the place of a ShareRunner in
/// the training step, which goes along the workers that hold the same part. See PipelineParallel.
class ModelPart {
 public:
  virtual ~ModelPart() = default;
  /// The parameters whose gradients are added up over the workers that hold the same part, those that are computed
  /// together in a list of their own.
  virtual std::vector<std::vector<nn::NamedTensor>> trained() const = 0;
  /// Trained parameters of this part that others have too: one of them has each in trained(), and gives the others what
  /// has been added up.
  virtual std::vector<Tensor> shared() const = 0;
  /// `sums`: of those parameters, in lockstep mode; else null. Both must outlive the result.
  virtual std::unique_ptr<StepRunner> make_runner(const TrainingStepOptions& options, ShardSums* sums) = 0;
};

/// Throws Error for a sum of all losses' counts that nothing can be divided by.
void check_divisor(double count);

/// The parameters of a step whose gradients are added up over its workers.
std::vector<nn::NamedTensor> reduced_parameters(const nn::Module& module, const TrainingStepOptions& options);

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
