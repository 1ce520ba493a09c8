#include "lockstep/distributed/launcher/spawn.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/posix.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/standard_streams.h"
#include "lockstep/distributed/launcher/environment.h"
#include "lockstep/distributed/launcher/failure_reports.h"
#include "lockstep/distributed/launcher/group.h"
#include "lockstep/distributed/launcher/limits.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store_server.h"
#include "lockstep/distributed/store/wire.h"

namespace lockstep::launcher {
namespace {

// What a process says of its exception. No longer than what a pipe takes as one (PIPE_BUF).
struct Message {
  int rank = -1;
  std::array<char, 3072> text{};
};

std::vector<int> open_descriptors() {
  std::vector<int> found;
  DIR* folder = ::opendir("/proc/self/fd");
  if (!folder) return found;
  while (const dirent* entry = ::readdir(folder))
    if (entry->d_name[0] != '.') found.push_back(std::atoi(entry->d_name));
  found.erase(std::remove(found.begin(), found.end(), ::dirfd(folder)), found.end());
  ::closedir(folder);
  return found;
}

/// One call of spawn(). The processes are started first and told the store's port by a pipe, because the store's server
/// is a thread, and processes are copied before there are any.
class Spawn {
 public:
  Spawn(const std::function<void(int)>& function, int count, const SpawnOptions& options)
      : function_(function), count_(count), options_(options), callers_descriptors_(open_descriptors()) {
    std::sort(callers_descriptors_.begin(), callers_descriptors_.end());
    messages_ = make_pipe();
    start_ = make_pipe();
    ::fcntl(messages_.read.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(messages_.write.get(), F_SETFL, O_NONBLOCK);  // if it is full, others were first
  }

  struct Result : GroupResult {
    std::string unwritten;  ///< why not all that went to stdout has been written; empty: it has
  };

  Result run() {
    OrphanGuard guard;
    SignalPipe signals;
    Outlets outlets;
    Result result{run_group(specs(outlets), {options_.kill_after, options_.after_sigterm}, signals, guard, reports_,
                            outlets, {}, [this] { serve_store(); }),
                  {}};
    if (const int signal = outlets.drain(signals, "spawn")) {
      result.unwritten = fmt::format("{} came while it waited for its reader", signal_name(signal));
      if (!result.interrupted_by) result.interrupted_by = signal;
    }
    // One that came when all was done is the caller's as well.
    for (const int signal : signals.take())
      if (asks_to_end(signal) && signal != SIGPIPE && !result.interrupted_by) result.interrupted_by = signal;
    // A supervisor that has closed stdout has the logs.
    const bool closed = outlets.out.error() == EBADF && !options_.log_dir.empty();
    if (outlets.out.error() && !closed) result.unwritten = std::strerror(outlets.out.error());
    // The last lines found no reader, when nobody looked for signals any more.
    if (outlets.out.abandoned() && result.all_succeeded && !result.interrupted_by) result.interrupted_by = SIGPIPE;
    return result;
  }

  /// Of the processes that ended by an exception, in the order of time.
  std::vector<Message> messages() const {
    std::vector<Message> messages;
    for (Message next; ::read(messages_.read.get(), &next, sizeof next) == static_cast<ssize_t>(sizeof next);)
      messages.push_back(next);
    return messages;
  }

 private:
  std::vector<WorkerSpec> specs(const Outlets& outlets) const {
    std::vector<WorkerSpec> specs;
    for (int rank = 0; rank < count_; ++rank) {
      WorkerSpec spec;
      spec.function = [this, rank] { return child(rank); };
      spec.rank = rank;
      spec.inherited = reports_.descriptor();
      const bool plain = options_.output == Output::rank0_plain && rank == 0;
      spec.inherit_stdout = plain && options_.log_dir.empty() && !outlets.out.has_reader();
      if (!plain) spec.prefix = fmt::format("[{}] ", rank);
      if (!options_.log_dir.empty()) {
        spec.stdout_log = fmt::format("{}/rank{}.out", options_.log_dir, rank);
        spec.stderr_log = fmt::format("{}/rank{}.err", options_.log_dir, rank);
      }
      specs.push_back(std::move(spec));
    }
    return specs;
  }

  void serve_store() {
    distributed::TCPStoreServerOptions server;
    server.bind_address = distributed::loopback_address();
    server.token = token_;
    server_.emplace(server);
    const int port = server_->port();
    for (int rank = 0; rank < count_; ++rank) write_all(start_.write.get(), &port, sizeof port);
  }

  // In the new process.
  int child(int rank) const {
    try {
      // Waits for the server. A launcher that dies meanwhile takes this process with it: Note [No orphans].
      int port = 0;
      if (read_all(start_.read.get(), &port, sizeof port) != sizeof port) return 1;
      for (const int descriptor : open_descriptors())
        if (descriptor > 2 && descriptor != messages_.write.get() && descriptor != reports_.descriptor() &&
            !std::binary_search(callers_descriptors_.begin(), callers_descriptors_.end(), descriptor))
          ::close(descriptor);
      const Placement place{.rank = rank,
                            .world_size = count_,
                            .local_rank = rank,
                            .local_world_size = count_,
                            .master_addr = distributed::loopback_address(),
                            .master_port = port,
                            .token = token_,
                            .failure_pipe = reports_.place()};
      for (const auto& [name, value] : worker_environment(current_environment(), place))
        ::setenv(name.c_str(), value.c_str(), 1);
      // What was recorded so far is the caller's; see Note [Profile].
      if (const auto path = environment_variable("LOCKSTEP_PROFILE")) start_profile(*path);
      function_(rank);
      stop_profile();
    } catch (const std::exception& error) {
      return failed(rank, error.what());
    } catch (...) {
      return failed(rank, "an exception that is no std::exception");
    }
    std::fflush(nullptr);
    return 0;
  }

  int failed(int rank, const char* what) const {
    Message message;
    message.rank = rank;
    std::strncpy(message.text.data(), what, message.text.size() - 1);
    [[maybe_unused]] const ssize_t written = ::write(messages_.write.get(), &message, sizeof message);
    std::fprintf(stderr, "%s\n", what);
    std::fflush(nullptr);
    return 1;
  }

  const std::function<void(int)>& function_;
  int count_;
  const SpawnOptions& options_;
  std::vector<int> callers_descriptors_;
  std::string token_ = distributed::make_token();
  FailureReports reports_;
  Pipe messages_;
  Pipe start_;
  std::optional<distributed::TCPStoreServer> server_;
};

[[noreturn]] void throw_failure(const Failure& failure, const std::vector<Message>& messages) {
  // Who threw first is known better than who ended first. But a process that was killed leaves no message, and one that
  // a group has failed for leaves it when the others have left theirs.
  const Ending& ending = failure.ending;
  const bool by_message = failure.said.empty() && !ending.signal && !messages.empty();
  const int rank = by_message ? messages.front().rank : failure.rank;
  const auto message = std::find_if(messages.begin(), messages.end(), [&](const Message& m) { return m.rank == rank; });
  std::string how;
  if (message != messages.end()) {
    how = message->text.data();
  } else {
    how = ending.signal ? fmt::format("it was killed by signal {} ({})", ending.signal, signal_name(ending.signal))
                        : fmt::format("it exited with status {}", ending.exit_status);
    if (ending.unknown)
      how =
          "how it ended is not known: another part of this program has waited for it, as wait() and waitpid(-1) do for "
          "any process; wait for those alone that it has started itself";
    if (!failure.last_lines.empty()) how += "; its last line on stderr: " + failure.last_lines.back();
  }
  throw SpawnError(fmt::format("[spawn] rank {} failed first: {}", rank, how), rank,
                   by_message ? 1 : ending.exit_status, ending.signal);
}

}  // namespace

void spawn(const std::function<void(int)>& function, int nprocs, const SpawnOptions& options) {
  LOCKSTEP_CHECK(function != nullptr, "[spawn] there is no function to run");
  LOCKSTEP_CHECK(nprocs >= 1 && nprocs <= kMaxWorkers, "[spawn] {} processes; expected 1 to {}", nprocs, kMaxWorkers);
  LOCKSTEP_CHECK(options.kill_after.count() > 0 && options.after_sigterm.count() > 0,
                 "[spawn] kill_after and after_sigterm must be positive");
  make_log_dir(options.log_dir);
  keep_standard_streams_open();
  std::fflush(nullptr);  // or each copy would print it again
  Spawn call(function, nprocs, options);
  const Spawn::Result result = call.run();
  if (result.failure) throw_failure(*result.failure, call.messages());
  if (result.interrupted_by) {
    std::raise(result.interrupted_by);
    LOCKSTEP_CHECK(result.all_succeeded, "[spawn] ended by {}", signal_name(result.interrupted_by));
  }
  LOCKSTEP_CHECK(result.unwritten.empty(),
                 "[spawn] what the ranks printed could not all be written: {}; all else was done", result.unwritten);
}

}  // namespace lockstep::launcher
