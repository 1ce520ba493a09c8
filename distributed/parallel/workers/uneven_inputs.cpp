#include "lockstep/distributed/parallel/workers/uneven_inputs.h"

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::distributed {

UnevenStep UnevenStep::meet(ProcessGroup& group, Device device, std::optional<std::int64_t> own) {
  constexpr std::int64_t kRanOut = -1;
  const Tensor mine = tensor({own.value_or(kRanOut)}, device);
  const Tensor all = empty({group.world_size()}, options_of(mine));
  static const OperationLabel label("samples of each rank");
  const LabelScope scope(label);
  group.all_gather(all, mine)->wait();
  UnevenStep step;
  int rank = 0;
  for (const std::int64_t samples : all.to_vector<std::int64_t>()) {
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
