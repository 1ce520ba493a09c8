#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/distributed/launcher/failure_reports.h"
#include "lockstep/distributed/launcher/launcher.h"
#include "lockstep/distributed/launcher/orphan_guard.h"
#include "lockstep/distributed/launcher/signals.h"
#include "lockstep/distributed/launcher/worker.h"

namespace lockstep::launcher {

/// The worker whose failure ended the others.
struct Failure {
  int rank = 0;
  pid_t pid = 0;
  Ending ending;                       ///< of the first that ended, if this one had not
  bool had_ended = true;               ///< false: it had said that it fails, and did not end by itself
  double seconds = 0;                  ///< since the group was started
  std::deque<std::string> last_lines;  ///< of its stderr
  std::size_t lines_since = 0;         ///< that others have written to stderr since
  std::string said;                    ///< by its report; empty: it made none
  /// It said that it fails because of another rank, which is not one of these, or ended as one that was asked to, and
  /// nobody here has asked it.
  bool follows = false;
  std::vector<int> ended_before;  ///< the ranks that had ended with status 0, if none says that the failure is its own
};

/// How a group of workers ended.
struct GroupResult {
  std::optional<Failure> failure;
  int lost = 0;            ///< workers that failed by themselves: the first, and all that a signal had ended by then
  int interrupted_by = 0;  ///< the signal that this process was sent
  bool all_succeeded = false;
  std::string log_error;             ///< why what workers wrote is not all in their log files; empty if it is
  std::string stopped_from_outside;  ///< why `stop` asked for the end
};

/// How long workers that have been asked to end may take, before SIGKILL.
struct Patience {
  std::chrono::milliseconds kill_after;     ///< after a failure, SIGINT or SIGHUP
  std::chrono::milliseconds after_sigterm;  ///< that this process was sent: they may have something to save
};

/// Starts the workers and stays with them until every one has ended. `stop` is asked a few times a second; once it
/// returns a reason the workers are told to end. Their lines go to `outlets`; where nobody takes them, workers that
/// write wait, and nothing else. `started` is called once all have been started, and `interrupted` with the first
/// signal that asks this process to end. Throws Error, with no worker left, if one cannot be started, and what
/// `started` throws.
///
/// A failure is that of the first rank that called it its own in `reports`, if there is one, and else of the first that
/// ended.
GroupResult run_group(const std::vector<WorkerSpec>& specs, const Patience& patience, SignalPipe& signals,
                      OrphanGuard& guard, FailureReports& reports, Outlets& outlets,
                      const std::function<std::string()>& stop, const std::function<void()>& started = {},
                      const std::function<void(int signal)>& interrupted = {});

}  // namespace lockstep::launcher
