#include "distributed/store/tcp_store_server.h"

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

#include "core/check.h"
#include "core/log.h"
#include "distributed/store/dictionary.h"
#include "distributed/store/server_connection.h"
#include "distributed/store/socket.h"
#include "distributed/store/wire.h"

namespace lockstep::distributed {
namespace {

// Clients beyond the limit that are still told why; more are just closed.
constexpr int kPoliteRefusals = 64;

}  // namespace

/// The server's thread and all it owns. Only connections_ and the pipe are touched from outside.
class TCPStoreServer::Loop {
 public:
  explicit Loop(TCPStoreServerOptions options) : options_(std::move(options)) {
    LOCKSTEP_CHECK(!options_.token.empty() || is_loopback(options_.bind_address),
                   "[TCPStore] listening on {} needs a token, so that only the job's own processes get in; set "
                   "LOCKSTEP_TOKEN to the same secret on every node, such as the output of 'openssl rand -hex 32'",
                   options_.bind_address);
    listener_ = listen_on(options_.bind_address, options_.port);
    port_ = bound_port(listener_.get());
    int ends[2];
    LOCKSTEP_CHECK(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "[TCPStore] pipe: {}", std::strerror(errno));
    stop_read_ = FileDescriptor(ends[0]);
    stop_write_ = FileDescriptor(ends[1]);
    thread_ = std::thread([this] { run(); });
  }

  ~Loop() {
    const char byte = 0;
    while (write(stop_write_.get(), &byte, 1) < 0 && errno == EINTR) {
    }
    thread_.join();
  }

  const TCPStoreServerOptions& options() const { return options_; }
  std::uint16_t port() const { return port_; }
  int connections() const { return connection_count_.load(); }

 private:
  using Clock = std::chrono::steady_clock;

  void run() {
    std::vector<pollfd> entries;
    for (;;) {
      const short listen_events = accepting() ? POLLIN : 0;
      entries.assign({{stop_read_.get(), POLLIN, 0}, {listener_.get(), listen_events, 0}});
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
      if (!connection.transfer()) return false;
      while (const auto request = connection.next_request()) {
        handle(connection, *request);
        if (!connection.transfer()) return false;
      }
      return true;
    } catch (const std::exception& error) {
      logging::warn("[TCPStore {}:{}] drops a client at {}: {}", options_.bind_address, port_, connection.peer(),
                    error.what());
      return false;
    }
  }

  void handle(ServerConnection& connection, const std::string& payload) {
    wire::Reader fields(payload);
    switch (static_cast<wire::Request>(fields.byte())) {
      case wire::Request::set: {
        const std::string key = fields.bytes();
        const std::string value = fields.bytes();
        if (!has_room(connection, key, value)) return;
        dictionary_.set(key, value);
        connection.respond(wire::Status::ok, {});
        return wake_waiters();
      }
      case wire::Request::get: {
        const Milliseconds timeout = read_timeout(fields);
        return start_wait(connection, {fields.bytes()}, timeout, true);
      }
      case wire::Request::add: {
        const std::string key = fields.bytes();
        const auto delta = static_cast<std::int64_t>(fields.integer());
        if (!has_room(connection, key, "-9223372036854775808")) return;
        try {
          respond_integer(connection, static_cast<std::uint64_t>(dictionary_.add(key, delta)));
        } catch (const StoreError& error) {
          connection.respond(wire::Status::error, error.what());
        }
        return wake_waiters();
      }
      case wire::Request::compare_set: {
        const std::string key = fields.bytes();
        const std::string expected = fields.bytes();
        const std::string desired = fields.bytes();
        if (!has_room(connection, key, desired)) return;
        connection.respond(wire::Status::ok, dictionary_.compare_set(key, expected, desired));
        return wake_waiters();
      }
      case wire::Request::wait: {
        const Milliseconds timeout = read_timeout(fields);
        return start_wait(connection, read_keys(fields), timeout, false);
      }
      case wire::Request::check:
        return connection.respond(wire::Status::ok, {dictionary_.first_missing(read_keys(fields)) ? "\0" : "\1", 1});
      case wire::Request::erase:
        return connection.respond(wire::Status::ok, {dictionary_.erase(fields.bytes()) ? "\1" : "\0", 1});
      case wire::Request::num_keys:
        return respond_integer(connection, static_cast<std::uint64_t>(dictionary_.size()));
    }
    throw StoreError("it sent an unknown request");
  }

  static void respond_integer(ServerConnection& connection, std::uint64_t value) {
    std::string body(8, '\0');
    for (int i = 0; i < 8; ++i) body[static_cast<std::size_t>(i)] = static_cast<char>(value >> (8 * i) & 0xff);
    connection.respond(wire::Status::ok, body);
  }

  static Milliseconds read_timeout(wire::Reader& fields) {
    constexpr std::uint64_t kLongest = 400ull * 24 * 3600 * 1000;
    return Milliseconds(std::min(fields.integer(), kLongest));
  }

  static std::vector<std::string> read_keys(wire::Reader& fields) {
    const std::uint64_t count = fields.integer();
    if (count > Store::kMaxWaitKeys) throw StoreError(fmt::format("it names {} keys at once", count));
    std::vector<std::string> keys;
    for (std::uint64_t i = 0; i < count; ++i) keys.push_back(fields.bytes());
    return keys;
  }

  /// Answers an error and returns false if storing this would take too much memory.
  bool has_room(ServerConnection& connection, std::string_view key, std::string_view value) {
    if (dictionary_.bytes() + key.size() + value.size() <= options_.max_bytes) return true;
    connection.respond(wire::Status::error, fmt::format("[TCPStore] is full: {} of {} bytes are taken; cannot set '{}'",
                                                        dictionary_.bytes(), options_.max_bytes, key));
    return false;
  }

  void start_wait(ServerConnection& connection, std::vector<std::string> keys, Milliseconds timeout, bool wants_value) {
    connection.start_wait({std::move(keys), Clock::now() + timeout, wants_value});
    finish_wait(connection, Clock::now());
  }

  /// Answers a connection's wait if its keys are there or its time is up.
  void finish_wait(ServerConnection& connection, Clock::time_point now) {
    const ServerConnection::Wait& wait = *connection.waiting();
    if (const std::string* missing = dictionary_.first_missing(wait.keys)) {
      if (now < wait.deadline) return;
      connection.respond(wire::Status::timeout, *missing);
    } else {
      connection.respond(wire::Status::ok, wait.wants_value ? *dictionary_.find(wait.keys[0]) : std::string());
    }
    connection.end_wait();
  }

  void wake_waiters() {
    const auto now = Clock::now();
    for (ServerConnection& connection : connections_)
      if (connection.waiting()) finish_wait(connection, now);
  }

  void expire() {
    const auto now = Clock::now();
    for (auto connection = connections_.begin(); connection != connections_.end();) {
      if (connection->waiting()) finish_wait(*connection, now);
      if (!connection->admitted() && now >= connection->handshake_deadline()) {
        logging::warn("[TCPStore {}:{}] drops a client at {}: no proof of the token in time", options_.bind_address,
                      port_, connection->peer());
        connection = remove(connection);
      } else {
        ++connection;
      }
    }
  }

  int milliseconds_to_next_deadline() const {
    auto next = Clock::now() + std::chrono::minutes(1);
    if (!accepting()) next = std::min(next, accept_again_);
    for (const ServerConnection& connection : connections_) {
      if (connection.waiting()) next = std::min(next, connection.waiting()->deadline);
      if (!connection.admitted()) next = std::min(next, connection.handshake_deadline());
    }
    const auto left = std::chrono::ceil<Milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::max<std::int64_t>(left, 0));
  }

  bool accepting() const { return Clock::now() >= accept_again_; }

  void accept_all() {
    for (;;) {
      FileDescriptor fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
          // Out of descriptors or memory: the connection stays in the queue, and polling for it would spin.
          logging::warn("[TCPStore {}:{}] cannot accept a client: {}", options_.bind_address, port_,
                        std::strerror(errno));
          accept_again_ = Clock::now() + Milliseconds(200);
        }
        return;
      }
      const int over = connections() - options_.max_connections;
      if (over >= 0)
        logging::warn("[TCPStore {}:{}] turns a client away: {} connections", options_.bind_address, port_,
                      connections());
      if (over >= kPoliteRefusals) continue;
      const int on = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      connections_.emplace_back(std::move(fd), options_.token, Clock::now() + options_.handshake_timeout, over >= 0);
      ++connection_count_;
    }
  }

  std::list<ServerConnection>::iterator remove(std::list<ServerConnection>::iterator connection) {
    --connection_count_;
    return connections_.erase(connection);
  }

  TCPStoreServerOptions options_;
  FileDescriptor listener_;
  FileDescriptor stop_read_;
  FileDescriptor stop_write_;
  std::uint16_t port_ = 0;
  Dictionary dictionary_;
  std::list<ServerConnection> connections_;
  std::atomic<int> connection_count_{0};
  Clock::time_point accept_again_{};
  std::thread thread_;
};

TCPStoreServer::TCPStoreServer(TCPStoreServerOptions options) : loop_(std::make_unique<Loop>(std::move(options))) {}
TCPStoreServer::~TCPStoreServer() = default;

std::uint16_t TCPStoreServer::port() const {
  return loop_->port();
}
const std::string& TCPStoreServer::bind_address() const {
  return loop_->options().bind_address;
}
int TCPStoreServer::connections() const {
  return loop_->connections();
}

bool TCPStoreServer::wait_until_idle(Milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (connections() > 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(Milliseconds(2));
  }
  return true;
}

}  // namespace lockstep::distributed
