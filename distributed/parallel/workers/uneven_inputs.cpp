#include "lockstep/distributed/parallel/workers/uneven_inputs.h"

#include "lockstep/distributed/process_group/all_gather_integers.h"

namespace lockstep::distributed {

UnevenStep UnevenStep::meet(ProcessGroup& group, std::optional<std::int64_t> own) {
  constexpr std::int64_t kRanOut = -1;
  static const OperationLabel label("samples of each rank");
  const LabelScope scope(label);
  UnevenStep step;
  int rank = 0;
  for (const std::int64_t samples : all_gather_integers(own.value_or(kRanOut), group)) {
    if (samples != kRanOut) {
      ++step.ranks;
      if (step.first < 0 || (step.samples == 0 && samples > 0)) step.first = rank;
      step.samples += samples;
    }
    ++rank;
  }
  return step;
}

double UnevenStep::weight(std::int64_t own, int world) const {
  return samples == 0 ? 0.0 : static_cast<double>(own) * world / static_cast<double>(samples);
}

}  // namespace lockstep::distributed
