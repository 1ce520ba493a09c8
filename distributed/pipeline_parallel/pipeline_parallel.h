#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/pipeline_parallel/pipeline_options.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

class ModelPart;
class TensorParallel;

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
///     return cross_entropy(net.forward(part.x), part.y);
///   });
///
/// Micro-batches are the shares of the training step (Note [Shares]): its slices, or in lockstep mode the logical
/// shards. All ranks call step() with the same batch. The loss function is called on the last stage alone; `net` there
/// is a module whose forward() returns what the last layer has given. What is drawn at random is keyed by micro-batch
/// and by the draws before it in the whole model, so it does not depend on the number of stages.
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
  /// Those of this rank's layers, in the module's order: what the optimizer takes.
  std::vector<nn::NamedTensor> named_parameters() const;
  std::vector<Tensor> parameters() const;  ///< the same without names
  /// How many layers each chunk has.
  const std::vector<std::int64_t>& layers_of_chunks() const;
  int stage() const;  ///< of this rank, from 0

  /// What `values` makes of the output of the last layer for x, which all ranks give alike; it is called on the last
  /// stage alone, without gradients, and all ranks get what it returned. A collective.
  std::vector<double> evaluate(const Tensor& x,
                               const std::function<std::vector<double>(const Tensor& output)>& values) const;
  /// optim::clip_grad_norm_() by the norm of the whole model's gradients: the same bits as of one process, with
  /// `divided` those of its clip_grad_norm(). A collective; returns the norm.
  double clip_grad_norm(double max_norm, const TensorParallel* divided = nullptr) const;
  /// What `value_of` gives for each parameter and buffer of the module, on the ranks that hold it, on all ranks: such
  /// as
  /// `[](const Tensor& own) { return own; }`. May be undefined. A collective.
  std::vector<nn::NamedTensor> gather(const std::function<Tensor(const Tensor& own)>& value_of) const;
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
