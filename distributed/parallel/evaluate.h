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
/// batch is computed whole by one of them and the results are added up in the order of the batches. What a batch draws
/// is a function of the seed and its number: the same again in another evaluation.
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

/// Gives the batch norm layers of a module that have running statistics new ones: of each layer the mean over the
/// batches of a data set of the batch's mean and unbiased variance, whatever the layer's momentum. For weights that
/// were never trained with, such as those of AveragedWeights while they are held; torch.optim.swa_utils.update_bn().
///
///   const auto held = average.hold();
///   update_bn(model, train_set, [&](const data::Batch& batch) { model(batch.x); }, {.group = &group});
///
/// `forward` is called without gradients, with the module in training mode and tensors on its device. Options, and how
/// ranks share the batches, as evaluate(): the same bits on any number of ranks, dropout's included. Afterwards each
/// module is in its former mode, and num_batches_tracked is the number of batches. Nothing happens to a module without
/// such layers. Throws Error for an empty data set, a layer that no batch reaches, and synchronised batch norm, of
/// which one rank alone cannot compute a batch; then, and if `forward` throws, the statistics are what they were.
void update_bn(nn::Module& module, const std::shared_ptr<const data::Dataset>& dataset,
               const std::function<void(const data::Batch& batch)>& forward, const EvaluateOptions& options = {});

}  // namespace lockstep::distributed

namespace lockstep {

using distributed::update_bn;

}  // namespace lockstep
