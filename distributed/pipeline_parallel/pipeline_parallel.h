#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::nn {
class Sequential;
}

namespace lockstep::distributed {

class ModelPart;
class TensorParallel;

/// In which order a stage computes its micro-batches; see Note [Pipeline schedules].
enum class PipelineSchedule : std::uint8_t {
  gpipe,                     ///< all forwards, then all backwards
  one_forward_one_backward,  ///< in turn: fewer activations
  interleaved,               ///< several chunks of layers a stage: a smaller bubble, more messages
  zero_bubble,               ///< either of them, weights' gradients where a stage would wait: a third of the bubble
};

/// "gpipe", "1f1b", "interleaved" and "zero-bubble", and back. Throws Error, listing them, for another text.
PipelineSchedule parse_pipeline_schedule(std::string_view text);
std::string to_string(PipelineSchedule schedule);
/// A stage may have several chunks of layers.
constexpr bool may_interleave(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::interleaved || schedule == PipelineSchedule::zero_bubble;
}

/// One link of the chain that a model is.
struct PipelineLayer {
  std::string name;  ///< for messages: "h.3"
  /// What `forward` computes with; the last layer's also the loss. A module in several layers is tied.
  std::vector<nn::Module*> modules;
  /// From what the layer before gives, the first from a batch's x. Empty: that of the one module.
  std::function<Tensor(const Tensor& x)> forward = {};
};

/// The elements of a Sequential, each a layer.
std::vector<PipelineLayer> pipeline_layers(const nn::Sequential& chain);

/// Options of PipelineParallel.
struct PipelineParallelOptions {
  ProcessGroupPtr group = nullptr;  ///< the ranks that are the stages, such as Mesh::pipeline(); null: this one alone
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int chunks = 1;  ///< a stage has: of the interleaved schedule 2 or more, of the zero-bubble one as many as one likes
  /// How many layers each chunk has. Empty: so that their `costs` are even.
  std::vector<std::int64_t> layers_of_chunks = {};
  /// What each layer costs, such as measure_layers() gives. Empty: the elements of its parameters.
  std::vector<double> costs = {};
  bool recompute = false;     ///< keep each layer's input alone for backward (nn::recompute): less memory, same bits
  DType autocast = kFloat32;  ///< mixed precision of the layers: kBFloat16, kFloat16; kFloat32: none
};

/// Note [Pipeline parallelism]
/// Spreads the layers of a model over the ranks of a group, its stages. The model is told apart by a plan, a list of
/// its layers in order; its code stays what it is. A rank keeps the parameters of its own layers; others have no
/// elements from then on.
///
///   const Mesh mesh(job, {.data = 2, .pipeline = 2});
///   PipelineParallel pipeline(net, pipeline_layers(net), {.group = mesh.pipeline()});
///   TrainingStep step(net, {.group = mesh.data(), .accumulate = 8, .model_part = pipeline.part()});
///   optim::SGD optimizer(pipeline.parameters(), {.lr = 0.02});
///   Tensor loss = step(batch, [](nn::Module& net, const data::Batch& part) {
///     return cross_entropy(net(part.x), part.y);
///   });
///
/// Micro-batches are the shares of the training step (Note [Shares]): its slices, or in lockstep mode the logical
/// shards. All ranks call step() with the same batch: inputs are taken from the first stage's and targets from the
/// last's, and a warning says so if they are not of the same batch (as far as it is on CPUs). The loss function is
/// called on the last stage alone; `net` there is a module whose forward() returns what the last layer has given. What
/// is drawn at random is keyed by micro-batch and by the draws before it in the whole model, so it does not depend on
/// the number of stages.
///
/// A parameter of several layers (tied embeddings) is on each of their stages. Its gradient is added up from the last
/// layer to the first, as one backward pass would: of each logical shard in lockstep mode, so that bits are those of
/// one process, which sends it for each; else once a step. Every stage gets the result, and so makes the same update.
///
/// Where a stage fails, its error names stage, micro-batch and layer, and the job's groups end with it on all ranks.
class PipelineParallel {
 public:
  /// Of a module that all ranks have alike; rank 0's values count. A collective. Throws Error, before anything is
  /// changed, for fewer layers than chunks, for parameters that no layer has, and for options that do not go together.
  /// Divide layers (TensorParallel) before. The module must outlive this object.
  PipelineParallel(nn::Module& module, std::vector<PipelineLayer> layers, const PipelineParallelOptions& options = {});
  ~PipelineParallel();
  PipelineParallel(const PipelineParallel&) = delete;
  PipelineParallel& operator=(const PipelineParallel&) = delete;

  /// For TrainingStepOptions; as long as this object lives.
  ModelPart* part() const;
  /// Those of this rank's layers, in the module's order.
  std::vector<nn::NamedTensor> named_parameters() const;
  /// The same without names, for the optimizer: if none of them is trained, also a tensor without elements that
  /// requires gradients, so that an optimizer of those that do has one.
  std::vector<Tensor> parameters() const;
  /// How many layers each chunk has.
  const std::vector<std::int64_t>& layers_of_chunks() const;
  int stage() const;  ///< of this rank, from 0

  /// What `values` makes of the output of the last layer for x, which all ranks give alike; it is called on the last
  /// stage alone, without gradients, and all ranks get what it returned. Layers compute in the mode that they are in:
  /// call the module's eval() before. The options' autocast is the step's; an AutocastGuard around the call is this
  /// one's. Divided parameters (TrainingStepOptions::zero = 3) must be whole: hold the step's whole_parameters()
  /// meanwhile, which distributed::evaluate() does by itself and this does not. Throws Error otherwise. A collective.
  std::vector<double> evaluate(const Tensor& x,
                               const std::function<std::vector<double>(const Tensor& output)>& values) const;
  /// optim::clip_grad_norm_() by the norm of the whole model's gradients: the same bits as of one process, with
  /// `divided` those of its clip_grad_norm(). `optimizer`: the one that has the gradients, if a step divides them
  /// (TrainingStepOptions::zero); throws Error if it is needed and not given. A collective; returns the norm.
  double clip_grad_norm(double max_norm, const TensorParallel* divided = nullptr,
                        optim::Optimizer* optimizer = nullptr) const;
  /// Calls `take(name, value)` on all ranks for each parameter and buffer of the module with what `value_of` has given
  /// on the rank that holds it, such as `[](const Tensor& own) { return own; }`; perhaps undefined. A collective.
  void gather(const std::function<Tensor(const Tensor& own)>& value_of,
              const std::function<void(const std::string& name, const Tensor& value)>& take) const;
  /// The module's parameters and buffers, each whole, under their names: what one process would have. A collective.
  std::vector<nn::NamedTensor> full_state(const TensorParallel* divided = nullptr) const;
  /// Bytes of activations and gradients that this rank has sent to other stages so far.
  std::int64_t bytes_sent() const;

 private:
  class State;
  friend class PipelineRunner;
  std::unique_ptr<State> state_;
};

/// Seconds that forward and backward of each layer take on rank 0 for the input x of the first: for
/// PipelineParallelOptions::costs. `repeats` of each are timed, and the fastest counts. Gradients are left undefined. A
/// collective; null: this process alone.
std::vector<double> measure_layers(const std::vector<PipelineLayer>& layers, const Tensor& x,
                                   const ProcessGroupPtr& group = nullptr, int repeats = 3);

}  // namespace lockstep::distributed
