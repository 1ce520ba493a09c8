#pragma once

// For .cpp files only.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/atomic_file.h"
#include "lockstep/core/tensor.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/safetensors_header.h"

namespace lockstep::distributed {

/// Values and where they go in the file.
struct PartOfCheckpoint {
  std::uint64_t at = 0;
  Tensor values;
};

/// Throws Error on all ranks unless there are optimizers, and the parameters of each are the module's, on every rank.
/// A collective.
void check_optimizers(const std::string& path, const nn::Module& module,
                      const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers, ProcessGroup& group);

/// The values in memory of their own, on the CPU.
Tensor copy_on_cpu(const Tensor& values);

/// A checkpoint of what is divided over ranks, which they write together: each its part, into the one file that one
/// process would write.
class CheckpointByShares {
 public:
  /// Rank 0 makes the file, which gets its name when it is whole, and all look whether they see it. Null, with nothing
  /// done: nothing is divided, or some rank does not see rank 0's file. A collective; errors as save_checkpoint().
  static std::unique_ptr<CheckpointByShares> begin(
      const std::string& path, const nn::Module& module,
      const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers, const nn::TrainingState& state,
      ProcessGroup& group, const std::vector<const optim::Scheduler*>& schedulers);
  ~CheckpointByShares();
  CheckpointByShares(const CheckpointByShares&) = delete;
  CheckpointByShares& operator=(const CheckpointByShares&) = delete;

  /// Takes this rank's values into memory of their own, so that the training may go on before write().
  void copy_values();
  /// This rank has nothing to write, as `why` says, which write() throws on all ranks.
  void fail(const std::string& why);
  /// A collective of the same ranks, perhaps in another group. What one throws is thrown on all.
  void write(ProcessGroup& group);

 private:
  CheckpointByShares() = default;
  void give_up();

  std::string path_, name_;  // name_: the file's until it is whole
  nn::detail::SafetensorsLayout layout_;
  std::unique_ptr<AtomicFile> whole_;  // of rank 0
  std::vector<PartOfCheckpoint> parts_;
  std::string failure_;  // instead of them
};

}  // namespace lockstep::distributed
