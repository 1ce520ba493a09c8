#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/checkpoint.h"

namespace lockstep::distributed {

/// Note [Checkpoints in the background]
/// Saves checkpoints while the training goes on, as torch.distributed.checkpoint.async_save: the files are those of
/// save_checkpoint(), byte for byte, and are loaded by load_checkpoint().
///
///   AsyncCheckpoint checkpoint(*job.process_group());
///   for (...) {
///     step(batch, f);
///     optimizer.step();
///     if (step_number % 1000 == 0) checkpoint.save("run.safetensors", model, optimizer, {.step = step_number});
///   }
///   checkpoint.wait();  // the last one is there, or this throws
///
/// save() returns when each rank has a copy, on the CPU, of what it is going to write. If the optimizer is divided
/// (ZeRO), that is its share of what is divided and, of parameters that are not, some of them each; where nothing is
/// divided, or the state has tensors, or a rank does not see rank 0's file, rank 0 writes all of it. So there must be
/// memory for the values once more. A thread then writes, with those of the other ranks, through a group of its own; a
/// rank that can start none writes before save() returns. One checkpoint is under way at a time. The named file is the
/// previous checkpoint until the new one is whole.
///
/// Calls are collectives, in the same order on all ranks. What fails in the background, and a copy for which one rank
/// has no memory, is thrown, on all ranks alike, by the next save() or wait(), once.
class AsyncCheckpoint {
 public:
  /// A collective: splits a group from `group`, which must outlive this object.
  explicit AsyncCheckpoint(ProcessGroup& group);
  /// Waits for what is under way. What it failed with, and nobody was told of, is a warning then.
  ~AsyncCheckpoint();
  AsyncCheckpoint(const AsyncCheckpoint&) = delete;
  AsyncCheckpoint& operator=(const AsyncCheckpoint&) = delete;

  /// distributed::save_checkpoint() in the background. Waits for the one before, and throws what that failed with; this
  /// one then is not saved. Also throws, at once, Error for a file of a later step, and where it cannot be made.
  void save(const std::string& path, const nn::Module& module, optim::Optimizer& optimizer,
            const nn::TrainingState& state, const optim::Scheduler* scheduler = nullptr);
  /// The same for several optimizers, see nn::save_checkpoint().
  void save(const std::string& path, const nn::Module& module,
            const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers, const nn::TrainingState& state,
            const std::vector<const optim::Scheduler*>& schedulers = {});
  /// Runs `body` on rank 0 in the background, such as writing a file of one's own; as save() otherwise. What `body`
  /// uses must not change meanwhile.
  void run_on_rank0(std::function<void()> body);
  /// For who puts a checkpoint together by himself, as MeshModel does: writes what `content` gives on rank 0, where it
  /// is called at once. With `copies` its tensors are copied before this returns, else they must not change. As save()
  /// otherwise.
  void save_content(const std::string& path, std::int64_t step,
                    const std::function<nn::detail::CheckpointContent()>& content, bool copies = true);
  /// Calls `written` on rank 0, in the background, when a file of a step is whole, to give it another name or to copy
  /// it; what it throws is an error of that save. Between saves alone.
  void set_on_written(std::function<void(const std::string& path, std::int64_t step)> written);
  /// Until what is under way is done. Throws what it failed with.
  void wait();
  const ProcessGroup& group() const { return group_; }  ///< the one it was made with

 private:
  friend struct HeldWriters;
  void start(std::function<void()> work);
  void join();

  ProcessGroup& group_;
  ProcessGroupPtr own_;  // of the threads
  std::thread thread_;
  std::exception_ptr failure_;
  std::function<void(const std::string& path, std::int64_t step)> written_;
  std::function<void()> before_writing_;  // in the thread: tests hold it there
};

}  // namespace lockstep::distributed
