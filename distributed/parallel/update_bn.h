#pragma once

#include <functional>
#include <memory>

#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/evaluate.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

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
