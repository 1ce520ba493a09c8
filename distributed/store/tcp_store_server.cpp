#include "lockstep/distributed/store/tcp_store_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <thread>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/log.h"
#include "lockstep/core/start_thread.h"
#include "lockstep/distributed/store/log_budget.h"
#include "lockstep/distributed/store/request_handler.h"
#include "lockstep/distributed/store/server_connection.h"
#include "lockstep/distributed/store/socket.h"

namespace lockstep::distributed {
namespace {

// See Note [Floods].
constexpr int kMaxStrangers = 256;
constexpr Milliseconds kStrangersGrace{1'000};
// Clients beyond the limit that are still told why; more are just closed.
constexpr int kPoliteRefusals = 64;

}  // namespace

/// The server's thread and all it owns. Only the counts and the pipe are touched from outside.
class TCPStoreServer::Loop {
 public:
  explicit Loop(TCPStoreServerOptions options) : options_(std::move(options)), handler_(options_.max_bytes) {
    const Deadline deadline = deadline_in(options_.lookup_timeout);
    check_token(options_.token, "listening on", options_.bind_address, deadline);
    listener_ = listen_on(options_.bind_address, options_.port, deadline);
    port_ = bound_port(listener_.get());
    stop_ = make_pipe(O_NONBLOCK);
    thread_ = start_thread("a TCPStore's server", [this] { run(); });
  }

  ~Loop() {
    const char byte = 0;
    write_all(stop_.write.get(), &byte, 1);
    thread_.join();
    report_passed_over(Clock::time_point::max());
  }

  const TCPStoreServerOptions& options() const { return options_; }
  std::uint16_t port() const { return port_; }
  int connections() const { return connection_count_.load(); }
  int members() const { return members_.load(); }

 private:
  using Clock = std::chrono::steady_clock;

  void run() {
    std::vector<pollfd> entries;
    for (;;) {
      const short listen_events = accepting() ? POLLIN : 0;
      entries.assign({{stop_.read.get(), POLLIN, 0}, {listener_.get(), listen_events, 0}});
      for (const ServerConnection& connection : connections_)
        entries.push_back({connection.fd(), connection.events(), 0});
      const int ready = poll(entries.data(), entries.size(), milliseconds_to_next_deadline());
      if (ready < 0 && errno != EINTR) {
        logging::error("[TCPStore] the server stops: poll: {}", std::strerror(errno));
        return;
      }
      if (entries[0].revents != 0) return;
      if (ready > 0) serve(entries);
      expire();
      if (ready > 0 && entries[1].revents != 0) accept_all();
    }
  }

  void serve(const std::vector<pollfd>& entries) {
    std::size_t i = 2;
    for (auto connection = connections_.begin(); connection != connections_.end(); ++i) {
      const bool keep = entries[i].revents == 0 || serve_one(*connection);
      connection = keep ? std::next(connection) : remove(connection);
    }
  }

  /// False if the connection is to be dropped. One bad client never takes the server down.
  bool serve_one(ServerConnection& connection) {
    try {
      const bool was_admitted = connection.admitted();
      bool keep = connection.transfer();
      if (!was_admitted && connection.admitted()) {
        --strangers_;
        ++members_;
      }
      if (!connection.refusal().empty() && !keep) report("turns away", connection, connection.refusal());
      while (keep) {
        const auto request = connection.next_request();
        if (!request) break;
        if (handler_.handle(connection, *request)) wake_waiters();
        keep = connection.transfer();
      }
      return keep;
    } catch (const std::exception& error) {
      report("drops", connection, error.what());
      return false;
    }
  }

  /// Within limits: who floods the server does not flood the log.
  void report(const char* what, const ServerConnection& connection, std::string_view why) {
    if (!log_budget_.take(Clock::now())) return;
    logging::warn("[TCPStore {}:{}] {} a client at {}: {}", options_.bind_address, port_, what, connection.peer(), why);
  }

  void report_passed_over(Clock::time_point now) {
    if (const int count = log_budget_.passed_over(now))
      logging::warn("[TCPStore {}:{}] turned away or dropped {} more clients", options_.bind_address, port_, count);
  }

  void wake_waiters() {
    const auto now = Clock::now();
    for (ServerConnection& connection : connections_)
      if (connection.waiting()) handler_.finish_wait(connection, now);
  }

  void expire() {
    const auto now = Clock::now();
    report_passed_over(now);
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      if (connection->waiting()) handler_.finish_wait(*connection, now);
      if (!connection->admitted() && now >= connection->handshake_deadline()) {
        report("drops", *connection, "no proof of the token in time");
        connection = remove(connection);
      } else {
        ++connection;
      }
    }
  }

  int milliseconds_to_next_deadline() const {
    auto next = Clock::now() + std::chrono::minutes(1);
    if (!accepting()) next = std::min(next, accept_again_);
    if (const auto due = log_budget_.due()) next = std::min(next, *due);
    for (const ServerConnection& connection : connections_) {
      if (connection.waiting()) next = std::min(next, connection.waiting()->deadline);
      if (!connection.admitted()) next = std::min(next, connection.handshake_deadline());
    }
    const auto left = std::chrono::ceil<Milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::max<std::int64_t>(left, 0));
  }

  bool accepting() const { return Clock::now() >= accept_again_; }

  /// Note [Floods]
  /// Whoever can reach the port can open connections, and each takes a descriptor of this process, of which it has 1024
  /// by default. So no more than kMaxStrangers are open that have not proved the token. Beyond that the one that has
  /// kept us waiting the longest goes, after a second at least; until then new ones stay in the kernel's queue. A
  /// client of the job answers within milliseconds and is through, whatever others do. False: accept later.
  bool make_room_for_a_stranger() {
    if (strangers_ < kMaxStrangers) return true;
    const auto now = Clock::now();
    const auto oldest = std::find_if(connections_.begin(), connections_.end(),
                                     [](const ServerConnection& connection) { return !connection.admitted(); });
    const auto since = oldest->handshake_deadline() - options_.handshake_timeout;
    if (now < since + kStrangersGrace) {
      accept_again_ = since + kStrangersGrace;
      return false;
    }
    report("drops", *oldest, "others wait, and it has not proved the token");
    remove(oldest);
    return true;
  }

  void accept_all() {
    while (make_room_for_a_stranger()) {
      FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
          // Out of descriptors or memory: the connection stays in the queue, and polling for it would spin.
          const int error = errno;
          if (log_budget_.take(Clock::now()))
            logging::warn("[TCPStore {}:{}] cannot accept a client: {}{}", options_.bind_address, port_,
                          std::strerror(error),
                          error == EMFILE ? "; raise the limit on open files (ulimit -n) of the process that holds the "
                                            "store: rank 0 or the launcher"
                                          : "");
          accept_again_ = Clock::now() + Milliseconds(200);
        }
        return;
      }
      const int over = connections() - options_.max_connections;
      if (over >= 0 && log_budget_.take(Clock::now()))
        logging::warn("[TCPStore {}:{}] turns a client away: {} connections", options_.bind_address, port_,
                      connections());
      if (over >= kPoliteRefusals) continue;
      const int on = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      connections_.emplace_back(std::move(fd), options_.token, Clock::now() + options_.handshake_timeout, over >= 0);
      ++connection_count_;
      ++strangers_;
    }
  }

  std::list<ServerConnection>::iterator remove(std::list<ServerConnection>::iterator connection) {
    --connection_count_;
    connection->admitted() ? --members_ : --strangers_;
    return connections_.erase(connection);
  }

  TCPStoreServerOptions options_;
  FileDescriptor listener_;
  Pipe stop_;
  std::uint16_t port_ = 0;
  RequestHandler handler_;
  std::list<ServerConnection> connections_;
  int strangers_ = 0;            // connections that are not admitted
  std::atomic<int> members_{0};  // those that are
  std::atomic<int> connection_count_{0};
  LogBudget log_budget_;
  Clock::time_point accept_again_{};
  std::thread thread_;
};

TCPStoreServer::TCPStoreServer(TCPStoreServerOptions options) : loop_(std::make_unique<Loop>(std::move(options))) {}
TCPStoreServer::~TCPStoreServer() {
  if (!made_in_.is_here()) leave_for_ever(loop_);
}

std::uint16_t TCPStoreServer::port() const {
  return loop_->port();
}
const std::string& TCPStoreServer::bind_address() const {
  return loop_->options().bind_address;
}
int TCPStoreServer::connections() const {
  return loop_->members();
}

bool TCPStoreServer::wait_until_idle(Milliseconds timeout) const {
  const Deadline deadline = deadline_in(timeout);
  while (connections() > 0) {
    if (has_passed(deadline)) return false;
    std::this_thread::sleep_for(Milliseconds(2));
  }
  return true;
}

}  // namespace lockstep::distributed
