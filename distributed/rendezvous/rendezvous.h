#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/environment.h"
#include "lockstep/distributed/rendezvous/meeting_file.h"
#include "lockstep/distributed/rendezvous/meeting_number.h"
#include "lockstep/distributed/store/store.h"
#include "lockstep/distributed/store/tcp_store_server.h"

namespace lockstep::distributed {

/// In one job: they wait for a key of each.
inline constexpr int kMostRanks = static_cast<int>(Store::kMaxWaitKeys);

/// What a launcher says about this process. Values that it does not say are empty.
struct LauncherVariables {
  std::string launcher;  ///< "lockstep-run or torchrun", "Open MPI", "PMIx", "Slurm"; empty if there is none
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  /// Says what is missing, and what to do, where another process's variables show that this one is one of several, but
  /// not which. Joining a job then throws it, unless the program says its rank and the number of ranks itself.
  std::string incomplete;
  std::string master_addr;
  std::optional<int> master_port;
  /// The address of rank 0 as far as the launcher knows it, for where master_addr is not given.
  std::string first_node;
  /// master_port is in use by the launcher itself (torchrun).
  bool port_is_launchers = false;
  /// What names this start of the job among all that the user runs on the machine; empty if the launcher does not say.
  std::string job_name;
  /// A port that all processes of the job find alike, for where master_port is not given.
  std::optional<int> derived_port;
};

/// The environment is a parameter here and in rendezvous(), so that tests need not change the real one.
/// Reads, in this order: RANK and WORLD_SIZE (lockstep-run, torchrun), Open MPI's, PMIx's and Slurm's variables.
/// Explicit MASTER_ADDR and MASTER_PORT count with each of them. Throws Error, naming the variable, for a value that is
/// no number.
LauncherVariables read_launcher(const Environment& environment);

struct RendezvousOptions {
  /// "env://", "tcp://host:port[?rank=R&world_size=W]" or "file:///path[?rank=R&world_size=W]".
  std::string url = "env://";
  /// Take the place of the URL's and the environment's, if set.
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  /// Default: LOCKSTEP_TOKEN. May be empty where all ranks meet on a loopback address; see Note [Token].
  std::optional<std::string> token = {};
  Milliseconds timeout{300'000};
  /// To meet in, instead of one that the URL leads to.
  StorePtr store = {};
};

/// The meeting point of a job's processes, and this process's place among them.
struct Rendezvous {
  StorePtr store = {};
  int rank = 0;
  int world_size = 1;
  /// As the launcher says; empty if it does not.
  std::optional<int> local_rank = {};
  std::optional<int> local_world_size = {};
  /// True if all ranks are on this machine.
  bool single_node = true;
  /// Where rank 0's machine is; empty if a store in a file says nothing about it.
  std::string master_addr = {};
  int master_port = 0;
  /// Set on the rank that holds the store itself; to be kept until the others have left.
  std::unique_ptr<TCPStoreServer> server = {};
  /// Set on rank 0 if the others find that store by a file; see Note [Meeting without an address].
  std::unique_ptr<MeetingFile> meeting_file = {};
  /// Of several processes: to be given up when they have met, or cannot.
  std::unique_ptr<MeetingNumber> meeting = {};
};

/// Note [Who holds the store]
/// lockstep-run holds the TCPStore itself and says so with LOCKSTEP_STORE_HOSTED=1: then every rank connects. Otherwise
/// rank 0 holds it, on MASTER_PORT. Jobs on one machine meet on 127.0.0.1, whatever MASTER_ADDR says; others on exactly
/// MASTER_ADDR, or on all addresses if that is not one of rank 0's own, and never without a token.
///
/// Where nothing says a port (mpirun, srun), or only one that is the launcher's own (torchrun's MASTER_PORT, when
/// TORCHELASTIC_USE_AGENT_STORE=True), jobs on one machine meet by a file: Note [Meeting without an address]. Jobs on
/// several take the port after torchrun's, or under srun the first node and a port made from the job's number.
///
/// Without a launcher's word on how many ranks share a machine, a job is on one if its address is a loopback address.
///
/// Finds the store and this process's place. Does not wait for other ranks beyond the store itself. Throws Error naming
/// the missing variable or query key, the address, and what to do; or two ranks that were told different numbers of
/// processes.
Rendezvous rendezvous(const RendezvousOptions& options, const Environment& environment = current_environment());

}  // namespace lockstep::distributed
