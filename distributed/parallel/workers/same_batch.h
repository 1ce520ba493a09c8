#pragma once

#include <utility>

#include "lockstep/data/dataset.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// Note [A rank's own samples]
/// A batch that does not say of how many samples it is a part (Batch::global_size) is the whole batch, which all ranks
/// have alike, and each rank computes its rows of it. A program whose ranks have samples of their own and does not say
/// so would train on a fraction of them, and nothing would show it. So the first steps of a TrainingStep compare what
/// the ranks were given, and warn. It is no error: rows that a rank does not compute may be anything.
class SameBatch {
 public:
  explicit SameBatch(ProcessGroupPtr group) : group_(std::move(group)) {}
  /// Of a step of all ranks, as they were given `batch`. A collective while it looks. Tensors on CPUs are looked at.
  void look(const data::Batch& batch);

 private:
  static constexpr int kSteps = 2;

  ProcessGroupPtr group_;
  int left_ = kSteps;
};

}  // namespace lockstep::distributed
