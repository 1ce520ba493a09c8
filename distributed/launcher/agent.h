#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/distributed/launcher/launcher.h"
#include "lockstep/distributed/launcher/layout.h"
#include "lockstep/distributed/launcher/shared_failure.h"
#include "lockstep/distributed/launcher/signals.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::launcher {

/// Thrown out of a wait between launchers when this process was told to end.
struct Interrupted {
  int signal;
};

/// Throws Interrupted if SIGINT, SIGTERM or SIGHUP has come.
void throw_if_interrupted(SignalPipe& signals);

/// Note [Launchers of several nodes]
/// Each node's launcher keeps a client of the job's store. Through it the launchers agree that they were started alike,
/// form one generation of workers after another (node 0 says who takes part with how many workers), tell each other of
/// the first failure (compare_set: one winner), and leave together, so that node 0 serves the store until everybody has
/// finished. Each counts up a key of its own once a second; node 0 declares a node lost whose count stands still for
/// `silence_timeout`. The others notice that node 0 is gone by its store being gone: nobody listens there any more, or
/// a request has no answer for as long. So a node or a network that stands still for less, or a connection that breaks,
/// ends nothing.
///
/// When workers fail because of another node's and no node says that the failure is its own, a node that has shown no
/// sign of life since is the cause: its launcher died with its workers.
///
/// In an elastic job a launcher that comes when workers run already, for the first time or again, ends their generation
/// as a failure would, though nothing has failed, and takes part in the next. One that was started differently, or for
/// a node whose launcher lives, is refused before the others hear of it.
class Agent {
 public:
  /// Tells the user, in the thread that calls this object.
  using Say = std::function<void(const std::string& text)>;

  /// Meets the launchers of the other nodes. `say` is told of a long wait for some of them later. Throws UsageError if
  /// they were started differently or this node's is there already, TimeoutError naming the nodes that did not come
  /// (unless the job is elastic), Interrupted.
  Agent(distributed::StorePtr store, const Options& options, SignalPipe& signals, Say say);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Forms the next generation with `mine.left` workers here, or `mine.all` of them if those left on all nodes are too
  /// few. Throws TimeoutError, naming nodes or numbers, if it does not come about; Interrupted.
  Layout form(const Offer& mine);
  /// Why the workers here have to end; empty: they need not.
  std::string stop_reason();
  /// The failure that every launcher agrees on: `mine`, unless another was first.
  SharedFailure agree(const SharedFailure& mine) { return agree_in(current().number, mine); }
  /// Tells the other launchers, from another thread, why the workers here are being ended, for them to know the cause
  /// if their own end with them.
  void announce(const SharedFailure& ending);
  /// The failure that another node has called its own or announced; the loss of a node, if there is none. None: the
  /// others live, and have not said anything when the time is up.
  std::optional<SharedFailure> others_failure(std::chrono::milliseconds patience);
  /// This node's workers have all succeeded: waits for the other nodes. Returns the failure if it came to one.
  std::optional<SharedFailure> finish();
  /// Node 0 gives the others time to read the outcome before the store goes; the others say that they have.
  void leave();
  bool store_gone() const { return store_gone_; }
  /// Another launcher has taken this node's place.
  bool replaced() const { return replaced_; }

 private:
  /// A generation of workers. Whoever asks about its members asks with its number: the threads see the two change
  /// together.
  struct Generation {
    int number = -1;
    std::vector<int> members;  ///< its nodes; none while its layout is not known
  };

  /// What a wait that the user is not told of may take.
  static constexpr std::chrono::milliseconds kQuietWait{2000};

  bool elastic() const { return options_.min_nproc > 0; }
  Generation current();
  void begin(Generation generation);
  SharedFailure agree_in(int generation, const SharedFailure& mine);
  static std::string key(int generation, const std::string& name);
  std::string key(const std::string& name) { return key(current().number, name); }
  /// The members of the generation whose `name`/<node> is missing.
  std::vector<int> missing(const std::string& name);
  void wait_for_all(const std::string& name, std::chrono::milliseconds timeout, const std::string& what);
  void wait_for_the_others_to_leave();
  void take_place();
  std::string place_holder();
  std::int64_t pulse(int node);
  bool shows_life(int node);
  SharedFailure lose_store(const Error& error);
  void end_running_generation();
  void decide_layout(std::chrono::milliseconds timeout);
  std::string wait_for_layout(std::chrono::milliseconds timeout);
  bool is_silent(int node);
  bool is_gone(int node, int generation);
  void watch();
  void stop_watching();
  void look_once();
  void look_for_silent_nodes(const Generation& generation);

  distributed::StorePtr store_;
  const Options& options_;
  std::string job_;  ///< its name, as far as this node's launcher knows
  SignalPipe& signals_;
  const Say say_;
  std::string place_;       ///< "claim/<node>", the key in which this node's launcher has its name
  const std::string name_;  ///< of this launcher, drawn at random
  std::atomic<bool> store_gone_{false};
  std::atomic<bool> replaced_{false};

  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;
  std::string stop_reason_;
  std::string announced_;  ///< to be told the others by the thread
  Generation generation_;
  std::thread thread_;

  struct Pulse {
    std::int64_t count = -1;
    std::chrono::steady_clock::time_point changed = std::chrono::steady_clock::now();
  };
  std::mutex pulse_mutex_;
  std::vector<Pulse> pulses_;
};

}  // namespace lockstep::launcher
