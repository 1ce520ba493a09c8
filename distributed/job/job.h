#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// Options of init().
struct InitOptions {
  /// "env://", "tcp://host:port" or "file:///path", the latter two with ?rank=R&world_size=W unless the environment or
  /// the options below say so. Empty: whatever a launcher left in the environment (lockstep-run, torchrun, Open MPI,
  /// Slurm); a job of one process if there is nothing.
  std::string init_method = {};
  /// "auto" (on CUDA devices nccl; else shm if all ranks share a machine, gloo otherwise), "nccl", "shm", "gloo" or
  /// "mpi".
  std::string backend = "auto";
  /// "auto" (cuda if there is a device, else cpu), "cpu", "cuda" (the device of the rank's number on its machine), or
  /// one with an index.
  std::string device = "auto";
  /// Deadline of the meeting and of every operation afterwards.
  Milliseconds timeout{300'000};
  std::optional<int> rank = {};        ///< instead of the environment's RANK
  std::optional<int> world_size = {};  ///< instead of the environment's WORLD_SIZE
  /// Shared secret of the job's processes; default: LOCKSTEP_TOKEN.
  std::optional<std::string> token = {};
};

/// This process's place in a job, and its ties to the others. Movable; the destructor leaves the group in good order
/// and never throws.
class Job {
 public:
  Job(Job&&) noexcept;
  Job& operator=(Job&&) noexcept;
  ~Job();

  int rank() const;        ///< of this process, from 0
  int world_size() const;  ///< number of processes
  /// Rank among the processes of this machine.
  int local_rank() const;
  int local_world_size() const;                  ///< number of processes on this machine
  bool is_rank0() const { return rank() == 0; }  ///< true for one process of the job: prints, saves
  /// Where this process computes.
  Device device() const;
  /// "shm", "nccl", ...; "self" in a job of one process.
  std::string backend() const;
  const ProcessGroupPtr& process_group() const;  ///< what the processes communicate through
  /// For the program's own keys (kept apart from the library's).
  const StorePtr& store() const;

 private:
  struct State;
  friend Job init(const InitOptions& options);
  explicit Job(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The backends that this build can serve, besides "auto".
std::vector<std::string> available_backends();

/// Joins the job that the launcher started, or makes a job of this process alone. Blocks until all ranks have come.
/// Throws Error, naming the missing variable, address or rank and the remedy, when that fails or `timeout` passes.
Job init(const InitOptions& options = {});

}  // namespace lockstep::distributed
