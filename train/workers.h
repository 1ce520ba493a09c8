#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::training {

/// Who computes a step.
enum class Mode {
  single,  ///< this process, on one device
  dp,      ///< this process, on several devices (DataParallel)
  ddp,     ///< the processes of a job (DistributedDataParallel)
};

/// Who computes, and how a step is shared out.
struct WorkerOptions {
  Mode mode = Mode::single;           ///< who computes
  std::string device = "auto";        ///< single, ddp: "auto", "cpu", "cuda", "cuda:1"
  std::vector<Device> devices = {};   ///< dp
  distributed::InitOptions job = {};  ///< ddp; its device is the one above

  /// ddp, for programs that divide their models: the processes as a grid. The batch is divided along `data`.
  std::optional<distributed::MeshSizes> mesh = std::nullopt;
  std::int64_t tensor_shards = 0;  ///< T, of layers that are divided along `tensor`; 0: as many as there are ranks

  std::uint64_t seed = 1;           ///< of weights, data order and random layers
  int threads = 0;                  ///< of each process; 0: as the environment says
  std::int64_t batch_size = 64;     ///< samples a step, over all workers
  std::int64_t logical_shards = 0;  ///< V; 0: not in lockstep mode
  bool portable = false;            ///< in lockstep mode on CUDA devices: the CPU's bits (cuda::set_portable())
  std::int64_t accumulate = 1;      ///< slices that a step is computed in
  int zero = 0;  ///< ddp: divide the optimizer's state over the processes (1), gradients too (2), parameters too (3)
  DType gather_dtype = kFloat32;                     ///< zero 3: what parameters travel as, see TrainingStepOptions
  distributed::CommunicationHookPtr hook = nullptr;  ///< ddp: how gradients travel
};

/// The workers of a training, as this process sees them: it makes step, loader and optimizer so that they fit together.
/// The same code for one device, several devices, and several processes:
///
///   training::Workers workers({.mode = training::Mode::ddp});
///   auto step = workers.make_step([] { return std::make_unique<Net>(); });
///   auto optimizer = workers.make_optimizer(step, [](std::vector<Tensor> parameters) {
///     return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.02});
///   });
///   auto loader = workers.make_loader(data::mnist());
class Workers {
 public:
  /// Makes the optimizer of the parameters that it is given.
  using OptimizerFactory = std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor> parameters)>;

  /// Sets seed and threads, and in mode ddp joins the job: a collective. Errors as distributed::init().
  explicit Workers(WorkerOptions options);

  /// A model and its training step; must not outlive this object. Errors as TrainingStep.
  distributed::TrainingStep make_step(const distributed::TrainingStep::Factory& factory) const;
  /// The step of a model that is divided over the mesh, and `part`, which computes this process's part of it if it is
  /// spread over stages, else null.
  distributed::TrainingStep make_step(nn::Module& module, distributed::ModelPart* part) const;
  /// Of the options' batch size and seed; what `options` says about these, ranks, shards and device does not count.
  data::DataLoader make_loader(std::shared_ptr<const data::Dataset> dataset,
                               data::DataLoaderOptions options = {}) const;
  /// For the parameters of the step's module; with `zero`, this rank's share of a ZeroRedundancyOptimizer.
  std::unique_ptr<optim::Optimizer> make_optimizer(distributed::TrainingStep& step,
                                                   const OptimizerFactory& factory) const;
  /// The same for a module. Throws Error where `zero` divides gradients, which a step does.
  std::unique_ptr<optim::Optimizer> make_optimizer(nn::Module& module, const OptimizerFactory& factory) const;

  /// Processes or devices.
  int count() const;
  int rank() const { return job_ ? job_->rank() : 0; }  ///< of this process, from 0
  bool is_rank0() const { return rank() == 0; }         ///< true for one process: prints, saves
  /// In mode ddp the group of all ranks, be it one; else null.
  distributed::ProcessGroupPtr group() const;
  /// The grid of the options; null without.
  const distributed::Mesh* mesh() const { return mesh_ ? &*mesh_ : nullptr; }
  const WorkerOptions& options() const { return options_; }  ///< that it was made with

 private:
  WorkerOptions options_;
  std::optional<distributed::Job> job_;
  std::optional<distributed::Mesh> mesh_;
};

}  // namespace lockstep::training
