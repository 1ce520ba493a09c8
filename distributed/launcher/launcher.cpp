#include "lockstep/distributed/launcher/launcher.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/standard_streams.h"
#include "lockstep/distributed/launcher/agent.h"
#include "lockstep/distributed/launcher/environment.h"
#include "lockstep/distributed/launcher/failure_reports.h"
#include "lockstep/distributed/launcher/group.h"
#include "lockstep/distributed/launcher/layout.h"
#include "lockstep/distributed/launcher/limits.h"
#include "lockstep/distributed/launcher/output.h"
#include "lockstep/distributed/store/prefix_store.h"
#include "lockstep/distributed/store/retrying_store.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store.h"
#include "lockstep/distributed/store/tcp_store_server.h"
#include "lockstep/distributed/store/wire.h"

namespace lockstep::launcher {
namespace {

using distributed::StorePtr;
using distributed::TCPStore;
using distributed::TCPStoreServer;
using std::chrono::milliseconds;

// The tries to reach node 0 get longer, up to what a network with a long way takes for the store's greeting.
constexpr milliseconds kFirstTry{1000};
constexpr milliseconds kLongestTry{4000};
// For the launcher of the node whose rank is the cause to say so; it waits itself until that rank has ended. One that
// lives has shown signs of life meanwhile.
constexpr milliseconds kCauseTime{3'000};
constexpr int kMaxWorldSize = static_cast<int>(distributed::Store::kMaxWaitKeys);
constexpr std::size_t kScreen = 24;  // lines of a terminal that are seen at once

void validate(const Options& options, const std::vector<std::string>& command) {
  const auto require = [](bool ok, const std::string& message) {
    if (!ok) throw UsageError(message);
  };
  require(!command.empty(), "no program to start was given");
  require(options.nproc_per_node >= 1 && options.nproc_per_node <= kMaxWorkers,
          fmt::format("the number of workers on a node is {}; expected 1 to {}", options.nproc_per_node, kMaxWorkers));
  require(options.nnodes >= 1 && options.nnodes <= kMaxNodes,
          fmt::format("the number of nodes is {}; expected 1 to {}", options.nnodes, kMaxNodes));
  require(options.nnodes <= kMaxWorldSize / options.nproc_per_node,
          fmt::format("{} nodes with {} workers each are more than the {} workers that a job may have", options.nnodes,
                      options.nproc_per_node, kMaxWorldSize));
  require(options.node_rank >= 0 && options.node_rank < options.nnodes,
          fmt::format("the node rank is {}; expected 0 to {}, one less than the number of nodes", options.node_rank,
                      options.nnodes - 1));
  require(options.max_restarts >= 0,
          fmt::format("the number of restarts is {}; expected 0 or more", options.max_restarts));
  require(options.min_nproc >= 0 && options.min_nproc <= options.nnodes * options.nproc_per_node,
          fmt::format("the smallest number of workers is {}; expected at most {}, all of them", options.min_nproc,
                      options.nnodes * options.nproc_per_node));
  require(options.min_nproc == 0 || options.max_restarts > 0,
          "going on with fewer workers takes restarts; give --max-restarts with --min-nproc");
  require(options.join_timeout.count() > 0, "the time in which the nodes have to meet must be positive");
  require(options.silence_timeout.count() > 0, "the time after which a silent node is lost must be positive");
  require(options.kill_after.count() > 0 && options.after_sigterm.count() > 0,
          "the time between asking workers to end and killing them must be positive");
  if (options.nnodes == 1) return;
  require(!options.master_addr.empty(), "a job on several nodes needs the address of node 0 (--master-addr)");
  require(options.master_port >= 1 && options.master_port <= 65535,
          fmt::format("the port of node 0 is {}; expected 1 to 65535", options.master_port));
}

std::string job_token(const Options& options) {
  if (options.nnodes == 1) return distributed::make_token();
  const char* token = std::getenv("LOCKSTEP_TOKEN");
  const std::string weakness = distributed::token_weakness(token ? token : "");
  if (!weakness.empty())
    throw UsageError(fmt::format(
        "a job on several nodes needs a shared secret: LOCKSTEP_TOKEN {}; set the same random text of at least {} "
        "characters on every node, for example from `openssl rand -hex 32`",
        weakness, distributed::kMinTokenLength));
  return token;
}

std::unique_ptr<TCPStoreServer> serve_store(const Options& options, const std::string& token) {
  if (options.node_rank != 0) return nullptr;
  distributed::TCPStoreServerOptions server;
  server.token = token;
  server.bind_address = distributed::loopback_address();
  if (options.nnodes > 1) {
    server.port = static_cast<std::uint16_t>(options.master_port);
    const Deadline deadline = deadline_in(options.join_timeout);
    server.bind_address = distributed::listen_address(options.master_addr, deadline);
    server.lookup_timeout = time_left(deadline);
  }
  return std::make_unique<TCPStoreServer>(server);
}

// In short tries, so that a signal ends the wait for node 0.
StorePtr connect_to_node0(const Options& options, const TCPStoreServer* own, const std::string& token,
                          SignalPipe& signals) {
  // Node 0 reaches its own store wherever that listens.
  const std::string host = own && own->bind_address() == "0.0.0.0" ? "127.0.0.1" : options.master_addr;
  const Deadline deadline = deadline_in(options.join_timeout);
  const auto give_up_late = [&](const Error& error) {
    if (!has_passed(deadline)) return;
    throw TimeoutError(fmt::format(
        "node 0's launcher was not reached at {}:{} within {:.3g} s ({}); start it there, and check address, port and "
        "firewall; --join-timeout waits longer",
        options.master_addr, options.master_port, std::chrono::duration<double>(options.join_timeout).count(),
        error.what()));
  };
  for (milliseconds time = kFirstTry;; time = std::min(2 * time, kLongestTry)) {
    throw_if_interrupted(signals);
    try {
      auto store = std::make_shared<TCPStore>(
          distributed::TCPStoreOptions{host, static_cast<std::uint16_t>(options.master_port), token, time});
      store->set_timeout(options.silence_timeout);
      const auto retrying = std::make_shared<distributed::RetryingStore>(store);
      // The store of a launcher of node 0 that was started again is another one, although it has the same address.
      const std::string its_name = retrying->compare_set("launcher", "", distributed::make_token());
      return std::make_shared<distributed::PrefixStore>("launcher/" + its_name, retrying);
    } catch (const TimeoutError& error) {
      give_up_late(error);
    } catch (const distributed::ConnectionError& error) {
      give_up_late(error);
      std::this_thread::sleep_for(kFirstTry / 10);
    }
  }
}

class Launcher {
 public:
  Launcher(const Options& options, const std::vector<std::string>& command)
      : options_(options), command_(command), program_(find_program(command.front())), token_(job_token(options)) {}

  int run() {
    make_log_dir(options_.log_dir);
    const int status = run_until_end();
    if (const int signal = outlets_.drain(signals_, options_.name)) {
      say(fmt::format("ended by {}: what goes to {} waited for its reader, and what is left of it is lost{}",
                      signal_name(signal), outlets_.out.empty() ? "stderr" : "stdout",
                      status == 0 ? "; all else was done" : ""));
      return status == 0 ? 128 + signal : status;
    }
    // A supervisor that has closed stdout has the logs.
    const bool closed = outlets_.out.error() == EBADF && !options_.log_dir.empty();
    // The last lines may have found no reader when nobody looked for SIGPIPE any more.
    const int error = status == 0 && outlets_.out.abandoned() ? EPIPE : outlets_.out.error();
    if (error == 0 || closed) return status;
    say(fmt::format("what goes to stdout could not all be written: {}{}", std::generic_category().message(error),
                    status == 0 ? "; all else was done" : ""));
    return status == 0 ? kUnwritten : status;
  }

 private:
  int run_until_end() {
    try {
      server_ = serve_store(options_, token_);
      for (;;) {
        if (options_.nnodes > 1)
          agent_.emplace(connect_to_node0(options_, server_.get(), token_, signals_), options_, signals_,
                         [this](const std::string& text) { say(text); });
        const std::optional<int> status = run_generations();
        if (agent_) agent_->leave();
        if (status) return *status;
        agent_.reset();
        say("waiting for node 0's launcher to come back");
      }
    } catch (const Interrupted& interrupted) {
      return interrupted_by(interrupted.signal);
    }
  }

  bool elastic() const { return options_.min_nproc > 0; }

  Layout form(int left) {
    const Layout& last = layout_;
    const int starts = last.workers.empty() ? 0 : last.starts + 1;
    if (agent_) return agent_->form({left, options_.nproc_per_node, starts, restarts_, job_});
    Layout next = make_layout({{0, {left, options_.nproc_per_node, 0, 0, job_}}}, std::max(options_.min_nproc, 1));
    next.generation = next.starts = next.restarts = starts;
    next.job = job_;
    return next;
  }

  // None: the job goes on if node 0's launcher comes back.
  std::optional<int> run_generations() {
    Layout& layout = layout_;
    int left = options_.nproc_per_node;
    for (;;) {
      layout = form(left);
      restarts_ = layout.restarts;
      job_ = layout.job;
      if (layout.starts > 0)
        say(fmt::format("starting {} worker(s) again (restart {} of {})", layout.world_size(), layout.restarts,
                        options_.max_restarts));
      FailureReports reports;
      const GroupResult result = run_group(
          specs(layout, reports), {options_.kill_after, options_.after_sigterm}, signals_, guard_, reports, outlets_,
          [this] { return agent_ ? agent_->stop_reason() : std::string(); }, {},
          [this](int signal) {
            if (agent_) agent_->announce(ended_by(signal));
          });
      if (!result.log_error.empty())
        say(fmt::format("the files in '{}' are not complete: {}; what is missing there has come through here",
                        options_.log_dir, result.log_error));
      std::optional<SharedFailure> failure;
      if (agent_ && result.failure && result.failure->follows) failure = agent_->others_failure(kCauseTime);
      const bool elsewhere = failure.has_value();
      if (!failure) {
        failure = outcome(result);
        if (agent_) failure = failure ? agent_->agree(*failure) : agent_->finish();
      }
      if (!failure) return 0;
      const bool told = !elsewhere && failure->node == options_.node_rank && (result.failure || result.interrupted_by);
      if (!told) say(failure->text);
      if (result.interrupted_by) return interrupted_by(result.interrupted_by);
      if (agent_ && agent_->replaced()) return 1;
      const bool hopeless = failure->exit_status == kUnwritten || failure->exit_status == kWrongUsage;
      if (failure->kind != SharedFailure::Kind::node_returned && (layout.restarts >= options_.max_restarts || hopeless))
        return failure->exit_status;
      if (elastic() && agent_ && agent_->store_gone() && options_.node_rank != 0) {
        ++restarts_;
        return std::nullopt;
      }
      const int here = layout.workers.at(options_.node_rank);
      const int lost = elsewhere ? 0 : result.lost;
      // A node whose workers are all lost is there itself, and starts them again.
      left = elastic() && lost < here ? here - lost : options_.nproc_per_node;
    }
  }

  // What happened on this node, reported; none if its workers have all succeeded.
  std::optional<SharedFailure> outcome(const GroupResult& result) {
    if (result.failure) {
      const std::string text = report(*result.failure);
      return SharedFailure{options_.node_rank, result.failure->ending.exit_status, text};
    }
    if (result.interrupted_by && !result.all_succeeded) return ended_by(result.interrupted_by);
    if (!result.stopped_from_outside.empty()) return SharedFailure{options_.node_rank, 1, result.stopped_from_outside};
    return std::nullopt;
  }

  SharedFailure ended_by(int signal) const {
    return {options_.node_rank, 128 + signal,
            fmt::format("node {} was ended by {}", options_.node_rank, signal_name(signal))};
  }

  std::string report(const Failure& failure) {
    const std::string how = failure.ending.signal ? fmt::format("was killed by signal {} ({})", failure.ending.signal,
                                                                signal_name(failure.ending.signal))
                                                  : fmt::format("exited with status {}", failure.ending.exit_status);
    const std::string where = options_.nnodes > 1 ? fmt::format(" on node {}", options_.node_rank) : "";
    const std::string what =
        failure.had_ended
            ? fmt::format("it {} after {:.2f} s", how, failure.seconds)
            : fmt::format("after {:.2f} s it had said that it fails, and did not end by itself{}", failure.seconds,
                          failure.last_lines.empty() ? "" : " (it " + failure.said + ")");
    const bool unwritten = failure.had_ended && failure.ending.exit_status == kUnwritten;
    const std::string text =
        unwritten
            ? fmt::format(
                  "rank {} (pid {}){} has done its work, and could not write all that came of it where it "
                  "should be (status {}, after {:.2f} s)",
                  failure.rank, failure.pid, where, kUnwritten, failure.seconds)
            : fmt::format("rank {} (pid {}){} failed first: {}{}", failure.rank, failure.pid, where, what,
                          failure.ended_before.empty() ? ""
                                                       : fmt::format("; before it rank {} had ended with status 0",
                                                                     fmt::join(failure.ended_before, ", ")));
    if (failure.last_lines.empty()) {
      const std::string said = failure.said.empty() ? "it wrote nothing to stderr" : "it " + failure.said;
      say(text + "; " + said);
      return text + "; " + said;
    }
    // Its stderr has come through, and is repeated only if it is out of sight.
    if (failure.lines_since <= kScreen) {
      const bool plain = options_.output == Output::rank0_plain && failure.rank == 0;
      say(text + (plain ? "" : fmt::format("; its last lines on stderr stand above, behind [{}]", failure.rank)));
    } else {
      say(text + "; its last lines on stderr:");
      for (const std::string& line : failure.last_lines) say("  | " + line);
    }
    return text + ": " + failure.last_lines.back();
  }

  int interrupted_by(int signal) {
    say(fmt::format("ended by {}{}", signal_name(signal),
                    signal == SIGPIPE ? ": nobody reads its stdout or stderr any more" : ""));
    return 128 + signal;
  }

  std::vector<WorkerSpec> specs(const Layout& layout, const FailureReports& reports) const {
    const Environment base = current_environment();
    const int count = layout.workers.at(options_.node_rank);
    std::vector<WorkerSpec> specs;
    for (int local_rank = 0; local_rank < count; ++local_rank) {
      Placement placement;
      placement.rank = layout.first_rank(options_.node_rank) + local_rank;
      placement.world_size = layout.world_size();
      placement.local_rank = local_rank;
      placement.local_world_size = count;
      placement.master_addr = options_.nnodes > 1 ? options_.master_addr : server_->bind_address();
      placement.master_port = options_.nnodes > 1 ? options_.master_port : server_->port();
      placement.token = token_;
      placement.restart_count = layout.starts;
      placement.job = layout.job;
      placement.elastic = options_.max_restarts > 0;
      placement.failure_pipe = reports.place();

      WorkerSpec spec;
      spec.program = program_;
      spec.arguments = command_;
      spec.environment = to_strings(worker_environment(base, placement));
      spec.rank = placement.rank;
      spec.inherited = reports.descriptor();
      const bool plain = options_.output == Output::rank0_plain && placement.rank == 0;
      spec.inherit_stdout = plain && options_.log_dir.empty() && !outlets_.out.has_reader();
      if (!plain) spec.prefix = fmt::format("[{}] ", placement.rank);
      if (!options_.log_dir.empty()) {
        spec.stdout_log = fmt::format("{}/rank{}.out", options_.log_dir, placement.rank);
        spec.stderr_log = fmt::format("{}/rank{}.err", options_.log_dir, placement.rank);
        spec.truncate_logs = layout.starts == 0;
      }
      specs.push_back(std::move(spec));
    }
    return specs;
  }

  void say(const std::string& message) { outlets_.err.write(options_.name + ": " + message + "\n"); }

  const Options& options_;
  const std::vector<std::string>& command_;
  std::string program_;
  std::string token_;
  OrphanGuard guard_;  // before any thread of ours exists
  SignalPipe signals_;
  Outlets outlets_;
  std::unique_ptr<TCPStoreServer> server_;
  std::optional<Agent> agent_;
  Layout layout_;     // the last one; of no workers before the first
  int restarts_ = 0;  // used up, also by the loss of node 0
  std::string job_ = distributed::make_token().substr(0, 16);
};

}  // namespace

int run(const Options& given, const std::vector<std::string>& command) {
  Options options = given;
  // An IPv6 address as it is written in URLs.
  if (std::string& host = options.master_addr; host.starts_with('[') && host.ends_with(']'))
    host = host.substr(1, host.size() - 2);
  validate(options, command);
  keep_standard_streams_open();
  std::fflush(nullptr);  // what this process has printed comes before what the workers print
  return Launcher(options, command).run();
}

int run_local(const Options& options, const std::vector<std::string>& arguments) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  LOCKSTEP_CHECK(!error, "this program's own file was not found through /proc/self/exe: {}", error.message());
  std::vector<std::string> command{self.string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run(options, command);
}

int default_nproc() {
  const int devices = cuda::device_count();
  return devices > 0 ? devices : usable_cores();
}

}  // namespace lockstep::launcher
