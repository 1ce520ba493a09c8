#include "lockstep/distributed/parallel/workers/same_batch.h"

#include <algorithm>
#include <vector>

#include "lockstep/core/checksum.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/log.h"
#include "lockstep/distributed/process_group/all_gather_integers.h"

namespace lockstep::distributed {
namespace {

/// 0: it is known to be a part, or nothing is known.
std::int64_t checksum_of(const data::Batch& batch) {
  if (batch.global_size != 0 && batch.global_size != batch.size()) return 0;
  bool on_cpu = true;
  batch.for_each([&](const char*, const Tensor& tensor) { on_cpu = on_cpu && tensor.device().is_cpu(); });
  if (!on_cpu) return 0;
  std::uint64_t all = 1;
  batch.for_each([&](const char*, const Tensor& tensor) {
    const Tensor values = as_contiguous(tensor.detach());
    Checksum one;
    one.update(values.raw_data(), static_cast<std::size_t>(values.nbytes()));
    all = all * 0x9e3779b97f4a7c15U + one.value();
  });
  return static_cast<std::int64_t>(all | 1);
}

}  // namespace

void SameBatch::look(const data::Batch& batch) {
  if (left_ == 0 || group_->world_size() == 1) return;
  static const OperationLabel label("whether all ranks have the same batch");
  const LabelScope scope(label);
  const std::vector<std::int64_t> seen = all_gather_integers(checksum_of(batch), *group_);
  --left_;  // on all ranks alike, also where one has caught an error before
  const auto differs = [&](std::int64_t other) { return other != 0 && seen[0] != 0 && other != seen[0]; };
  const auto found = std::ranges::find_if(seen, differs);
  if (found == seen.end()) return;
  left_ = 0;
  if (group_->rank() != 0) return;
  logging::warn(
      "[TrainingStep] rank {} was given another batch of {} samples than rank 0. A batch with global_size 0 is the "
      "whole batch, of which each rank computes its own rows alone: if these are a rank's own samples, set "
      "batch.global_size to the samples of all ranks, take them from a DataLoader that knows rank and world size, or "
      "call join_step()",
      found - seen.begin(), batch.size());
}

}  // namespace lockstep::distributed
