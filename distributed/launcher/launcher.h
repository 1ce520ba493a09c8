#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/distributed/launcher/spawn.h"

namespace lockstep::launcher {

/// A wrong option or a missing environment variable: the caller's command line has to change.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// The exit status of a worker that has done its work, and could not write what came of it where it should be
/// (sysexits' EX_CANTCREAT). Workers are not started again after it: they would do the same once more.
inline constexpr int kUnwritten = 73;
/// The exit status of a worker whose command line is wrong, as shells and most programs have it. Nor are workers
/// started again after this one: they would be given the same command line.
inline constexpr int kWrongUsage = 2;

/// Options of run().
struct Options {
  /// Workers on this node.
  int nproc_per_node = 1;
  /// Machines of the job, and the number of this one. With several, one launcher runs on each.
  int nnodes = 1;
  int node_rank = 0;  ///< see nnodes
  /// Where node 0's launcher serves the job's store. Used with several nodes only; a job on one node serves on
  /// loopback, on a port that the system picks.
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;  ///< see master_addr
  /// How often the whole group is started again after a worker has failed; after kUnwritten and kWrongUsage it is not.
  int max_restarts = 0;
  /// Elastic: after a failure the group is formed again from the workers that are left, as long as there are so many,
  /// over all nodes. With fewer left, those that were lost on nodes that are still there are started again. A node that
  /// returns is taken in at once, which does not count as a restart. 0: every worker of every node is needed.
  int min_nproc = 0;
  /// Folder for the files rank<R>.out and rank<R>.err; empty: none.
  std::string log_dir;
  Output output = Output::prefixed;  ///< how the workers' output reaches this process's
  /// Name in front of the launcher's own messages.
  std::string name = "lockstep-run";
  /// Time between asking the workers to end and SIGKILL, after a failure, SIGINT or SIGHUP.
  std::chrono::milliseconds kill_after{4000};
  /// The same after SIGTERM, by which batch systems ask for an end: workers may finish a step and save it.
  std::chrono::milliseconds after_sigterm{30000};
  /// How long the launchers of several nodes wait for each other at start, and how long one of them, or the network
  /// between them, may stand still later.
  std::chrono::milliseconds join_timeout{60000};
  std::chrono::milliseconds silence_timeout{30000};  ///< see join_timeout
};

/// Runs `command` (program, arguments) as `options.nproc_per_node` worker processes, waits for all of them, and returns
/// the exit status for this process: 0 if all succeeded, else that of the worker that failed first in time (128 + N if
/// signal N ended it).
///
/// Each worker finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCKSTEP_TOKEN,
/// LOCKSTEP_STORE_HOSTED=1 (the store is served here: connect only), LOCKSTEP_RESTART_COUNT, LOCKSTEP_ELASTIC,
/// LOCKSTEP_JOB_ID, LOCKSTEP_FAILURE_PIPE (through which a rank says that the failure is its own) and, unless it or
/// OMP_NUM_THREADS is set already, LOCKSTEP_NUM_THREADS = max(1, cores / workers). Its stdin is /dev/null; it leads its
/// own process group.
///
/// LOCKSTEP_RESTART_COUNT says how often the job's workers were started before, as far as a launcher of the job
/// remembers. LOCKSTEP_ELASTIC=1 (else 0) says that workers are started again after a failure (max_restarts): they go
/// on from their own checkpoint whenever one is there, since the launchers may have been started again too.
/// LOCKSTEP_JOB_ID is a name that the launcher has drawn for the job: the same on all nodes and after every restart,
/// and another for another job.
///
/// When a worker fails, the others get SIGTERM and, after `kill_after`, SIGKILL; its status and the last lines of its
/// stderr are reported. The worker that failed is the one that says so itself (Note [Whose failure] in
/// distributed/failure/tell_launcher.h), and else the first that ended. SIGINT, SIGTERM and SIGHUP are forwarded,
/// and a second one kills at once, unless it is a SIGTERM within 2 s of another. If nobody reads stdout or stderr any
/// more (SIGPIPE, unless it is ignored) the workers get SIGTERM. Lines that wait for a reader when the workers have
/// ended are waited for too; a signal gives them up, and the status is 128 + N if it was 0. SIGUSR1, by which a rank
/// says what it last did, goes to the workers that handle it. Nothing that a worker started in its process group
/// outlives it, not even if this process dies by SIGKILL.
///
/// With several nodes the token is taken from LOCKSTEP_TOKEN (the same on all), and a failure on one node ends the
/// workers of all.
///
/// Not thread-safe: one call at a time in a process, from a thread that lives until it returns (see Note [No orphans]);
/// the handlers of the forwarded signals and of SIGCHLD are replaced meanwhile. Throws UsageError for options that do
/// not fit, Error if a worker or the store cannot be started.
int run(const Options& options, const std::vector<std::string>& command);

/// run() with copies of this very program: `arguments` are main's without argv[0].
int run_local(const Options& options, const std::vector<std::string>& arguments);

/// What "auto" workers on this node means: one for each CUDA device, else one for each core this process may run on.
int default_nproc();

}  // namespace lockstep::launcher
