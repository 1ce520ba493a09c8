#pragma once

// Jobs of real processes in which something goes wrong, what the survivors say, and how long they take.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store_server.h"
#include "tests/support/free_port.h"

namespace lockstep::fault_test {

using distributed::Milliseconds;

/// The deadline of every operation in these jobs.
#ifdef LOCKSTEP_FAULTS_SLOW
inline constexpr Milliseconds kDeadline{4'000};
#else
inline constexpr Milliseconds kDeadline{2'000};
#endif
/// After so long every rank has been seen where it is: ranks publish their places ten times a deadline.
inline constexpr Milliseconds kSeen = kDeadline / 10 + Milliseconds(150);
inline constexpr int kWorld = 3;

struct WorkerOptions {
  std::string url = "env://";
  int rank = 0;
  int world_size = kWorld;
  std::string scenario = {};
  int faulty = -1;
  std::string backend = "auto";
  Milliseconds deadline = kDeadline;
  std::map<std::string, std::string> environment = {};
  std::vector<std::string> wrapper = {};  ///< words before the program: ip netns exec NAME
};

/// A running fault_worker. Killed and reaped with the object, if it has not ended before.
class Worker {
 public:
  explicit Worker(const WorkerOptions& options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void signal(int number);
  /// The rest of a line of stdout that starts with `word`; "(none)" if the process ends, or the time passes, before.
  std::string line(const std::string& word, Milliseconds timeout);
  /// Waits for the end: the exit status, 128 + N for signal N, or -1 if it does not end in time.
  int status(Milliseconds timeout);
  /// What it has written to stderr; complete after status().
  const std::string& err() const { return err_; }
  int rank() const { return rank_; }

 private:
  bool pump(Milliseconds timeout);

  int rank_;
  pid_t pid_ = -1;
  FileDescriptor out_end_, err_end_;
  std::string out_, err_;
};

/// A store that outlives every rank, as under lockstep-run, and what leads the ranks there.
class HostedStore {
 public:
  HostedStore();
  std::map<std::string, std::string> environment() const;
  /// Waits until so many keys are in it.
  void wait_for_keys(std::int64_t count) const;

 private:
  distributed::TCPStoreServer server_;
};

struct Expected {
  int status = 3;
  /// Each has to occur in every survivor's stderr.
  std::vector<std::string> everywhere = {};
  /// Each has to occur in the one report.
  std::vector<std::string> in_report = {};
  /// One survivor tells the whole story.
  bool report = true;
};

/// One row of the fault table. Starts with the clock of the fault.
class Row {
 public:
  explicit Row(std::string fault);
  /// Starts the clock again: the fault happens now.
  void happens_now();
  /// Waits for the survivors' ends, checks what they say, and prints the row; see scripts/fault_table.py. `limit` is
  /// doubled where they are to end well.
  void check(const std::vector<Worker*>& survivors, const Expected& expected, Milliseconds limit = 2 * kDeadline);

 private:
  std::string fault_;
  std::chrono::steady_clock::time_point start_;
};

/// A job of kWorld ranks with one that is faulty.
struct Fault {
  std::string name = {};  ///< of the test
  std::string text = {};  ///< of the row
  std::string scenario = {};
  int faulty = 1;
  int signal = 0;  ///< sent to the faulty rank once it has said "phase"; 0: it does the harm itself
  Expected expected = {};
};

class Job {
 public:
  Job(const std::string& scenario, int faulty, const std::string& url,
      const std::map<std::string, std::string>& environment, const std::string& backend = "auto");
  Worker& operator[](int rank) { return *workers_[static_cast<std::size_t>(rank)]; }
  std::vector<Worker*> survivors() const;
  /// All ranks have all-reduced with each other.
  void wait_until_ready();

 private:
  int faulty_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

/// Runs a fault on a job with a hosted store.
void run(const Fault& fault, const std::string& backend = "auto");

using testing::free_port;

}  // namespace lockstep::fault_test
