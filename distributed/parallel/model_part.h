#pragma once

#include <memory>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/parallel/options.h"
#include "lockstep/distributed/parallel/reduction/shard_sums.h"
#include "lockstep/distributed/parallel/step_runner.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

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

/// The parameters of a step whose gradients are added up over its workers.
std::vector<nn::NamedTensor> reduced_parameters(const nn::Module& module, const TrainingStepOptions& options);

}  // namespace lockstep::distributed
