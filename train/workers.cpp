#include "lockstep/train/workers.h"

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/random.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/distributed/failure/flight_dump.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"

namespace lockstep::training {

Workers::Workers(WorkerOptions options) : options_(std::move(options)) {
  LOCKSTEP_CHECK(options_.mode == Mode::dp || options_.devices.empty(),
                 "[Workers] devices were given, which only mode dp uses");
  LOCKSTEP_CHECK(!options_.mesh || (options_.mode != Mode::dp && !options_.hook),
                 "[Workers] a mesh was given with several devices or a communication hook, which it cannot have");
  LOCKSTEP_CHECK(options_.mode == Mode::ddp || (!options_.zero && !options_.hook),
                 "[Workers] zero and a communication hook are for the processes of mode ddp");
  LOCKSTEP_CHECK(!options_.portable || options_.logical_shards > 0,
                 "[Workers] portable arithmetic was asked for, which only lockstep mode uses");
  if (options_.portable) cuda::set_portable(true);
  if (options_.threads > 0) set_num_threads(options_.threads);
  if (options_.device == "auto" && options_.mode != Mode::ddp) options_.device = cuda::is_available() ? "cuda" : "cpu";
  if (options_.mode == Mode::ddp) {
    options_.job.device = options_.device;
    job_.emplace(distributed::init(options_.job));
  } else {
    distributed::FlightDumps::answer_requests();
  }
  if (options_.mesh)
    mesh_.emplace(job_ ? job_->process_group() : distributed::make_single_process_group(), *options_.mesh);
  manual_seed(options_.seed);
}

int Workers::count() const {
  if (job_) return job_->world_size();
  return options_.mode == Mode::dp ? static_cast<int>(options_.devices.size()) : 1;
}

distributed::ProcessGroupPtr Workers::group() const {
  return job_ ? job_->process_group() : nullptr;
}

distributed::TrainingStep Workers::make_step(const distributed::TrainingStep::Factory& factory) const {
  distributed::TrainingStepOptions step{.job = job_ ? &*job_ : nullptr,
                                        .logical_shards = options_.logical_shards,
                                        .accumulate = options_.accumulate,
                                        .zero = options_.zero >= 2 ? options_.zero : 0,
                                        .gather_dtype = options_.gather_dtype,
                                        .hook = options_.hook};
  if (options_.mode == Mode::dp) step.devices = options_.devices;
  if (options_.mode == Mode::single) step.devices = {Device(options_.device)};
  return distributed::TrainingStep(factory, step);
}

distributed::TrainingStep Workers::make_step(nn::Module& module, distributed::ModelPart* part) const {
  LOCKSTEP_CHECK(mesh_, "[Workers] a part of a model needs a mesh; set WorkerOptions::mesh");
  return distributed::TrainingStep(module, {.group = mesh_->data(),
                                            .logical_shards = options_.logical_shards,
                                            .accumulate = options_.accumulate,
                                            .model_part = part,
                                            .zero = options_.zero >= 2 ? options_.zero : 0,
                                            .gather_dtype = options_.gather_dtype});
}

data::DataLoader Workers::make_loader(std::shared_ptr<const data::Dataset> dataset,
                                      data::DataLoaderOptions loader) const {
  loader.batch_size = options_.batch_size;
  loader.seed = options_.seed;
  // Where several devices share a batch it is cut on the host.
  if (options_.mode != Mode::dp) loader.device = job_ ? job_->device() : Device(options_.device);
  loader.logical_shards = options_.logical_shards;
  if (job_) {
    loader.rank = mesh_ ? mesh_->position().data : job_->rank();
    loader.world_size = mesh_ ? mesh_->sizes().data : job_->world_size();
  }
  return data::DataLoader(std::move(dataset), std::move(loader));
}

std::unique_ptr<optim::Optimizer> Workers::make_optimizer(distributed::TrainingStep& step,
                                                          const OptimizerFactory& factory) const {
  std::unique_ptr<optim::Optimizer> optimizer = factory(step.module().parameters());
  if (options_.zero == 0) return optimizer;
  return std::make_unique<distributed::ZeroRedundancyOptimizer>(std::move(optimizer), step);
}

std::unique_ptr<optim::Optimizer> Workers::make_optimizer(nn::Module& module, const OptimizerFactory& factory) const {
  LOCKSTEP_CHECK(options_.zero <= 1, "[Workers] zero is {}, which divides gradients; pass the step, not its module",
                 options_.zero);
  std::unique_ptr<optim::Optimizer> optimizer = factory(module.parameters());
  if (!options_.zero) return optimizer;
  return std::make_unique<distributed::ZeroRedundancyOptimizer>(std::move(optimizer), group());
}

}  // namespace lockstep::training
