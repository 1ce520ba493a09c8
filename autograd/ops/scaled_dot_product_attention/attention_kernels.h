#pragma once

#include <cstdint>

#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// What a kernel needs to know besides the tensors.
struct AttentionPlan {
  double scale = 1.0;
  bool causal = false;
  bool dropout = false;
  philox::KeySource key;  ///< with dropout: weight [n, h, l, s] is kept if its word is at least `threshold`
  std::uint32_t threshold = 0;
  double keep_scale = 1.0;  ///< of the weights that are kept
  /// Of a part of the heads: dropout counts them from first_head on of all_heads; 0: they are all.
  std::int64_t first_head = 0, all_heads = 0;

  /// The number of a head of `heads` in a batch, for dropout.
  LOCKSTEP_HOST_DEVICE std::int64_t head_number(std::int64_t batch, std::int64_t head, std::int64_t heads) const {
    return batch * (all_heads == 0 ? heads : all_heads) + first_head + head;
  }
};

// query [N, H, L, E], key [N, G, S, E], value [N, G, S, Ev], out [N, H, L, Ev], where head h uses key h / (H / G). They
// may have any strides, but elements of a row are neighbours and rows do not overlap. mask is undefined, or bool or of
// the dtype that is computed in, [N, H, L, S] of any strides. log_sums [N, H, L] is contiguous, float64 for float64,
// else float32: log(sum(exp(score))) of each query, or infinity where there is no key. No size is 0.
using AttentionKernel = void(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
                             const Tensor& out, const Tensor& log_sums, const AttentionPlan& plan);
AttentionKernel attention_reference, attention_cpu, attention_cuda;

/// What backward reads: the forward pass's tensors and the gradient of out.
struct AttentionSaved {
  Tensor query, key, value, mask, out, log_sums, grad;
};
/// Writes all three gradients, in the layouts of query, key and value. A query whose log_sum is not a number makes the
/// gradients of all keys and values of its head so, also of those that it does not see, as in PyTorch's plain
/// attention.
using AttentionBackwardKernel = void(const AttentionSaved& saved, const Tensor& grad_query, const Tensor& grad_key,
                                     const Tensor& grad_value, const AttentionPlan& plan);
AttentionBackwardKernel attention_backward_reference, attention_backward_cpu, attention_backward_cuda;

}  // namespace lockstep::detail
