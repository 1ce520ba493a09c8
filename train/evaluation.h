#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"
#include "lockstep/train/sink.h"

namespace lockstep::train {

/// What is measured on a data set after each epoch: means over its samples.
struct Evaluation {
  std::shared_ptr<const data::Dataset> dataset;  ///< measured in batches of its order
  /// Of the values, such as "test accuracy".
  std::vector<std::string> names;
  /// For each name the sum of its value over the samples of a batch, which is on the module's device. Called without
  /// gradients and with the module in evaluation mode.
  std::function<std::vector<double>(nn::Module& module, const data::Batch& batch)> sums;

  /// The means. With a group, its ranks share the batches, each sample is counted exactly once, and all get the result:
  /// the same bits on any number of ranks. Errors as distributed::evaluate().
  Values measure(nn::Module& module, distributed::ProcessGroup* group) const;
};

/// "test accuracy" and "test loss" (mean cross-entropy) of a module that gives logits [N, classes] for batches with
/// int64 targets [N].
Evaluation classification(std::shared_ptr<const data::Dataset> dataset);

}  // namespace lockstep::train
