#pragma once

// For .cpp files only.

#include <chrono>
#include <cstdint>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/safetensors.h"

namespace lockstep::training {

/// A collective: throws Error on every rank unless all have the same settings as rank 0, naming the ranks and, on
/// those, the first that differs. With other learning rates or data orders a run would go on without a word, and be
/// wrong.
void check_same_settings(const nn::Metadata& mine, distributed::ProcessGroup& group);

/// Note [Agreement between ranks]
/// A signal reaches each rank in another step, and clocks differ; but all must stop, or save, after the same one. So a
/// few times a second the ranks exchange three numbers, and act on them together: whether any has been asked to stop,
/// whether a checkpoint is due by rank 0's clock, and after how many steps they meet again, which is rank 0's estimate
/// from the length of the last ones. A process alone needs no exchange.
class Agreement {
 public:
  /// What all ranks do after this step.
  struct Decision {
    bool stop = false;
    bool save = false;
  };

  /// `group`: null for one process; must outlive this object.
  explicit Agreement(distributed::ProcessGroup* group) : group_(group) {}

  /// After each step, on every rank. A collective in some of them.
  Decision after_step(bool stop, bool save_is_due);

 private:
  using Clock = std::chrono::steady_clock;

  distributed::ProcessGroup* group_;
  std::int64_t steps_ = 0;     // since the last exchange
  std::int64_t interval_ = 1;  // steps from one exchange to the next
  Clock::time_point last_ = Clock::now();
};

}  // namespace lockstep::training
