#include "lockstep/distributed/launcher/group.h"

#include <poll.h>

#include <algorithm>
#include <csignal>

#include "lockstep/core/check.h"

namespace lockstep::launcher {
namespace {

using Clock = std::chrono::steady_clock;

// A signal wakes the loop; this is only how long a missed one, or `stop`, may go unnoticed.
constexpr std::chrono::milliseconds kPollInterval{200};
// Processes that left their worker's process group can hold its output open; they are not waited for longer than this.
constexpr std::chrono::milliseconds kDrainTime{1000};
// How long a worker that has said that it fails may take to end by itself, once another one has ended.
constexpr std::chrono::milliseconds kLastWords{1000};
// A SIGTERM within this time of another is the same request, come by two ways: from a batch system that signals every
// process, say, and from one that passes signals on.
constexpr std::chrono::milliseconds kOneRequest{2000};

/// A program that saves what it has when SIGTERM comes, and then ends as if by it.
bool ended_as_asked(const Ending& ending) {
  return !ending.signal && ending.exit_status == 128 + SIGTERM;
}

class Group {
 public:
  Group(const Patience& patience, SignalPipe& signals, OrphanGuard& guard, FailureReports& reports, Outlets& outlets,
        const std::function<std::string()>& stop, const std::function<void(int)>& interrupted)
      : patience_(patience),
        signals_(signals),
        guard_(guard),
        reports_(reports),
        outlets_(outlets),
        stop_(stop),
        interrupted_(interrupted) {}

  ~Group() {
    for (Worker& worker : workers_) {
      if (!worker.alive()) continue;
      worker.signal(SIGKILL);
      reap(worker);
    }
  }

  void start(const std::vector<WorkerSpec>& specs) {
    workers_.reserve(specs.size());
    for (const WorkerSpec& spec : specs) {
      workers_.emplace_back(spec, outlets_);
      guard_.add(workers_.back().pid());
    }
  }

  GroupResult wait() {
    while (any_alive()) {
      poll_once(kPollInterval);
      handle_signals();
      reap_ended();
      tell_of_stopped();
      if (!ending_ && first_) decide();
      if (!ending_ && stop_) {
        result_.stopped_from_outside = stop_();
        if (!result_.stopped_from_outside.empty()) end_workers(SIGTERM, patience_.kill_after);
      }
      if (ending_ && Clock::now() >= kill_at_) kill_the_rest();
    }
    const auto deadline = Clock::now() + kDrainTime;
    while (any_open() && Clock::now() < deadline) poll_once(kPollInterval);
    for (Worker& worker : workers_) {
      worker.out().finish();
      worker.err().finish();
      for (const Stream* stream : {&worker.out(), &worker.err()})
        if (!stream->copy_error().empty()) result_.log_error = stream->copy_error();
    }
    for (Worker& worker : workers_)
      if (result_.failure && result_.failure->rank == worker.rank()) {
        result_.failure->last_lines = worker.err().last_lines();
        result_.failure->lines_since = worker.err().lines_since();
      }
    result_.all_succeeded =
        std::none_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.ending()->failed(); });
    return result_;
  }

 private:
  bool any_alive() const {
    return std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.alive(); });
  }
  bool any_open() {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](Worker& worker) { return worker.out().fd() >= 0 || worker.err().fd() >= 0; });
  }

  void poll_once(std::chrono::milliseconds longest) {
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
    for (Outlet* outlet : {&outlets_.out, &outlets_.err}) {
      outlet->flush();
      if (!outlet->empty()) fds.push_back({outlet->fd(), POLLOUT, 0});
    }
    const std::size_t first_stream = fds.size();
    std::vector<Stream*> streams;
    for (Worker& worker : workers_)
      for (Stream* stream : {&worker.out(), &worker.err()}) {
        // What the dead have left is little, and part of it for the report.
        if (stream->fd() < 0 || (stream->target().full() && worker.alive())) continue;
        fds.push_back({stream->fd(), POLLIN, 0});
        streams.push_back(stream);
      }
    if (first_) longest = std::min(longest, std::chrono::milliseconds(20));
    if (ending_)
      longest = std::clamp(std::chrono::ceil<std::chrono::milliseconds>(kill_at_ - Clock::now()),
                           std::chrono::milliseconds(1), longest);
    if (::poll(fds.data(), fds.size(), static_cast<int>(longest.count())) <= 0) return;
    for (std::size_t i = 0; i < streams.size(); ++i)
      if (fds[first_stream + i].revents) streams[i]->pump();
  }

  void handle_signals() {
    for (const int signal : signals_.take()) {
      if (signal == SIGUSR1)
        for (const Worker& worker : workers_) worker.pass_on(signal);
      if (asks_to_end(signal)) take_request(signal);
    }
  }

  void take_request(int signal) {
    const auto now = Clock::now();
    if (result_.interrupted_by && signal == SIGPIPE) return;  // its sender wants nothing
    if (result_.interrupted_by && result_.interrupted_by != SIGPIPE) {
      const bool again = signal != SIGTERM || result_.interrupted_by != SIGTERM || now > asked_at_ + kOneRequest;
      if (again) signal_all(SIGKILL);
      return;
    }
    result_.interrupted_by = signal;
    asked_at_ = now;
    if (interrupted_) interrupted_(signal);
    // Nobody reads what is written here: no reason for workers to lose what they could still save.
    const bool softly = signal == SIGTERM || signal == SIGPIPE;
    end_workers(softly ? SIGTERM : signal, softly ? patience_.after_sigterm : patience_.kill_after);
  }

  void reap_ended() {
    // Several may have ended since the last look, and the kernel does not say in which order. One that died by a signal
    // is rather the cause; one that returned an error may have done so because its peer was gone.
    Worker* first = nullptr;
    for (Worker& worker : workers_) {
      if (!worker.has_ended()) continue;
      reap(worker);
      if (worker.ending()->signal && !ending_) ++killed_;
      if (worker.ending()->failed() && (!first || (!first->ending()->signal && worker.ending()->signal)))
        first = &worker;
    }
    if (!first || ending_ || first_) return;
    first_ = first;
    first_at_ = Clock::now();
  }

  /// Others find it out at their deadline; the only worker, or all of them, would stand still without a word.
  void tell_of_stopped() {
    for (Worker& worker : workers_)
      if (worker.has_stopped() && !ending_)
        outlets_.err.write(
            fmt::format("warning: rank {0} (pid {1}) is stopped (SIGSTOP or a debugger), and the job waits for it; "
                        "resume it (kill -CONT {1}) or end it (kill -KILL {1})\n",
                        worker.rank(), worker.pid()));
  }

  /// One has failed: because of itself, or of one that has said so and may still be on its way out?
  void decide() {
    const std::vector<FailureReports::Report>& reports = reports_.read();
    const auto own = std::find_if(reports.begin(), reports.end(), [](const auto& report) { return report.own; });
    const auto cause = std::find_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
      return own != reports.end() && worker.rank() == own->rank;
    });
    if (cause != workers_.end() && cause->alive() && Clock::now() < first_at_ + kLastWords) return;
    const auto report_of = [&](const Worker& worker) {
      return std::find_if(reports.begin(), reports.end(),
                          [&](const auto& report) { return report.rank == worker.rank(); });
    };
    // What one has said counts once it has failed. One that is held up at its end, by a library's threads for instance,
    // is the cause as well where the one that has ended says that it follows another.
    const auto first_said = report_of(*first_);
    const bool first_follows = first_said != reports.end() && !first_said->own;
    const bool known = cause != workers_.end() && (cause->ending() ? cause->ending()->failed() : first_follows);
    const Worker& failed = known ? *cause : *first_;
    const auto said = report_of(failed);
    result_.lost = std::max(killed_, 1);
    result_.failure = Failure{failed.rank(),
                              failed.pid(),
                              failed.ending().value_or(*first_->ending()),
                              !failed.alive(),
                              std::chrono::duration<double>(first_at_ - started_).count(),
                              {},
                              0,
                              known ? own->text : std::string(),
                              said != reports.end() ? !said->own : ended_as_asked(*first_->ending()),
                              {}};
    if (!known)
      for (const Worker& worker : workers_)
        if (worker.ending() && !worker.ending()->failed()) result_.failure->ended_before.push_back(worker.rank());
    end_workers(SIGTERM, patience_.kill_after);
  }

  void reap(Worker& worker) {
    worker.signal(SIGKILL);  // what it started and left behind; its own number is safe until it is reaped
    guard_.remove(worker.pid());
    worker.reap();
  }

  void end_workers(int signal, std::chrono::milliseconds time) {
    signal_all(signal);
    if (ending_) return;
    ending_ = true;
    ending_time_ = time;
    kill_at_ = Clock::now() + time;
  }

  void kill_the_rest() {
    for (Worker& worker : workers_)
      if (worker.alive() && !told_of_kill_)
        outlets_.err.write(
            fmt::format("warning: rank {} (pid {}) has not ended within {:g} s of being asked to, and is killed\n",
                        worker.rank(), worker.pid(), std::chrono::duration<double>(ending_time_).count()));
    told_of_kill_ = true;
    signal_all(SIGKILL);
  }

  void signal_all(int signal) {
    for (Worker& worker : workers_) worker.signal(signal);
  }

  Patience patience_;
  SignalPipe& signals_;
  OrphanGuard& guard_;
  FailureReports& reports_;
  Outlets& outlets_;
  const std::function<std::string()>& stop_;
  const std::function<void(int)>& interrupted_;
  std::vector<Worker> workers_;
  Clock::time_point started_ = Clock::now();
  Worker* first_ = nullptr;  // of the workers, which stay where they are
  Clock::time_point first_at_{};
  int killed_ = 0;
  bool ending_ = false;
  Clock::time_point asked_at_{};  // by the signal that ends this process
  std::chrono::milliseconds ending_time_{};
  Clock::time_point kill_at_{};
  bool told_of_kill_ = false;
  GroupResult result_;
};

}  // namespace

GroupResult run_group(const std::vector<WorkerSpec>& specs, const Patience& patience, SignalPipe& signals,
                      OrphanGuard& guard, FailureReports& reports, Outlets& outlets,
                      const std::function<std::string()>& stop, const std::function<void()>& started,
                      const std::function<void(int)>& interrupted) {
  Group group(patience, signals, guard, reports, outlets, stop, interrupted);
  group.start(specs);
  if (started) started();
  return group.wait();
}

}  // namespace lockstep::launcher
