#include "lockstep/distributed/store/tcp_store.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/sha256.h"
#include "lockstep/distributed/store/dictionary.h"
#include "lockstep/distributed/store/peer_owner.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/wire.h"

namespace lockstep::distributed {
namespace {

// The server answers a wait at its deadline; a server that says nothing for this much longer is taken for dead.
constexpr Milliseconds kAnswerGrace{2'000};
// A server that has been there and refuses connections for so long has ended: a firewall may refuse a few.
constexpr Milliseconds kRefusals{2'000};
constexpr Milliseconds kPause{50};  // between two tries to be greeted

constexpr const char* kHolder = "{} ({}; rank 0 or the launcher holds the store)";

std::uint64_t to_wire(Milliseconds timeout) {
  return static_cast<std::uint64_t>(timeout.count());
}

wire::Writer request_for(wire::Request kind) {
  return wire::Writer().byte(static_cast<std::uint8_t>(kind));
}

}  // namespace

TCPStore::TCPStore(TCPStoreOptions options) : options_(std::move(options)) {
  set_timeout(options_.timeout);
  const Deadline deadline = std::min(options_.connected_by, deadline_in(timeout()));
  check_token(options_.token, "connecting to", options_.host, deadline);
  idle_.push_back(connect(timeout(), deadline));
}

TCPStore::~TCPStore() = default;

std::string TCPStore::describe() const {
  return fmt::format("TCPStore {}:{}", options_.host, options_.port);
}

FileDescriptor TCPStore::connect(Milliseconds timeout, Deadline deadline, Deadline listens_by) const {
  FileDescriptor fd;
  // See Note [Token].
  std::string greeting(wire::kHello.size() + wire::kNonceBytes, '\0');
  // What is between, a proxy say, may take connections before the store does.
  const Deadline last_try = std::min(deadline, listens_by) - kPause;
  bool closes = false;  // it has closed one: the last of many says no more, if the deadline comes before its end does
  const auto closed_text = [this] {
    return fmt::format(
        "[{}] takes connections but closes them before it says anything; is another program on that port, or a proxy "
        "whose store (rank 0 or the launcher holds it) does not run?",
        describe());
  };
  for (bool greeted = false; !greeted;) {
    fd = connect_to(options_.host, options_.port, deadline, listens_by);
    try {
      recv_all(fd.get(), greeting.data(), greeting.size(), deadline);
      greeted = true;
    } catch (const TimeoutError&) {
      if (closes) throw TimeoutError(closed_text());
      throw TimeoutError(
          fmt::format("[{}] takes connections but said nothing within {} ms; is another program on that port, or the "
                      "store stopped?",
                      describe(), timeout.count()));
    } catch (const ConnectionError&) {
      closes = true;
      if (has_passed(last_try)) {
        if (listens_by < deadline) throw ConnectionError(closed_text());
        throw TimeoutError(closed_text());
      }
      std::this_thread::sleep_for(kPause);
    }
  }
  if (!greeting.starts_with(wire::kHello))
    throw StoreError(fmt::format("[{}] is not a store of this version; is another program on that port?", describe()));
  const std::string server_nonce = greeting.substr(wire::kHello.size());
  const std::string client_nonce = wire::random_bytes(wire::kNonceBytes);
  const std::string answer = client_nonce + wire::proof(options_.token, "client", server_nonce, client_nonce);
  std::string verdict(1 + wire::kProofBytes, '\0');
  try {
    send_all(fd.get(), answer.data(), answer.size(), deadline);
    recv_all(fd.get(), verdict.data(), verdict.size(), deadline);
  } catch (const TimeoutError&) {
    throw TimeoutError(fmt::format(
        "[{}] did not answer to the token within {} ms; is the process that holds the store (rank 0 or the launcher) "
        "stopped, or is something else on that port?",
        describe(), timeout.count()));
  } catch (const ConnectionError& error) {
    throw ConnectionError(fmt::format(kHolder, error.what(), describe()));
  }
  if (verdict[0] == wire::kOtherUser) throw_other_user();
  if (verdict[0] == wire::kFull) throw StoreError(fmt::format("[{}] has no room for more connections", describe()));
  const bool mutual = equal_constant_time(std::string_view(verdict).substr(1),
                                          wire::proof(options_.token, "server", server_nonce, client_nonce));
  if (verdict[0] != wire::kAdmitted || !mutual)
    throw StoreError(fmt::format("[{}] wrong token: every process of a job needs the same LOCKSTEP_TOKEN", describe()));
  if (int open_error = 0; options_.token.empty() && peer_owner(fd.get(), &open_error) != ::geteuid()) {
    if (open_error != 0)
      throw StoreError(fmt::format("[{}] whose store this is cannot be looked up: {}; {}", describe(),
                                   std::strerror(open_error), kRaiseLimit));
    throw_other_user();
  }
  return fd;
}

void TCPStore::throw_other_user() const {
  throw StoreError(
      fmt::format("[{}] belongs to another user, or the system does not say to whom (/proc/net/tcp; in a "
                  "user namespace it may not): without a token, "
                  "only processes of one user meet; set LOCKSTEP_TOKEN to the same secret for all processes of the "
                  "job, such as the output of 'openssl rand -hex 32', or choose another port",
                  describe()));
}

std::string TCPStore::request(const std::string& message, Milliseconds timeout, bool waits) {
  const auto grace = waits ? std::min(kAnswerGrace, std::max(timeout, Milliseconds(1'000))) : Milliseconds(0);
  const Deadline deadline = deadline_in(timeout + grace);
  if (!made_in_.is_here())
    throw StoreError(
        fmt::format("[{}] this process is a forked child of process {}, to which the connections belong; make "
                    "the child a store of its own",
                    describe(), made_in_.number()));
  FileDescriptor fd;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      fd = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  std::string payload;
  try {
    if (!fd) fd = connect(timeout + grace, deadline, deadline_in(kRefusals));
    send_all(fd.get(), message.data(), message.size(), deadline);
    char length_bytes[wire::kLengthBytes];
    recv_all(fd.get(), length_bytes, sizeof(length_bytes), deadline);
    const std::uint64_t length = wire::decode_integer(length_bytes);
    if (length == 0 || length > wire::kMaxPayload)
      throw StoreError(fmt::format("[TCPStore] an answer claims {} bytes", length));
    payload.resize(length);
    recv_all(fd.get(), payload.data(), payload.size(), deadline);
  } catch (const TimeoutError& error) {
    // The connection is dropped with the descriptor, which also ends a wait on the server.
    throw TimeoutError(fmt::format("{} ({}, after {} ms)", error.what(), describe(), (timeout + grace).count()));
  } catch (const ConnectionError& error) {
    throw ConnectionError(fmt::format(kHolder, error.what(), describe()));
  } catch (const StoreError& error) {
    throw StoreError(fmt::format(kHolder, error.what(), describe()));
  }
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(fd));
  }
  const auto status = static_cast<wire::Status>(payload[0]);
  payload.erase(0, 1);
  if (status == wire::Status::timeout) throw TimeoutError(timeout_message(describe(), payload, timeout.count()));
  if (status != wire::Status::ok) throw StoreError(payload);
  return payload;
}

void TCPStore::do_set(const std::string& key, const std::string& value, Milliseconds timeout) {
  request(request_for(wire::Request::set).bytes(key).bytes(value).message(), timeout);
}

std::string TCPStore::do_get(const std::string& key, Milliseconds timeout) {
  return request(request_for(wire::Request::get).integer(to_wire(timeout)).bytes(key).message(), timeout, true);
}

std::int64_t TCPStore::do_add(const std::string& key, std::int64_t delta, Milliseconds timeout) {
  const std::string sum =
      request(request_for(wire::Request::add).bytes(key).integer(static_cast<std::uint64_t>(delta)).message(), timeout);
  return static_cast<std::int64_t>(wire::Reader(sum).integer());
}

std::string TCPStore::do_compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                                     Milliseconds timeout) {
  return request(request_for(wire::Request::compare_set).bytes(key).bytes(expected).bytes(desired).message(), timeout);
}

void TCPStore::do_wait(const std::vector<std::string>& keys, Milliseconds timeout) {
  wire::Writer message = request_for(wire::Request::wait);
  message.integer(to_wire(timeout)).integer(keys.size());
  for (const std::string& key : keys) message.bytes(key);
  request(message.message(), timeout, true);
}

bool TCPStore::do_check(const std::vector<std::string>& keys, Milliseconds timeout) {
  wire::Writer message = request_for(wire::Request::check);
  message.integer(keys.size());
  for (const std::string& key : keys) message.bytes(key);
  return wire::Reader(request(message.message(), timeout)).byte() != 0;
}

bool TCPStore::do_delete_key(const std::string& key, Milliseconds timeout) {
  return wire::Reader(request(request_for(wire::Request::erase).bytes(key).message(), timeout)).byte() != 0;
}

std::int64_t TCPStore::do_num_keys(Milliseconds timeout) {
  const std::string count = request(request_for(wire::Request::num_keys).message(), timeout);
  return static_cast<std::int64_t>(wire::Reader(count).integer());
}

}  // namespace lockstep::distributed
