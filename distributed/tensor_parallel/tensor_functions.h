#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/tensor_parallel/tensor_shards.h"

namespace lockstep::distributed {

/// What the layers of Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model
/// parallelism" (2019) compute on one of the ranks that hold them together. All ranks call the same functions with the
/// same x, forward and backward; every rank gets the same bits of what is whole. `shards` must outlive the graph.
/// Floating-point tensors of one dtype; what does not fit throws Error.
///
/// "out / ranks" is this rank's run of the outputs, which may be one of unequal ones (Note [Divided sizes]). Where the
/// size of the whole matters too, it is the last argument; 0: as many as here for every rank.

/// y = x * weight^T + bias for this rank's outputs: x [*, in] whole, weight [out / ranks, in], bias [out / ranks] or
/// undefined, y [*, out / ranks]. `parts`: so many matrices one under the other, each divided over the ranks by itself
/// (3 for queries, keys and values). The gradient of x is summed over the shards.
Tensor column_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorShards& shards,
                              std::int64_t parts = 1);

/// What column_parallel_linear() has given, `own` [*, out / ranks], as [*, out] on every rank, for what all compute
/// alike from it. A collective.
Tensor gather_columns(const Tensor& own, const TensorShards& shards, std::int64_t columns = 0);

/// y = x * weight^T + bias from this rank's inputs: x [*, in / ranks], weight [out, in / ranks], bias [out] whole or
/// undefined, y [*, out] whole, summed over the shards.
Tensor row_parallel_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorShards& shards);

/// Rows of a table [rows, width] of which this rank has weight [rows / ranks, width]: index [*] whole, gives [*, width]
/// whole. An index outside of the table throws Error on the CPU and gives zeros elsewhere.
Tensor vocabulary_parallel_embedding(const Tensor& weight, const Tensor& index, const TensorShards& shards,
                                     std::int64_t rows = 0);

/// Mean cross-entropy of logits [N, classes] of which this rank has logits [N, classes / ranks], such as
/// column_parallel_linear() gives; target [N], int64, whole, of which `ignore_index` counts for nothing. The softmax is
/// never whole on any rank. Another target outside of the classes throws Error on the CPU and makes the loss NaN
/// elsewhere.
Tensor vocabulary_parallel_cross_entropy(const Tensor& logits, const Tensor& target, const TensorShards& shards,
                                         std::int64_t classes = 0, std::int64_t ignore_index = -100);

/// Logits of a shard beyond so many are not kept, but computed again in backward, a piece at a time.
constexpr std::int64_t kLogitsAtOnce = std::int64_t{1} << 25;
/// The loss of each row of x [N, width], of whose logits a shard has `columns` a row: losses(x, weight, target) of all
/// rows, or of as many at a time as are kept.
Tensor losses_in_pieces(
    const Tensor& x, const Tensor& weight, const Tensor& target, std::int64_t columns,
    const std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& target)>& losses);

/// vocabulary_parallel_cross_entropy() of column_parallel_linear(x, weight), x [N, width] whole.
Tensor vocabulary_parallel_head_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                                              const TensorShards& shards, std::int64_t classes,
                                              std::int64_t ignore_index);
/// The sum of `losses` over the number of targets that are not `ignore_index`.
Tensor mean_of_counted(const Tensor& losses, const Tensor& target, std::int64_t ignore_index);

// Where tokens are divided besides (Note [Token shards]).

/// column_parallel_linear() of x [*, tokens / ranks, in], of which each rank has its own tokens; y [*, tokens, out /
/// ranks] has all of them. Tokens that cannot be divided evenly into so many shards throw Error, here as below.
Tensor column_parallel_linear_of_tokens(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                        const TensorShards& shards, std::int64_t parts = 1);
/// row_parallel_linear() of all tokens, x [*, tokens, in / ranks], of whose result each rank gets its own tokens.
Tensor row_parallel_linear_of_tokens(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                     const TensorShards& shards);
/// Of x [*, tokens, width], which all ranks have alike, this rank's tokens.
Tensor scatter_tokens(const Tensor& x, const TensorShards& shards);
/// The reverse: all ranks' tokens, for what every rank computes alike from them.
Tensor gather_tokens(const Tensor& x, const TensorShards& shards);
/// What `compute` makes of x [*, tokens / ranks, width] and parameters that all ranks have alike, a token at a time,
/// such as layer_norm: their gradients are summed over the shards of tokens. Undefined parameters are left out.
Tensor apply_to_tokens(const Tensor& x, const std::vector<Tensor>& parameters, const TensorShards& shards,
                       const std::function<Tensor(const Tensor& x, const std::vector<Tensor>& parameters)>& compute);
/// The same where the ranks have runs of x along dimension `dim`, such as heads.
Tensor apply_to_runs(const Tensor& x, int dim, const std::vector<Tensor>& parameters, const TensorShards& shards,
                     const std::function<Tensor(const Tensor& x, const std::vector<Tensor>& parameters)>& compute);

// Where weights are whole on every rank, and tokens alone are divided (Note [Context parallelism]).

/// linear() of x [*, tokens / ranks, in], of which each rank has its own tokens: y [*, tokens / ranks, out].
Tensor linear_of_tokens(const Tensor& x, const Tensor& weight, const Tensor& bias, const TensorShards& shards);
/// Of x [*, tokens / ranks, parts * columns], of which each rank has its own tokens, all tokens of this rank's columns
/// of each part: [*, tokens, parts * columns / ranks]. What attention reads, whose heads are runs of columns. A
/// collective. Columns that the ranks do not divide throw Error, here as below.
Tensor own_columns_of_all_tokens(const Tensor& x, const TensorShards& shards, std::int64_t parts = 1);
/// The reverse for one part: of x [*, tokens, columns / ranks] all columns of this rank's tokens, [*, tokens / ranks,
/// columns].
Tensor all_columns_of_own_tokens(const Tensor& x, const TensorShards& shards);
/// Mean cross-entropy of x * weight^T, x [*, tokens / ranks, width] being this rank's tokens, weight [classes, width]
/// and target [* x tokens], int64, whole on every rank. Each rank computes the logits of its own tokens. Targets that
/// are `ignore_index` count for nothing.
Tensor cross_entropy_of_tokens(const Tensor& x, const Tensor& weight, const Tensor& target, const TensorShards& shards,
                               std::int64_t ignore_index = -100);

}  // namespace lockstep::distributed
