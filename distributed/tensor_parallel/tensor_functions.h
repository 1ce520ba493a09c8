#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/tensor_parallel/tensor_shards.h"

namespace lockstep::distributed {

/// What the layers of Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model
/// parallelism" (2019) compute on one of the ranks that hold them together. All ranks call the same functions with the
/// same x, forward and backward; every rank gets the same bits of what is whole. `shards` must outlive the graph.
/// Floating-point tensors of one dtype; what does not fit throws Error.

/// y = x * weight^T + bias for this rank's outputs: x [*, in] whole, weight [out / ranks, in], bias [out / ranks] or
/// undefined, y [*, out / ranks]. `parts`: so many matrices one under the other, each divided over the ranks by itself
/// (3 for queries, keys and values). The gradient of x is summed over the shards.
Tensor column_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorShards& shards,
                              std::int64_t parts = 1);

/// y = x * weight^T + bias from this rank's inputs: x [*, in / ranks], weight [out, in / ranks], bias [out] whole or
/// undefined, y [*, out] whole, summed over the shards.
Tensor row_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorShards& shards);

/// Rows of a table [rows, width] of which this rank has weight [rows / ranks, width]: index [*] whole, gives [*, width]
/// whole. An index outside of the table gives zeros.
Tensor vocabulary_parallel_embedding(const Tensor& weight, const Tensor& index, const TensorShards& shards);

/// Mean cross-entropy of logits [N, classes] of which this rank has logits [N, classes / ranks], such as
/// column_parallel_linear() gives; target [N], int64, whole. The softmax is never whole on any rank. A target outside
/// of the classes throws Error on the CPU and makes the loss NaN elsewhere.
Tensor vocabulary_parallel_cross_entropy(const Tensor& logits, const Tensor& target, const TensorShards& shards);

}  // namespace lockstep::distributed
