#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/distributed/pipeline_parallel/pipeline_parallel.h"

namespace lockstep::distributed {

/// Note [Pipeline schedules]
/// A pipeline of p stages, each on a rank, has p * k *chunks* of a model's layers, in order: stage s holds the chunks
/// s, s + p, s + 2 p ... (k is 1 but for interleaved schedules). A schedule says in which order a stage computes the
/// forward and backward passes of the micro-batches 0 .. m - 1 through its chunks. In each chunk both go from the first
/// to the last micro-batch, so that sums over micro-batches have one order whatever the schedule.
///
/// - GPipe (Huang et al., 2019): all forwards, then all backwards. m micro-batches are alive at once.
/// - 1F1B (Narayanan et al., "PipeDream", 2019; the flushed form of Narayanan et al., 2021): stage s starts with
///   p - s - 1 forwards and then does a forward and a backward in turn: at most p - s are alive, whatever m.
/// - Interleaved 1F1B (Narayanan et al., "Efficient large-scale language model training on GPU clusters using
///   Megatron-LM", 2021): k chunks a stage, micro-batches in groups of p, which go through a chunk after the other.
///
/// These need (m + p - 1) times a micro-batch's time where m would do without a pipeline: the bubble is
/// (p - 1) / (m + p - 1) of it; of interleaved ones (p - 1) / (k m + p - 1), if p divides m.
///
/// - Zero bubble (ZB-H1 of Qi et al., "Zero bubble pipeline parallelism", 2023): 1F1B whose backward is two actions
///   (Note [Deferred gradients]). The stage before waits for the input's gradient alone, and the weights' are computed
///   where 1F1B waits, on stage s those of the micro-batch s before. All stages hold p micro-batches, as 1F1B's first
///   does. Where forward, the input's and the weights' gradients take a third of a micro-batch's time each, the p - 1
///   above is a third of it: (p - 1) / (3 m + p - 1). With k chunks it is interleaved besides: (p - 1) / (3 k m + p -
///   1).
///
/// A parameter that several stages have is added up from the last of them to the first, in lockstep mode for each
/// micro-batch (`tied_to`). A stage of a zero-bubble schedule that waits for another one there leaves its weights'
/// gradients until they come, and holds some micro-batches more.
///
/// What is here is pure: numbers in, lists of actions out.
struct PipelineAction {
  enum class Pass : std::uint8_t {
    forward,
    backward,  ///< input and weights
    input,     ///< the gradient of what the chunk reads
    weights,   ///< those of its weights
  };
  Pass pass = Pass::forward;
  std::int64_t micro_batch = 0;
  int chunk = 0;  ///< of the whole model

  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

/// What stage `stage` of `stages` does for `micro_batches`, in order; `chunks` a stage, 1 unless it interleaves.
/// `tied_to`: for each chunk the later one whose weights' gradients it needs for its own, -1 for none; empty: none
/// does. Throws Error for numbers out of range.
std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule, std::int64_t micro_batches, int stages,
                                             int chunks, int stage, const std::vector<int>& tied_to = {});

/// What pipeline_actions() gives every stage, run as if a forward took `forward` and a backward `backward` units of
/// time, half of it for either part, and messages none: what a stage holds, and how long it waits.
struct PipelineTiming {
  bool completes = false;          ///< every action's inputs come; else the rest says nothing
  double total = 0.0;              ///< until the last stage is done
  std::vector<double> busy;        ///< by stage
  std::vector<std::int64_t> held;  ///< most micro-batches (in a chunk) that a stage holds activations of at once

  /// The part of all stages' time in which they wait.
  double bubble() const;
};
/// `lists`: the actions of each stage.
PipelineTiming time_of(const std::vector<std::vector<PipelineAction>>& lists, double forward = 1.0,
                       double backward = 2.0, const std::vector<int>& tied_to = {});

/// Where to cut layers that cost `costs` into `parts` runs of neighbours, none empty, so that the dearest costs as
/// little as possible: the first layer of each. Throws Error for fewer layers than parts.
std::vector<std::size_t> balanced_cuts(const std::vector<double>& costs, std::size_t parts);

}  // namespace lockstep::distributed
