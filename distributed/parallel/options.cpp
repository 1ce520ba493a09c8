#include "lockstep/distributed/parallel/options.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/distributed/collectives/shard_tree.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "lockstep/distributed/parallel/workers/shared_state.h"

namespace lockstep::distributed {
namespace {

void check_ignored_modules(const TrainingStepOptions& options, nn::Module& module) {
  const std::string& first = options.ignored_modules.front();
  LOCKSTEP_CHECK(options.ranks(),
                 "[TrainingStep] ignored_modules names '{}' without a job or group, on whose ranks it would differ; "
                 "pass one, or leave it out",
                 first);
  LOCKSTEP_CHECK(options.logical_shards == 0,
                 "[TrainingStep] ignored_modules names '{}', but in lockstep mode every rank holds the whole model; "
                 "leave out ignored_modules or logical_shards (now {})",
                 first, options.logical_shards);
  LOCKSTEP_CHECK(options.zero == 0 && !options.model_part,
                 "[TrainingStep] ignored_modules names '{}', which is each rank's own, but {}; leave out one of them",
                 first,
                 options.zero != 0 ? "zero divides every parameter over the ranks" : "a part of a model is given");
  const auto modules = module.named_modules();
  for (const std::string& name : options.ignored_modules)
    LOCKSTEP_CHECK(!name.empty() && std::ranges::any_of(modules, [&](const auto& each) { return each.first == name; }),
                   "[TrainingStep] ignored_modules names '{}', and {} has no such module; expected names such as '{}'",
                   name, module.type_name(), modules.size() > 1 ? modules[1].first : "0");
  const nn::NamedTensors shared = shared_state(module, options).parameters;
  LOCKSTEP_CHECK(std::ranges::any_of(shared, [](const auto& each) { return each.tensor.requires_grad(); }),
                 "[TrainingStep] {} has no other parameter that requires gradients than those of ignored_modules, and "
                 "needs no step",
                 module.type_name());
}

}  // namespace

void check_options(const TrainingStepOptions& options, nn::Module& module, bool has_factory) {
  const ProcessGroupPtr ranks = options.ranks();
  const bool lockstep = options.logical_shards != 0;
  LOCKSTEP_CHECK(!options.job || !options.group,
                 "[TrainingStep] both a job and a group were given; the job has a group of its own: pass one of them");
  LOCKSTEP_CHECK(!ranks || options.devices.empty(),
                 "[TrainingStep] both a job (or group) and devices were given; a process of a job trains on the job's "
                 "device: leave out devices");
  LOCKSTEP_CHECK(!options.hook || ranks,
                 "[TrainingStep] the communication hook '{}' was given without a job; a process alone sends no "
                 "gradients: leave out hook",
                 options.hook->name());
  if (!options.ignored_modules.empty()) check_ignored_modules(options, module);
  LOCKSTEP_CHECK(has_factory || options.devices.size() <= 1,
                 "[TrainingStep] {} devices were given with a module that exists; each device needs a replica: pass a "
                 "factory that makes the module",
                 options.devices.size());
  LOCKSTEP_CHECK(options.accumulate >= 1, "[TrainingStep] accumulate is {}; expected at least 1 slice",
                 options.accumulate);
  LOCKSTEP_CHECK(options.accumulate == 1 || !lockstep,
                 "[TrainingStep] accumulate is {}, but lockstep mode accumulates over the logical shards by itself; "
                 "leave it at 1 and raise logical_shards (now {}) for smaller slices",
                 options.accumulate, options.logical_shards);
  LOCKSTEP_CHECK(!options.hook || !lockstep,
                 "[TrainingStep] the communication hook '{}' cannot be used in lockstep mode, whose bits come from one "
                 "fixed order of additions; leave out the hook or logical_shards",
                 options.hook->name());
  LOCKSTEP_CHECK(options.zero == 0 || options.zero == 2 || options.zero == 3,
                 "[TrainingStep] zero is {}; expected 2 (gradients and optimizer state are divided), 3 (parameters "
                 "too) or 0; the state alone is divided by a ZeroRedundancyOptimizer without it",
                 options.zero);
  LOCKSTEP_CHECK(options.zero == 0 || ranks,
                 "[TrainingStep] zero is {} without a job or group, over whose ranks to divide the model; pass one",
                 options.zero);
  LOCKSTEP_CHECK(options.zero == 0 || !options.hook,
                 "[TrainingStep] the communication hook '{}' works on whole gradients, which zero = {} does not keep; "
                 "leave out one of them",
                 options.hook->name(), options.zero);
  LOCKSTEP_CHECK(options.zero == 0 || !options.static_graph,
                 "[TrainingStep] static_graph is for whole gradients, which zero = {} does not keep; leave out one of "
                 "them",
                 options.zero);
  LOCKSTEP_CHECK(options.shard_units.empty() || options.zero == 3,
                 "[TrainingStep] shard_units says what is gathered together of divided parameters, but zero is {}; "
                 "expected 3",
                 options.zero);
  LOCKSTEP_CHECK(options.shard_units.empty() || !options.model_part,
                 "[TrainingStep] shard_units says what is gathered block by block, and a stage of a pipeline gathers "
                 "its layers once a step; leave it out");
  LOCKSTEP_CHECK(
      options.gather_dtype == kFloat32 || (options.gather_dtype == kBFloat16 && options.zero == 3),
      "[TrainingStep] gather_dtype is {} with zero = {}; expected bfloat16 with 3, whose parameters are gathered, or "
      "float32",
      name(options.gather_dtype), options.zero);
  LOCKSTEP_CHECK(
      options.gather_within == 0 || options.zero == 3,
      "[TrainingStep] gather_within is {} with zero = {}; expected 3, whose parameters are gathered, or leave "
      "it out",
      options.gather_within, options.zero);
  LOCKSTEP_CHECK(
      options.gather_within >= 0 && (options.gather_within == 0 || ranks->world_size() % options.gather_within == 0),
      "[TrainingStep] gather_within is {}, and there are {} ranks; expected a divisor of their number",
      options.gather_within, ranks ? ranks->world_size() : 1);
  if (lockstep) {
    const auto devices = static_cast<int>(std::max<std::size_t>(options.devices.size(), 1));
    check_shards(options.logical_shards, ranks ? ranks->world_size() : devices, "TrainingStep");
    const bool on_devices = options.devices.empty() ? module.device().is_cuda() : options.devices[0].is_cuda();
    LOCKSTEP_CHECK(
        !on_devices || cuda::deterministic(),
        "[TrainingStep] logical_shards is {}, whose bits do not depend on the workers, but algorithms that "
        "give other bits each time are allowed on CUDA devices; call cuda::set_deterministic(true), and leave "
        "out LOCKSTEP_CUDNN_BENCHMARK",
        options.logical_shards);
    const std::string found = first_sync_batch_norm(module);
    LOCKSTEP_CHECK(found.empty(),
                   "[TrainingStep] layer '{}' is a synchronised batch norm: statistics of the whole batch are another "
                   "model than those of logical shards; leave out convert_sync_batch_norm() or logical_shards",
                   found);
  }
  LOCKSTEP_CHECK(!options.model_part || ranks,
                 "[TrainingStep] a part of a model was given without a group; pass the ranks that hold the same part, "
                 "such as Mesh::data()");
  LOCKSTEP_CHECK(!options.model_part || first_sync_batch_norm(module).empty(),
                 "[TrainingStep] layer '{}' is a synchronised batch norm, whose statistics would be those of one "
                 "micro-batch on all ranks; leave out convert_sync_batch_norm(), or the pipeline",
                 first_sync_batch_norm(module));
  LOCKSTEP_CHECK(
      (!ranks && !lockstep) || options.model_part || options.zero == 3 ||
          std::ranges::any_of(module.parameters(), &Tensor::requires_grad),
      "[TrainingStep] {} has no parameter that requires gradients; what is read alone needs no step, unless it is "
      "divided over ranks (zero = 3)",
      module.type_name());
}

void check_not_lockstep(bool lockstep, const char* what) {
  LOCKSTEP_CHECK(
      !lockstep,
      "[TrainingStep] {} is not for lockstep mode, in which a graph can only be recorded by step(): it "
      "computes the logical shards of one global batch one by one; leave out logical_shards, or, to call it in "
      "another model's loss, make both members of one module with one step and an optimizer for each",
      what);
}

void check_whole_model(bool part, const char* what) {
  LOCKSTEP_CHECK(!part,
                 "[TrainingStep] {} is not for a model that is spread over ranks, whose parts are computed together by "
                 "step(); PipelineParallel::evaluate() computes it without training",
                 what);
}

void check_loss(const LossValue& loss) {
  LOCKSTEP_CHECK(loss.value().defined() && loss.value().numel() == 1,
                 "[TrainingStep] the loss function must return one element, the mean loss or a sum; found {}",
                 loss.value().defined() ? to_string(loss.value().sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(!loss.count() || (std::isfinite(*loss.count()) && *loss.count() >= 0.0),
                 "[TrainingStep] the loss function returned a count of {}; expected a finite number, at least 0",
                 loss.count().value_or(0.0));
}

}  // namespace lockstep::distributed
