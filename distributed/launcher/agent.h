#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "distributed/launcher/launcher.h"
#include "distributed/launcher/signals.h"
#include "distributed/store/store.h"

namespace lockstep::launcher {

/// Thrown out of a wait between launchers when this process was told to end.
struct Interrupted {
  int signal;
};

/// Throws Interrupted if SIGINT, SIGTERM or SIGHUP has come.
void throw_if_interrupted(SignalPipe& signals);

/// A failure that ended the job, as every launcher sees it.
struct SharedFailure {
  int node = 0;
  int exit_status = 1;
  std::string text;
};

/// Note [Launchers of several nodes]
/// Each node's launcher keeps a client of the job's store. Through it the launchers agree that they were started alike,
/// tell each other of the first failure (compare_set: one winner), start a next attempt together, and leave together,
/// so that node 0 serves the store until everybody has finished. Each counts up a key of its own once a second; node 0
/// declares a node lost whose count stands still for `silence_timeout`, and the others notice that node 0 is gone by
/// its store being gone.
class Agent {
 public:
  /// Meets the launchers of the other nodes. Throws UsageError if they were started differently, TimeoutError naming
  /// the nodes that did not come, Interrupted.
  Agent(distributed::StorePtr store, const Options& options, SignalPipe& signals);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Why the workers here have to end; empty: they need not.
  std::string stop_reason();
  /// The failure that every launcher agrees on: `mine`, unless another was first.
  SharedFailure agree(const SharedFailure& mine);
  /// This node's workers have all succeeded: waits for the other nodes. Returns the failure if it came to one.
  std::optional<SharedFailure> finish();
  /// Waits until every node is ready to start the workers once more, under a new generation.
  void next_generation();
  /// Node 0 gives the others time to read the outcome before the store goes; the others say that they have.
  void leave();

 private:
  std::string key(const std::string& name) const;
  /// The nodes whose `name`/<node> is missing.
  std::vector<int> missing(const std::string& name);
  void wait_for_all(const std::string& name, std::chrono::milliseconds timeout, const std::string& what);
  void watch();
  void look_once();
  void look_for_silent_nodes();

  distributed::StorePtr store_;
  const Options& options_;
  SignalPipe& signals_;
  std::atomic<int> generation_{0};
  std::atomic<bool> store_gone_{false};

  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::string stop_reason_;
  std::thread thread_;

  struct Pulse {
    std::int64_t count = -1;
    std::chrono::steady_clock::time_point changed = std::chrono::steady_clock::now();
  };
  std::vector<Pulse> pulses_;  // of the watching thread
};

}  // namespace lockstep::launcher
