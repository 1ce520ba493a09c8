#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
  /// Where the ranks meet, instead of init_method, in a store that all of them have opened (Note [Stores of a program])
  /// and no other job uses. Rank and number of ranks are those of the options or the environment; ranks on several
  /// machines also have MASTER_ADDR, as with a file.
  StorePtr store = {};
};

/// This process's place in a job, and its ties to the others. Movable; the destructor leaves the group in good order
/// and never throws. A process_group() or store() that is kept longer stays in use.
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

/// How many ways a job's work is divided, in each of three dimensions. 1: not.
struct MeshSizes {
  int data = 1;      ///< ranks (or groups of them) that compute different samples
  int pipeline = 1;  ///< that hold different layers
  int tensor = 1;    ///< that hold different parts of the same layers

  friend bool operator==(const MeshSizes&, const MeshSizes&) = default;
};

/// The sizes that a text such as "data=2,tensor=2" gives, for an option --mesh: each name once, in any order; what is
/// not named is 1. Throws Error for anything else.
MeshSizes parse_mesh(std::string_view text);
/// "data=2,pipeline=1,tensor=2".
std::string to_string(const MeshSizes& sizes);

/// Note [Mesh]
/// The ranks of a job as a grid: rank = (data * sizes.pipeline + pipeline) * sizes.tensor + tensor. Ranks that differ
/// in one coordinate alone are a group, split from the job's (Note [Split groups]), so all groups fail together.
/// Neighbours along `tensor`, who talk most, have neighbouring numbers, and so a machine in common where it has that
/// many ranks; those along `data` are farthest apart.
class Mesh {
 public:
  /// A collective of all ranks. Throws Error, on all of them, unless all give the same sizes and their product is the
  /// number of ranks.
  Mesh(const Job& job, MeshSizes sizes);
  Mesh(ProcessGroupPtr world, MeshSizes sizes);  ///< the same for the ranks of a group

  const MeshSizes& sizes() const { return sizes_; }        ///< as they were given
  const MeshSizes& position() const { return place_; }     ///< this rank's coordinates, from 0
  const ProcessGroupPtr& world() const { return world_; }  ///< all ranks
  /// Those that differ from this one in that coordinate alone, numbered by it.
  const ProcessGroupPtr& data() const { return data_; }
  const ProcessGroupPtr& pipeline() const { return pipeline_; }  ///< see data()
  const ProcessGroupPtr& tensor() const { return tensor_; }      ///< see data()
  /// The rank in world() of a position. Throws Error for one outside.
  int rank_of(const MeshSizes& position) const;
  /// Whether `mine` is true on all ranks of world(). A collective.
  bool all(bool mine) const;

 private:
  ProcessGroupPtr world_;
  MeshSizes sizes_;
  MeshSizes place_;
  ProcessGroupPtr data_, pipeline_, tensor_;
};

/// The backends that this build can serve, besides "auto".
std::vector<std::string> available_backends();

/// Joins the job that the launcher started, or makes a job of this process alone. Blocks until all ranks have come.
/// Where a launcher serves the store (spawn(), lockstep-run) all of them may call it again when the first Job has gone;
/// otherwise each further meeting needs an address or file of its own. Throws Error, naming the missing variable,
/// address or rank and the remedy, when that fails or `timeout` passes.
Job init(const InitOptions& options = {});

}  // namespace lockstep::distributed
