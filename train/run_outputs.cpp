// What a run writes besides checkpoints and weights: profile, trace and hashes.

#include <algorithm>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/profile_file.h"
#include "lockstep/distributed/parallel/reduction/reducer_trace.h"
#include "lockstep/distributed/pipeline_parallel/mesh_model.h"
#include "lockstep/train/output.h"
#include "lockstep/train/run_state.h"
#include "lockstep/train/step_trace.h"

namespace lockstep::training {
namespace {

// Steps at the beginning of a run that are not like the others: memory, handles and graphs are made.
constexpr std::int64_t kTracedStep = 5;
constexpr std::int64_t kProfiledSteps = 10;

}  // namespace

/// A program may change its working folder while it trains: files stay where they were tried.
void Run::State::check_paths() {
  const std::pair<const char*, std::string*> files[] = {
      {"checkpoint", &options.checkpoint},   {"file of the weights", &options.save}, {"metrics file", &options.metrics},
      {"hash trace", &options.trace_hashes}, {"profile", &options.profile},          {"trace", &options.trace}};
  on_rank0([&] {
    for (const auto& [what, path] : files)
      LOCKSTEP_CHECK(!path->ends_with('/'),
                     "[run] the {} '{}' ends in a slash; expected the name of a file; nothing has been computed yet",
                     what, *path);
  });
  for (const auto& [what, path] : files) *path = absolute_path(*path);
}

void Run::State::trace(const Tensor& value) {
  const distributed::WholeParameters held = step.whole_parameters();
  const auto write = [&](nn::Module& module) {
    if (!try_to_write([&] { hashes->step(done, value, module); })) hashes.emplace("", "", false);
  };
  if (!options.mesh)
    write(step.module());
  else if (const std::unique_ptr<nn::Module> whole = options.mesh->whole(/*gradients=*/true))
    write(*whole);
}

// Of ten steps, as soon as they are like those that follow.
void Run::State::profile(bool at_end) {
  if (options.profile.empty()) return;
  const std::int64_t from = std::min(first_step + kTracedStep, total_steps - 1);
  if (!at_end && done == from) try_to_write([&] { start_profile(options.profile); });
  if (at_end || done == from + kProfiledSteps) try_to_write([] { stop_profile(); });
}

void Run::State::write_step_trace() {
  const std::int64_t traced = std::min(first_step + kTracedStep, total_steps);
  if (options.trace.empty() || !is_rank0 || !step.trace() || done != traced) return;
  try_to_write([&] {
    training::write_step_trace(options.trace, *step.trace(),
                               group ? group->records() : std::vector<distributed::OperationRecord>());
  });
}

bool Run::State::try_to_write(const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const Error& error) {
    if (group && group->failed()) throw;
    message(fmt::format("at step {}: {}; the training goes on without it", done, error.what()));
    lost += fmt::format("{}{}", lost.empty() ? "" : "; ", error.what());
    return false;
  }
}

}  // namespace lockstep::training
