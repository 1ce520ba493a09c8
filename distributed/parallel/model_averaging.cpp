#include "lockstep/distributed/parallel/model_averaging.h"

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/sharding/division.h"
#include "lockstep/distributed/parallel/workers/module_agreement.h"
#include "lockstep/distributed/process_group/coalesced.h"

namespace lockstep::distributed {

void average_parameters(nn::Module& module, ProcessGroup& group) {
  const auto division = Division::of(module);
  LOCKSTEP_CHECK(
      !division || !division->values_too,
      "[average_parameters] each rank has a share of the parameters, which a step with zero = 3 has divided; "
      "average the gradients instead");
  SharedState averaged;
  for (nn::NamedTensor& parameter : module.named_parameters())
    if (parameter.tensor.requires_grad()) averaged.parameters.push_back(std::move(parameter));
  const NoGradGuard values_only;
  check_agreement(averaged, {}, group, "average_parameters");
  static const OperationLabel label("average of parameters");
  const LabelScope scope(label);
  all_reduce_coalesced(averaged.tensors(), group, ReduceOp::avg);
}

PeriodicModelAverager::PeriodicModelAverager(nn::Module& module, ProcessGroup& group, Options options)
    : PeriodicModelAverager(module, {{&group, options.period}}, options.warmup_steps) {}

PeriodicModelAverager::PeriodicModelAverager(nn::Module& module, std::vector<Level> levels, std::int64_t warmup_steps)
    : module_(module), levels_(std::move(levels)), warmup_steps_(warmup_steps) {
  LOCKSTEP_CHECK(!levels_.empty(), "[PeriodicModelAverager] expected at least one group");
  LOCKSTEP_CHECK(warmup_steps >= 0, "[PeriodicModelAverager] expected a warm-up of 0 steps or more, found {}",
                 warmup_steps);
  std::int64_t before = 0;
  for (const Level& level : levels_) {
    LOCKSTEP_CHECK(level.group, "[PeriodicModelAverager] a group is null");
    LOCKSTEP_CHECK(level.period >= 1, "[PeriodicModelAverager] expected a period of at least 1 step, found {}",
                   level.period);
    LOCKSTEP_CHECK(before == 0 || (level.period > before && level.period % before == 0),
                   "[PeriodicModelAverager] expected periods each of which is a larger multiple of the one before; "
                   "found {} after {}",
                   level.period, before);
    before = level.period;
  }
}

ProcessGroup* PeriodicModelAverager::step() {
  const std::int64_t local = steps_++ - warmup_steps_;
  if (local < 0) return nullptr;
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level)
    if (local % level->period == 0) {
      average_parameters(module_, *level->group);
      return level->group;
    }
  return nullptr;
}

void PeriodicModelAverager::set_steps(std::int64_t steps) {
  LOCKSTEP_CHECK(steps >= 0, "[PeriodicModelAverager] expected a number of steps from 0 on, found {}", steps);
  steps_ = steps;
}

}  // namespace lockstep::distributed
