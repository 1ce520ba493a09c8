#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/process_group/process_group.h"

/// Note [Recorded collectives]
/// Collectives that autograd records, for models whose ranks exchange activations: contrastive losses over the samples
/// of all ranks, experts on different ranks. Each returns a new tensor; its gradient is computed by the collective that
/// is its transpose. So all ranks call backward() alike, x needs gradients on all of them or on none, and each one's
/// loss depends on the result, be it by a factor of 0: a rank that leaves it out keeps the others waiting until the
/// group's deadline. The gradient of x is that of the *sum* of all ranks' losses; a DistributedDataParallel averages
/// parameters' gradients over the ranks after that. As in torch.distributed.nn.functional.
///
/// In the loss of a step, which ranks must then compute equally often (as many slices or logical shards each), and
/// under a DistributedDataParallel, whose reductions come in another order on a rank that leaves parameters unused,
/// give them a group of their own:
///
///   const ProcessGroupPtr experts = job.process_group()->split(0);
///
/// In lockstep mode ranks compute their logical shards one by one: there it is an Error to call one in the loss of a
/// step on ranks that share its batch. Ranks that compute the same samples, as those of a tensor group, may.
///
/// Floating-point tensors, on devices that the group has; they need not be contiguous. Throw Error for what does not
/// fit; where only the ranks together do not fit, the group ends with an error that says so.
namespace lockstep::distributed::functional {

/// Every rank's x [N, *], along dimension 0 in rank order: [ranks * N, *]. All ranks have the same sizes.
Tensor all_gather(const Tensor& x, const ProcessGroupPtr& group);
/// The same of x of a different N on each rank: `rows` has that of each.
Tensor all_gather(const Tensor& x, const std::vector<std::int64_t>& rows, const ProcessGroupPtr& group);
/// The sum of all ranks' x, on each of them.
Tensor all_reduce(const Tensor& x, const ProcessGroupPtr& group);
/// Of the sum of all ranks' x [ranks * N, *], the block [N, *] of this rank.
Tensor reduce_scatter(const Tensor& x, const ProcessGroupPtr& group);
/// Rows of x [N, *] to other ranks: the first input_rows[0] go to rank 0, the next input_rows[1] to rank 1, and so on;
/// of the result the first output_rows[0] come from rank 0. torch's all_to_all_single with split sizes.
Tensor all_to_all(const Tensor& x, const std::vector<std::int64_t>& output_rows,
                  const std::vector<std::int64_t>& input_rows, const ProcessGroupPtr& group);

}  // namespace lockstep::distributed::functional
