#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/random.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/async_checkpoint.h"
#include "lockstep/distributed/pipeline_parallel/pipeline_parallel.h"
#include "lockstep/distributed/tensor_parallel/tensor_parallel.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::distributed {

/// Note [Models on a mesh]
/// A model whose layers are divided (TensorParallel) and spread over stages (PipelineParallel), seen as the whole that
/// one process would have: for checkpoints, hashes and files, which therefore say nothing of the mesh. What belongs
/// together is gathered a tensor at a time into a second module on rank 0, which lives as long as it is needed; a
/// checkpoint is read into one on every rank, which takes its parts from it.
class MeshModel {
 public:
  using ModuleFactory = std::function<std::unique_ptr<nn::Module>()>;  ///< makes the whole model; called on all ranks
  using OptimizerFactory = std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor> parameters)>;

  /// `module`, divided over `mesh` by `pipeline` and `divided` (null: not), which must outlive this object. The
  /// factories make what one process would have; random numbers are as if they had not been called. A step along `data`
  /// may divide it further (ZeRO).
  MeshModel(nn::Module& module, const Mesh& mesh, const PipelineParallel* pipeline, const TensorParallel* divided,
            ModuleFactory make_module, OptimizerFactory make_optimizer);

  const Mesh& mesh() const { return mesh_; }
  /// An optimizer of the parameters here, made by the factory.
  std::unique_ptr<optim::Optimizer> make_optimizer() const;
  /// optim::clip_grad_norm_() by the norm of the whole model's gradients, whoever has them; `optimizer` is that of the
  /// parameters here. A collective; returns the norm, whose bits are those of one process.
  double clip_grad_norm(double max_norm, optim::Optimizer& optimizer) const;

  /// The whole model with the present values, if asked with gradients too, on rank 0 of the job; null elsewhere. A
  /// collective of all ranks.
  std::unique_ptr<nn::Module> whole(bool gradients = false) const;
  /// nn::save_checkpoint() of the whole model and of an optimizer as make_optimizer() makes it. A collective of all
  /// ranks; rank 0 writes, and what it throws is thrown on all. `background`, made with the group of all ranks, writes
  /// while the training goes on (Note [Checkpoints in the background]).
  void save_checkpoint(const std::string& path, optim::Optimizer& optimizer, const nn::TrainingState& state,
                       AsyncCheckpoint* background = nullptr) const;
  /// nn::load_checkpoint() of a file that was saved on any mesh, or by one process. Every rank reads it.
  nn::TrainingState load_checkpoint(const std::string& path, optim::Optimizer& optimizer) const;
  /// nn::weights_sha256() and nn::state_sha256() of the whole model, on all ranks. A collective.
  std::pair<std::string, std::string> sha256() const;

 private:
  struct Whole {
    std::unique_ptr<nn::Module> module;
    std::unique_ptr<optim::Optimizer> optimizer;
  };
  /// Freshly made.
  Whole make_whole() const;
  /// The ranks that save: those that hold the first samples. All have the same.
  bool saves() const { return mesh_.position().data == 0; }
  bool is_root() const { return mesh_.world()->rank() == 0; }
  std::vector<nn::NamedTensor> own_parameters() const;
  /// PipelineParallel::gather(), or the same of one stage.
  void gather(const std::function<Tensor(const Tensor& own)>& value_of,
              const std::function<void(const std::string& name, const Tensor& value)>& take) const;
  /// Parameters and buffers, and gradients, into rank 0's `whole`, which is null elsewhere.
  void gather_values(const Whole& whole, bool gradients) const;
  /// The optimizer's state, likewise.
  void gather_state(const optim::Optimizer& own, const Whole& whole) const;

  nn::Module& module_;
  const Mesh& mesh_;
  const PipelineParallel* pipeline_;
  const TensorParallel* divided_;
  ModuleFactory make_module_;
  OptimizerFactory make_optimizer_;
  std::vector<std::string> state_names_;  // of all parameters' state in the optimizer
};

}  // namespace lockstep::distributed
