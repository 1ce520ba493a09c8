#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Options of evaluate().
struct EvaluateOptions {
  std::int64_t batch_size = 500;  ///< samples that are computed at a time
  /// The ranks that share the work; null: this process does it all.
  ProcessGroup* group = nullptr;
};

/// Adds up what `values` gives for each batch of a data set, such as the sum of the losses and the number of right
/// answers, with the module in evaluation mode and without gradients. The ranks share the batches: each sample counts
/// exactly once, nothing is padded, and every rank gets the sums: the same bits on any number of ranks, since each
/// batch is computed whole by one of them and the results are added up in the order of the batches.
///
///   const auto sums = evaluate(model, test_set, 2, [&](const data::Batch& batch) -> std::vector<double> { ... });
///
/// All ranks get rank 0's buffers first, and keep them: running statistics of batch norm differ between ranks after a
/// step of plain DistributedDataParallel. Parameters must be the same on all ranks, as training leaves them.
///
/// Divided parameters (TrainingStepOptions::zero = 3) are whole on every rank meanwhile.
///
/// `values` must return `count` numbers. It is called with tensors on the module's device. A collective if there is a
/// group. The module, and each in it, is in its former mode afterwards.
std::vector<double> evaluate(nn::Module& module, const std::shared_ptr<const data::Dataset>& dataset, std::size_t count,
                             const std::function<std::vector<double>(const data::Batch& batch)>& values,
                             const EvaluateOptions& options = {});

}  // namespace lockstep::distributed
