#pragma once

#include <string>

#include "lockstep/autograd/ops/batch_norm/batch_norm.h"
#include "lockstep/core/tensor.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Note [SyncBatchNorm]
/// Batch norm in training by the statistics of the batches of all ranks together: what one process would compute from
/// the whole, however unevenly it is divided, empty parts included. Each rank's mean, variance and count are gathered
/// and combined in rank order (Chan et al., 1979), in float64, so that all ranks get the same bits; backward adds up
/// the two sums of each channel over the ranks. Semantics of torch.nn.SyncBatchNorm.
///
/// forward() and backward() of such a layer are collectives: every rank must run the same layers in the same order, in
/// every step. DistributedDataParallel::step() sees to it that ranks without samples do, by calling the loss function
/// with an empty part. Models whose ranks take different ways through their layers cannot use it.
///
/// A step that is computed in slices (Note [Shares]) normalises slice i of all ranks together.

/// Makes every batch norm layer of `module`, and below it, normalise over the ranks of `group` from now on. The module
/// keeps its structure, names and values; evaluation is as before. Returns how many layers there are. Every rank must
/// do the same.
int convert_sync_batch_norm(nn::Module& module, ProcessGroupPtr group);

/// The reverse.
void revert_sync_batch_norm(nn::Module& module);

/// Name of the module's first layer that convert_sync_batch_norm() changed; empty: none.
std::string first_sync_batch_norm(nn::Module& module);

/// The operation behind it; options.training must be set. Errors as lockstep::batch_norm, and if all ranks together
/// have one value per channel.
Tensor sync_batch_norm(const Tensor& input, const Tensor& running_mean, const Tensor& running_var,
                       const BatchNormOptions& options, ProcessGroup& group);

}  // namespace lockstep::distributed
