#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/gpt/language_model.h"
#include "apps/gpt/weights.h"
#include "lockstep/distributed/pipeline_parallel/mesh_model.h"
#include "lockstep/train/workers.h"

namespace lockstep::gpt {

/// How a mesh is used.
struct MeshChoice {
  std::string schedule = "1f1b";  ///< of a pipeline
  std::int64_t chunks = 1;
  bool sequence_parallel = false;  ///< tokens are divided between the divided layers
  bool context_parallel = false;   ///< tokens are divided instead of layers

  DividedTokens tokens() const {
    return context_parallel    ? DividedTokens::everywhere
           : sequence_parallel ? DividedTokens::between_layers
                               : DividedTokens::none;
  }
};

/// Throws Error, one sentence that names the option, for a model that cannot be divided over such a mesh.
void check_mesh(const Config& config, const training::WorkerOptions& workers, const MeshChoice& choice);
/// A mesh of so many processes that fits the model: as much data parallelism as there can be, which sends least, then
/// stages, then divided layers. Throws Error if there is none.
distributed::MeshSizes choose_mesh(int processes, const Config& config, const training::WorkerOptions& workers,
                                   const MeshChoice& choice);

/// A language model divided over the mesh of a program's workers, with what trains it.
class MeshTraining {
 public:
  using ModelFactory = std::function<std::unique_ptr<LanguageModel>()>;

  /// `autocast`: kBFloat16, kFloat16, or kFloat32 for none. Collective.
  MeshTraining(const training::Workers& workers, const MeshChoice& choice, DType autocast, ModelFactory make_model,
               distributed::MeshModel::OptimizerFactory make_optimizer);

  distributed::TrainingStep& step() { return *step_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  const distributed::MeshModel& whole() const { return *whole_; }
  const SavedBytes& saved_bytes() const { return saved_bytes_; }  ///< of the whole model
  /// The mean loss of a part of a batch, for the step.
  Tensor loss(nn::Module& net, const data::Batch& part) {
    return pipeline_ ? model_->loss_of(net(part.x), part.y) : model_->loss(part.x, part.y);
  }
  /// The mean loss of windows that all ranks with the same place in `data` have alike. A collective of these.
  double evaluate(const Tensor& tokens, const Tensor& targets) const;
  void clip(double max_norm) const { whole_->clip_grad_norm(max_norm, *optimizer_); }
  /// The whole model on rank 0, null elsewhere. A collective.
  std::unique_ptr<LanguageModel> gathered() const;

 private:
  std::unique_ptr<LanguageModel> model_;
  SavedBytes saved_bytes_;
  std::optional<distributed::TensorParallel> divided_;
  std::optional<distributed::PipelineParallel> pipeline_;  // of several stages
  std::optional<distributed::MeshModel> whole_;
  std::optional<distributed::TrainingStep> step_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

}  // namespace lockstep::gpt
