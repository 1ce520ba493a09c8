#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim::detail {
class GradientsInParts;
}

namespace lockstep::distributed {

class AlikeGradients;
class TensorShards;

/// How a layer is divided over the ranks that hold it together.
enum class TensorSplit : std::uint8_t {
  column,      ///< nn::Linear by its outputs: every rank reads the same x and has some of the outputs; nn::Dropout
               ///< behind it, which drops what it would of the whole
  row,         ///< nn::Linear by its inputs, which a column layer before it has left: the result is whole everywhere
  vocabulary,  ///< nn::Embedding by its rows: the result is whole everywhere
  heads,       ///< nn::MultiheadAttention by heads: its in_proj by columns, its out_proj by rows; nn::LayerNorm or
               ///< RMSNorm of each head, between a column and a row layer, which reads this rank's heads
  sequence,    ///< with sequence_parallel, nn::LayerNorm, RMSNorm and Dropout outside of divided layers: every rank
               ///< computes its own tokens; with context_parallel nn::Linear too, and a parameter of the model's own
               ///< that it uses by apply_to_tokens()
  alike,       ///< with context_parallel a layer or parameter whose gradient all ranks compute alike: a table that is
               ///< read before own_tokens(), a head behind all_tokens(), the weight that cross_entropy() is given
};

/// Which layers, and how.
struct TensorRule {
  std::string layers;                       ///< name of a layer, with * for any one name between dots: "h.*.mlp.c_fc"
  TensorSplit split = TensorSplit::column;  ///< how they are divided
  std::int64_t parts = 1;  ///< of a column layer that is several, one under the other: 3 for queries, keys and values
  /// A column layer gives its outputs whole on every rank, where no row layer reads them: a head, whose logits the
  /// model goes on with (PyTorch's output_layouts=Replicate()). Not with several parts.
  bool gathers = false;
  /// Of a norm of each head: the dimension of x along which the heads lie, [N, tokens, heads, width of a head] by
  /// default; -3 for [N, heads, tokens, width of a head].
  int dim = -2;
};

/// Options of TensorParallel.
struct TensorParallelOptions {
  ProcessGroupPtr group = nullptr;  ///< the ranks that hold the layers together, such as Mesh::tensor(); null: this one
  /// T, a power of two that the number of ranks divides: the same bits for each such number (Note [Tensor shards]). 0:
  /// within rounding.
  std::int64_t logical_shards = 0;
  /// Tokens are divided between the divided layers, so that norms, dropout and activations there are (Note [Token
  /// shards]).
  bool sequence_parallel = false;
  /// Tokens are divided everywhere, and weights nowhere: for sequences that are too long for one rank (Note [Context
  /// parallelism]). Not with sequence_parallel.
  bool context_parallel = false;
};

/// Note [Tensor parallelism]
/// Divides layers of a model over ranks as a plan says, which names them; the model's code stays what it is. Between a
/// column and a row layer each rank has some of the activations, everywhere else all ranks have the same, computed by
/// each. Parameters that are divided hold this rank's part from then on, under their names.
///
///   const Mesh mesh(job, {.data = 2, .tensor = 2});
///   TensorParallel parallel(net, {{"*.linear1", TensorSplit::column}, {"*.linear2", TensorSplit::row}},
///                           {.group = mesh.tensor()});
///   TrainingStep step(net, {.group = mesh.data()});
///
/// Divide a model before optimizers, steps and checkpoints take its parameters. What is element-wise may stand between
/// the two. Dropout is keyed by the position in the whole: of attention weights, and between the two where the plan has
/// the nn::Dropout as a column layer. So masks are those of one process; ranks along `data` draw their own.
///
/// A vocabulary, outputs and inputs need not be multiples of the shards: the first of these have one row more than the
/// others then, and parameters and activations of a rank as many as its shards (Note [Divided sizes]).
///
/// With `sequence_parallel` a rank has, outside of the divided layers, its own tokens of x [*, tokens, width] alone.
/// The plan then names the norms and the dropout there (TensorSplit::sequence), and the model passes what it begins
/// with through own_tokens(), and through all_tokens() what it ends with, unless that goes to cross_entropy(). `tokens`
/// must be a multiple of the shards.
///
/// Parameters that are not divided have one gradient on all ranks. In the first backward passes on CPUs this is
/// checked: an Error names the first parameter for which it does not hold, as where a plan forgets a layer, or where
/// ranks are given other samples or seeds.
///
/// Note [Context parallelism]
/// With `context_parallel` every rank has all weights, and of each activation its own tokens, so that activations take
/// a rank's share of their memory everywhere. What is computed a token at a time needs nothing of other tokens;
/// attention does, and there ranks exchange their tokens of all heads for all tokens of their heads, and back (Jacobs
/// et al., "DeepSpeed Ulysses", 2023). The plan is that of divided layers: a column layer leaves this rank's columns of
/// all tokens, a row layer reads them, `heads` is an attention with both, all else that has parameters is `sequence`;
/// what computes the same on every rank is `alike`, and a parameter or dropout that the plan leaves out is an Error.
/// Gradients are added up by shards of tokens along the tree.
///
///   TensorParallel parallel(net, {{"blocks.*.attention", heads}, {"blocks.*.linear1", sequence},
///                                 {"blocks.*.norm1", sequence}, …, {"table", alike}},
///                           {.group = mesh.tensor(), .context_parallel = true});
///   x = parallel.own_tokens(table(tokens)); … loss = parallel.cross_entropy(x, table.weight, targets);
class TensorParallel {
 public:
  /// Of a module that all ranks of the group have alike; rank 0's values count. Throws Error, on all ranks and before
  /// anything is changed, for a rule that names no layer or one of another kind, for heads that cannot be divided
  /// evenly into so many shards, and for other sizes below their number. The module must outlive this object, and be
  /// trained as long as it lives.
  TensorParallel(nn::Module& module, const std::vector<TensorRule>& plan, const TensorParallelOptions& options = {});
  ~TensorParallel();
  TensorParallel(const TensorParallel&) = delete;
  TensorParallel& operator=(const TensorParallel&) = delete;

  const TensorShards& shards() const { return *shards_; }  ///< what is divided; internal
  /// Mean cross-entropy of x * weight^T, x [N, width] whole, for a weight [classes / ranks, width] such as that of an
  /// embedding that is divided by its vocabulary; the logits are never whole. A weight that is no parameter of the plan
  /// has equally many rows on every rank. target [N], int64, whole; those that are `ignore_index` count for nothing.
  /// With `sequence_parallel` x is [N, tokens / ranks, width], and target has as many as all tokens; with
  /// `context_parallel` too, where the weight is whole.
  Tensor cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                       std::int64_t ignore_index = -100) const;
  /// The logits of cross_entropy(), [*, classes] on every rank: to sample from, and for a loss of one's own. With
  /// `sequence_parallel` x is [*, tokens / ranks, width] and the logits are of all tokens.
  Tensor logits(const Tensor& x, const Tensor& weight) const;
  /// Of x [*, tokens, width], which all ranks have alike, this rank's tokens; without `sequence_parallel` x.
  Tensor own_tokens(const Tensor& x) const;
  /// The reverse: all tokens, for what all ranks compute alike from them.
  Tensor all_tokens(const Tensor& x) const;
  /// What makes a tensor of x and parameters.
  using TokenFunction = std::function<Tensor(const Tensor& x, const std::vector<Tensor>& parameters)>;
  /// What `compute` makes, a token at a time, of this rank's tokens x [*, tokens / ranks, width] and parameters that
  /// are no layer's: `x + gamma * y` is `apply_to_tokens(y, {gamma}, [](auto& own, auto& p) { return own * p[0]; })`
  /// added to x. Their gradients are summed over all tokens. Where tokens are not divided, compute(x, parameters).
  Tensor apply_to_tokens(const Tensor& x, const std::vector<Tensor>& parameters, const TokenFunction& compute) const;
  /// Whether a rank has its own tokens between divided layers: sequence_parallel or context_parallel.
  bool divides_tokens() const { return tokens_; }
  bool context_parallel() const { return context_; }  ///< as the options had it
  /// The module's parameters and buffers, each whole, under their names: what one process would have. A collective.
  std::vector<nn::NamedTensor> full_state() const;
  /// optim::clip_grad_norm_() by the norm of the whole model's gradients. A collective; returns the norm. In lockstep
  /// mode its bits do not depend on the number of ranks. `optimizer`: the one that has the gradients, if a step divides
  /// them (TrainingStepOptions::zero); throws Error if it is needed and not given.
  double clip_grad_norm(double max_norm, optim::Optimizer* optimizer = nullptr) const;

  // For who combines the layers with another division, such as PipelineParallel.

  /// How many elements of a parameter a rank has on average: for one that some TensorParallel divides of a size that
  /// its ranks do not divide, the same on all of them.
  static double average_numel(const Tensor& parameter);

  /// The whole of `own`, which is shaped like this rank's part of a parameter: its value, gradient or an optimizer's
  /// state. A parameter that is not divided gives `own`, as an undefined one does. A collective.
  Tensor whole_of(const Tensor& parameter, const Tensor& own) const;
  /// The reverse: this rank's part of what is shaped like the whole parameter.
  Tensor part_of(const Tensor& parameter, const Tensor& whole) const;
  /// Calls its argument with parameters and their gradients, on all ranks the same.
  using VisitGradients = std::function<void(const std::function<void(const Tensor& parameter, const Tensor& grad)>&)>;
  /// Of each of the module's parameters the sum of its gradient's squares, over all ranks; of the gradients that
  /// `visit` has, or those with the parameters. A collective.
  std::vector<double> gradient_squares(const std::vector<Tensor>& parameters, const VisitGradients& visit = {}) const;
  /// What clip_grad_norm() makes of these: their sum, in its order.
  double sum_of_squares(const std::vector<Tensor>& parameters, const std::vector<double>& squares) const;

 private:
  struct Divided;

  static bool names(std::string_view pattern, std::string_view name);
  void find(nn::Module& module, const std::string& name, const TensorRule& rule);
  bool find_parameters(const TensorRule& rule);
  bool find_norm(nn::Module& module, const std::string& name, int dim);
  void find_by_tokens(nn::Module& module, const std::string& name);
  void find_in_context(nn::Module& module, const std::string& name, const TensorRule& rule);
  void take(const nn::Module& module, const std::string& name, const std::vector<Tensor>& parameters = {});
  void check_all_are_named() const;
  void check(const Divided& divided) const;
  void divide(const Divided& divided) const;
  using Places = std::map<std::int64_t, nn::Dropout::Place>;
  Places places_of_columns() const;
  std::int64_t rows_of(const Tensor& weight) const;
  const Divided* divided_as(const Tensor& parameter) const;

  static inline std::mutex all_mutex_;
  static inline std::vector<const TensorParallel*> all_;  // that live
  nn::Module& module_;
  std::unique_ptr<TensorShards> shards_;
  std::vector<Divided> divided_;
  std::vector<nn::Dropout*> dropouts_;              // of columns
  std::vector<std::int64_t> columns_;               // outputs of the layers before them
  std::vector<std::function<void()>> by_function_;  // have layers with whole weights compute a rank's share
  std::vector<const nn::Module*> taken_;            // layers of these rules, and of what they consist
  std::vector<Tensor> named_;                       // parameters of these rules
  std::unique_ptr<optim::detail::GradientsInParts> gradients_in_parts_;
  std::unique_ptr<AlikeGradients> alike_gradients_;
  const bool tokens_, context_;
};

}  // namespace lockstep::distributed
