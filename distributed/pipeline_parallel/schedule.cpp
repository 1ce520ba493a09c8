#include "lockstep/distributed/pipeline_parallel/schedule.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "lockstep/core/check.h"

namespace lockstep::distributed {
namespace {

using Pass = PipelineAction::Pass;
using Lists = std::vector<std::vector<PipelineAction>>;

/// The n-th forward of a stage that has several chunks: micro-batches in groups of `stages`, each group through one
/// chunk after the other; the last group may be smaller.
PipelineAction nth_forward(std::int64_t n, std::int64_t micro_batches, int stages, int chunks, int stage) {
  const std::int64_t group = n / (std::int64_t{stages} * chunks), first = group * stages;
  const std::int64_t size = std::min<std::int64_t>(stages, micro_batches - first);
  const std::int64_t rest = n - first * chunks;
  return {Pass::forward, first + rest % size, static_cast<int>(rest / size) * stages + stage};
}

/// Backward goes the same way, from the last chunk to the first.
PipelineAction nth_backward(std::int64_t n, std::int64_t micro_batches, int stages, int chunks, int stage) {
  PipelineAction action = nth_forward(n, micro_batches, stages, chunks, stage);
  action.pass = Pass::backward;
  action.chunk = (chunks - 1 - action.chunk / stages) * stages + stage;
  return action;
}

/// So many forwards first, then one of each in turn.
std::vector<PipelineAction> in_turn(std::int64_t ahead, std::int64_t micro_batches, int stages, int chunks, int stage) {
  const std::int64_t all = micro_batches * chunks;
  ahead = std::min(ahead, all);
  std::vector<PipelineAction> actions;
  for (std::int64_t i = 0; i < ahead; ++i) actions.push_back(nth_forward(i, micro_batches, stages, chunks, stage));
  for (std::int64_t i = 0; i < all; ++i) {
    if (ahead + i < all) actions.push_back(nth_forward(ahead + i, micro_batches, stages, chunks, stage));
    actions.push_back(nth_backward(i, micro_batches, stages, chunks, stage));
  }
  return actions;
}

std::int64_t forwards_ahead(int stages, int chunks, int stage) {
  const std::int64_t after = stages - stage - 1;
  return chunks == 1 ? after : 2 * after + std::int64_t{chunks - 1} * stages;
}

/// The backward passes cut in two, the weights' gradients `behind` micro-batches behind the input's.
std::vector<PipelineAction> with_weights_behind(const std::vector<PipelineAction>& actions, std::int64_t behind) {
  std::vector<PipelineAction> result, inputs;
  std::size_t next = 0;
  const auto weights = [&](std::size_t until) {
    for (; next < until; ++next) {
      result.push_back(inputs[next]);
      result.back().pass = Pass::weights;
    }
  };
  for (PipelineAction action : actions) {
    if (action.pass == Pass::backward) {
      action.pass = Pass::input;
      inputs.push_back(action);
    }
    result.push_back(action);
    if (action.pass == Pass::input && std::ssize(inputs) > behind)
      weights(inputs.size() - static_cast<std::size_t>(behind));
  }
  weights(inputs.size());
  return result;
}

/// How far a stage leaves its weights' gradients behind. Another one to which it is tied has those of a micro-batch so
/// many micro-batches after their input's as its own number says; the gradient takes a third of one from stage to
/// stage. With several chunks a stage it has them long before.
std::int64_t weights_behind(int stage, int chunks, const std::vector<int>& tied_to) {
  const int tied = tied_to.empty() || chunks > 1 ? -1 : tied_to[static_cast<std::size_t>(stage)];
  return tied < 0 ? stage : std::max(stage, tied - (tied - stage) / 3);
}

Lists lists_of(PipelineSchedule schedule, std::int64_t micro_batches, int stages, int chunks,
               const std::vector<int>& tied_to) {
  // A last group of micro-batches that is smaller than the others may need more forwards ahead than whole groups do.
  for (std::int64_t more = 0;; ++more) {
    Lists lists;
    for (int stage = 0; stage < stages; ++stage) {
      const bool all = schedule == PipelineSchedule::gpipe;
      lists.push_back(in_turn(all ? micro_batches : forwards_ahead(stages, chunks, stage) + more, micro_batches, stages,
                              chunks, stage));
      if (schedule == PipelineSchedule::zero_bubble)
        lists.back() = with_weights_behind(lists.back(), weights_behind(stage, chunks, tied_to));
    }
    if (more >= micro_batches * chunks || time_of(lists, 1.0, 2.0, tied_to).completes) return lists;
  }
}

}  // namespace

std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule, std::int64_t micro_batches, int stages,
                                             int chunks, int stage, const std::vector<int>& tied_to) {
  LOCKSTEP_CHECK(micro_batches >= 0 && stages >= 1 && chunks >= 1 && stage >= 0 && stage < stages,
                 "[pipeline] there is no stage {} in a schedule of {} micro-batches, {} stages and {} chunks a stage",
                 stage, micro_batches, stages, chunks);
  LOCKSTEP_CHECK(chunks == 1 || may_interleave(schedule),
                 "[pipeline] {} chunks a stage are for the schedules interleaved and zero-bubble, not for {}", chunks,
                 to_string(schedule));
  return lists_of(schedule, micro_batches, stages, chunks, tied_to)[static_cast<std::size_t>(stage)];
}

double PipelineTiming::bubble() const {
  double sum = 0.0;
  for (const double each : busy) sum += each;
  return total == 0.0 ? 0.0 : 1.0 - sum / (total * static_cast<double>(busy.size()));
}

PipelineTiming time_of(const Lists& lists, double forward, double backward, const std::vector<int>& tied_to) {
  PipelineTiming timing;
  const std::size_t stages = lists.size();
  int last_chunk = 0;
  for (const auto& list : lists)
    for (const PipelineAction& action : list) last_chunk = std::max(last_chunk, action.chunk);
  std::map<std::tuple<Pass, std::int64_t, int>, double> done;
  std::vector<std::size_t> next(stages, 0);
  std::vector<double> clock(stages, 0.0);
  std::vector<std::int64_t> alive(stages, 0);
  timing.busy.assign(stages, 0.0);
  timing.held.assign(stages, 0);
  // When the inputs of an action are there; negative: not yet.
  const auto ready = [&](const PipelineAction& action) {
    double at = 0.0;
    const auto wait_for = [&](Pass pass, int chunk) {
      const auto found = done.find({pass, action.micro_batch, chunk});
      at = found == done.end() || at < 0.0 ? -1.0 : std::max(at, found->second);
    };
    const Pass pass = action.pass;
    if (pass == Pass::forward && action.chunk > 0) wait_for(Pass::forward, action.chunk - 1);
    if (pass == Pass::backward || pass == Pass::input) wait_for(Pass::forward, action.chunk);
    if ((pass == Pass::backward || pass == Pass::input) && action.chunk < last_chunk) wait_for(pass, action.chunk + 1);
    if (pass == Pass::weights) wait_for(Pass::input, action.chunk);
    if (pass == Pass::weights && !tied_to.empty())
      if (const int tied = tied_to[static_cast<std::size_t>(action.chunk)]; tied >= 0) wait_for(Pass::weights, tied);
    return at;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < stages; ++s)
      for (; next[s] < lists[s].size(); ++next[s], moved = true) {
        const PipelineAction& action = lists[s][next[s]];
        const double inputs = ready(action);
        if (inputs < 0.0) break;
        const double takes = action.pass == Pass::forward    ? forward
                             : action.pass == Pass::backward ? backward
                                                             : backward / 2;
        clock[s] = std::max(clock[s], inputs) + takes;
        timing.busy[s] += takes;
        alive[s] += action.pass == Pass::forward ? 1 : action.pass == Pass::input ? 0 : -1;
        timing.held[s] = std::max(timing.held[s], alive[s]);
        done[{action.pass, action.micro_batch, action.chunk}] = clock[s];
      }
  }
  timing.completes = true;
  for (std::size_t s = 0; s < stages; ++s) timing.completes = timing.completes && next[s] == lists[s].size();
  timing.total = stages == 0 ? 0.0 : *std::ranges::max_element(clock);
  return timing;
}

std::vector<std::size_t> balanced_cuts(const std::vector<double>& costs, std::size_t parts) {
  const std::size_t n = costs.size();
  LOCKSTEP_CHECK(parts >= 1 && n >= parts, "[pipeline] {} layers cannot be cut into {} chunks; use fewer stages", n,
                 parts);
  // best[k][i]: the dearest of k parts of the first i layers; from[k][i]: where the last of them begins.
  std::vector<double> sums(n + 1, 0.0);
  for (std::size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + costs[i];
  std::vector<double> best = sums;
  std::vector<std::vector<std::size_t>> from(parts, std::vector<std::size_t>(n + 1, 0));
  for (std::size_t k = 1; k < parts; ++k) {
    std::vector<double> more(n + 1, -1.0);
    for (std::size_t i = k + 1; i <= n; ++i)
      for (std::size_t j = k; j < i; ++j) {
        const double dearest = std::max(best[j], sums[i] - sums[j]);
        if (more[i] >= 0.0 && dearest >= more[i]) continue;
        more[i] = dearest;
        from[k][i] = j;
      }
    best = std::move(more);
  }
  std::vector<std::size_t> cuts(parts, 0);
  std::size_t end = n;
  for (std::size_t k = parts; k-- > 1; end = cuts[k]) cuts[k] = from[k][end];
  return cuts;
}

}  // namespace lockstep::distributed
