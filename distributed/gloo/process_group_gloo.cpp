#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"
#include "lockstep/distributed/collectives/transport.h"
#include "lockstep/distributed/gloo/gloo.h"
#include "lockstep/distributed/process_group/meeting.h"
#include "lockstep/distributed/process_group/transport_executor.h"
#include "lockstep/distributed/store/prefix_store.h"
#include "lockstep/distributed/store/socket.h"

namespace lockstep::distributed::gloo {
namespace {

/// Gloo waits so many times its timeout for a connection, one that a rank never makes which has ended meanwhile. Of no
/// effect later, since each wait for a message has a timeout of its own.
constexpr int kConnectShare = 5;

/// Our store in Gloo's terms.
class StoreAdapter final : public ::gloo::rendezvous::Store {
 public:
  explicit StoreAdapter(distributed::Store& store) : store_(store) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set(key, std::string_view(data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { store_.wait(keys); }
  /// Gloo's timeout is that of a connection; see kConnectShare.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { store_.wait(keys); }

 private:
  distributed::Store& store_;
};

/// Note [Gloo]
/// Gloo moves bytes for us: unbound buffers, which are sends and receives matched by rank and tag. Its collectives are
/// not used: ours (see Note [Collectives]) are as fast, reduce every dtype, in rank order, and keep mismatched calls
/// apart. What to know of its TCP transport:
/// - a wait that times out breaks all connections, so the group is dead after it, as it is by our contract;
/// - when a peer dies in the middle of a message, the buffer that was being filled is not told. Waits here end all the
///   same: by their deadline at the latest, sooner when another rank declares the failure and abort() is called;
/// - a pending wait of another thread is ended through abortWaitSend() and abortWaitRecv() of its buffer.
class GlooTransport final : public Transport {
 public:
  GlooTransport(std::shared_ptr<::gloo::rendezvous::Context> context, Way way)
      : context_(std::move(context)), way_(way) {}

  std::unique_ptr<Request> send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    auto request = std::make_unique<GlooRequest>(*this, peer, true, const_cast<void*>(data), bytes);
    request->start(tag);
    return request;
  }

  std::unique_ptr<Request> recv(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    auto request = std::make_unique<GlooRequest>(*this, peer, false, data, bytes);
    request->start(tag);
    return request;
  }

  void abort() override {
    std::unique_lock lock(mutex_);
    aborted_ = true;
    for (GlooRequest* request : waiting_) request->interrupt();
    // The others' waits for this rank end when its connections do; nobody here may be using them then.
    idle_.wait_for(lock, std::chrono::seconds(5), [this] { return waiting_.empty(); });
    if (!waiting_.empty() || closed_) return;
    closed_ = true;
    lock.unlock();
    context_->closeConnections();
  }

 private:
  class GlooRequest final : public Request {
   public:
    GlooRequest(GlooTransport& transport, int peer, bool is_send, void* data, std::size_t bytes)
        : transport_(transport), peer_(peer), is_send_(is_send) {
      transport_.check_usable(peer_);
      buffer_ = transport_.context_->createUnboundBuffer(data, bytes);
    }

    void start(std::uint64_t tag) {
      translate([&] { is_send_ ? buffer_->send(peer_, tag) : buffer_->recv(peer_, tag); });
    }

    void wait(Deadline deadline) override {
      // Gloo takes a timeout of 0 for none at all.
      const Milliseconds left = std::max(time_left(deadline), Milliseconds(1));
      transport_.begin_wait(*this);
      bool ended = false;
      try {
        translate([&] { ended = is_send_ ? buffer_->waitSend(left) : buffer_->waitRecv(left); });
      } catch (...) {
        transport_.end_wait(*this);
        if (has_passed(deadline))
          throw TransportError(peer_, fmt::format("timed out waiting for rank {}", peer_), transport_.way_);
        throw;
      }
      transport_.end_wait(*this);
      if (!ended)
        throw TransportError(peer_, fmt::format("gave up waiting for rank {}", peer_), transport_.way_if_cut());
    }

    /// Ends a wait of another thread.
    void interrupt() { is_send_ ? buffer_->abortWaitSend() : buffer_->abortWaitRecv(); }

   private:
    template <typename Body>
    void translate(Body&& body) {
      try {
        body();
      } catch (const std::exception& error) {
        throw TransportError(peer_, fmt::format("the connection to rank {} is lost ({})", peer_, first_line(error)),
                             transport_.way_if_cut());
      }
    }

    /// What Gloo says, without the source file that it says it in.
    static std::string first_line(const std::exception& error) {
      std::string text = error.what();
      text = text.substr(0, text.find('\n'));
      if (text.starts_with('['))
        if (const std::size_t end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
      return text;
    }

    GlooTransport& transport_;
    int peer_;
    bool is_send_;
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer_;
  };

  /// Of a wait that did not last until its deadline: inside a machine another rank's failure has ended it.
  Way way_if_cut() const { return way_ == Way::loopback ? Way::none : way_; }

  void check_usable(int peer) {
    const std::lock_guard lock(mutex_);
    if (aborted_) throw TransportError(peer, "the group was aborted");
  }

  void begin_wait(GlooRequest& request) {
    const std::lock_guard lock(mutex_);
    waiting_.insert(&request);
    if (aborted_) request.interrupt();
  }

  void end_wait(GlooRequest& request) {
    const std::lock_guard lock(mutex_);
    waiting_.erase(&request);
    if (waiting_.empty()) idle_.notify_all();
  }

  std::shared_ptr<::gloo::rendezvous::Context> context_;
  const Way way_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::set<GlooRequest*> waiting_;
  bool aborted_ = false;
  bool closed_ = false;
};

/// Gloo's own thread inherits the signal mask of the thread that makes it; see block_sigpipe() for why it matters.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~SigpipeBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

constexpr const char* kRaiseLimit = "raise the limit on open files (ulimit -n)";

bool is_out_of_descriptors(std::string_view message) {
  return message.find(std::strerror(EMFILE)) != std::string_view::npos;
}

/// Gloo itself crashes on a name that it cannot resolve.
void check_address(const std::string& address, Milliseconds timeout) {
  try {
    listen_on(address, 0, deadline_in(timeout));
  } catch (const Error& error) {
    LOCKSTEP_CHECK(!is_out_of_descriptors(error.what()), "[gloo] no connection can be made: {}", error.what());
    LOCKSTEP_CHECK(false,
                   "[gloo] '{}' is neither an interface nor an address of this machine ({}); set LOCKSTEP_INTERFACE to "
                   "one of them, or leave it unset",
                   address, error.what());
  }
}

}  // namespace

bool is_available() {
  return true;
}

ProcessGroupPtr make_process_group(const StorePtr& store, const ProcessGroupOptions& group, const Options& options) {
  LOCKSTEP_CHECK(store, "[gloo] needs a store to meet the other ranks; found none");
  if (options.interface.empty()) check_address(options.address, group.timeout);
  meet(*store, group, "gloo");
  try {
    ::gloo::transport::tcp::attr attr;
    // Gloo looks at one of the two.
    if (options.interface.empty())
      attr.hostname = options.address;
    else
      attr.iface = options.interface;
    const bool inside = options.interface.empty() ? is_loopback(options.address, deadline_in(group.timeout))
                                                  : options.interface == "lo";
    const Way way = inside ? Way::loopback : Way::network;
    const SigpipeBlocked blocked;
    auto device = ::gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<::gloo::rendezvous::Context>(group.rank, group.world_size);
    context->setTimeout(std::max(group.timeout / kConnectShare, Milliseconds(1)));
    PrefixStore addresses("gloo", store);
    addresses.set_timeout(group.timeout);
    StoreAdapter adapter(addresses);
    context->connectFullMesh(adapter, device);
    return make_transport_group("gloo", group, std::make_unique<GlooTransport>(std::move(context), way),
                                std::make_shared<PrefixStore>("monitor", store));
  } catch (const std::exception& error) {
    const std::string lost = lost_ranks(*store, group);
    throw ProcessGroupError(fmt::format("[gloo] rank {} cannot connect to the other ranks from {}: {}; {}", group.rank,
                                        options.interface.empty() ? options.address : options.interface, error.what(),
                                        is_out_of_descriptors(error.what()) ? kRaiseLimit
                                        : lost.empty()
                                            ? "set LOCKSTEP_INTERFACE to the interface or address that they can reach"
                                            : lost));
  }
}

}  // namespace lockstep::distributed::gloo
