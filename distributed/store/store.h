#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::distributed {

/// Unit of all deadlines.
using Milliseconds = std::chrono::milliseconds;

/// A store that cannot be reached, or that refused a request.
class StoreError : public Error {
 public:
  using Error::Error;
};

/// A connection to a store that broke. Another request makes a new one, and whether the store has carried out this one
/// is not known.
class ConnectionError : public StoreError {
 public:
  using StoreError::StoreError;
};

/// A small shared dictionary through which the processes of a job find each other. Keys and values are byte strings.
/// Every implementation behaves the same: waits end at their deadline (compared in milliseconds) with TimeoutError,
/// and all methods may be called from several threads at once; a blocked get() does not hold up other callers.
class Store {
 public:
  static constexpr std::size_t kMaxKeyBytes = 4096;                     ///< longer keys are refused
  static constexpr std::size_t kMaxValueBytes = std::size_t{16} << 20;  ///< longer values are refused
  static constexpr std::size_t kMaxWaitKeys = std::size_t{1} << 16;     ///< more keys at once are refused

  /// As a timeout: the store's own, see timeout().
  static constexpr Milliseconds kStoreTimeout{-1};

  virtual ~Store() = default;

  /// Stores `value` under `key`, replacing what was there.
  void set(std::string_view key, std::string_view value, Milliseconds timeout = kStoreTimeout);
  /// The value under `key`; blocks until it exists. Throws TimeoutError at the deadline.
  std::string get(std::string_view key, Milliseconds timeout = kStoreTimeout);
  /// Adds `delta` to the counter under `key` (absent counts as 0) and returns the new value, in one step. Counters are
  /// stored as decimal text. Throws StoreError if the value is no counter or the sum overflows.
  std::int64_t add(std::string_view key, std::int64_t delta, Milliseconds timeout = kStoreTimeout);
  /// Stores `desired` if the value equals `expected` (an absent key equals the empty string), in one step. Returns the
  /// value that the key holds afterwards; empty if it holds none.
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          Milliseconds timeout = kStoreTimeout);
  /// Blocks until all keys exist. Throws TimeoutError, naming a missing key, at the deadline.
  void wait(const std::vector<std::string>& keys, Milliseconds timeout = kStoreTimeout);
  /// True if all keys exist now.
  bool check(const std::vector<std::string>& keys, Milliseconds timeout = kStoreTimeout);
  /// True if the key existed.
  bool delete_key(std::string_view key, Milliseconds timeout = kStoreTimeout);
  /// Number of keys; a PrefixStore counts those of the whole store.
  std::int64_t num_keys(Milliseconds timeout = kStoreTimeout);

  /// What it is and where, for messages: "TCPStore 127.0.0.1:29500".
  virtual std::string describe() const = 0;

  /// Deadline of every request that is not given one. Default: 300 s.
  Milliseconds timeout() const { return timeout_; }
  /// Throws Error unless positive. Not to be called while other threads use the store.
  void set_timeout(Milliseconds timeout);

 protected:
  virtual void do_set(const std::string& key, const std::string& value, Milliseconds timeout) = 0;
  virtual std::string do_get(const std::string& key, Milliseconds timeout) = 0;
  virtual std::int64_t do_add(const std::string& key, std::int64_t delta, Milliseconds timeout) = 0;
  virtual std::string do_compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                                     Milliseconds timeout) = 0;
  virtual void do_wait(const std::vector<std::string>& keys, Milliseconds timeout) = 0;
  virtual bool do_check(const std::vector<std::string>& keys, Milliseconds timeout) = 0;
  virtual bool do_delete_key(const std::string& key, Milliseconds timeout) = 0;
  virtual std::int64_t do_num_keys(Milliseconds timeout) = 0;

 private:
  Milliseconds effective(Milliseconds timeout) const;

  Milliseconds timeout_{300'000};
};

/// Shared by the parts of a job.
using StorePtr = std::shared_ptr<Store>;

/// Where a store on TCP is, who holds it, and who may use it.
struct TCPStorePlace {
  /// An address or a name of the machine that holds it. Others than loopback addresses need a token.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< from 1, the same for all
  /// True for one of its users, which holds it: it listens on `host`, or on all addresses where that is none of this
  /// machine's own.
  bool is_master = false;
  /// Secret that all its users have, and without which nobody gets in; default: LOCKSTEP_TOKEN. Without one, on a
  /// loopback address, these are the processes of one user.
  std::optional<std::string> token = {};
  /// Of connecting, where the one that holds it may start later, and the store's default deadline afterwards.
  Milliseconds timeout{300'000};
};

/// Note [Stores of a program]
/// torch.distributed's stores, for a program's own keys, or for ranks to meet in: InitOptions::store. Within a job
/// there is one already, Job::store().
///
/// Within this process, for ranks that are threads.
StorePtr make_hash_store();
/// In a file that all users can reach, and nobody else: it is made with mode 0600, and one that is there must be so.
/// The last of `world_size` stores that were opened and closed deletes it; 0: it stays. Throws StoreError, with the
/// reason, if it cannot be used.
StorePtr make_file_store(const std::string& path, int world_size = 0, Milliseconds timeout = Milliseconds(300'000));
/// On TCP. That of the master, when it goes, waits for those of the others to go, up to 10 s. Throws Error for a port
/// of 0, StoreError if the port is in use, the token is wrong, or an address other than loopback has none, and
/// TimeoutError if nobody holds it within the timeout.
StorePtr make_tcp_store(const TCPStorePlace& place);
/// Another store, with `prefix` and a slash before every key: keeps the users of one store apart. It has the same
/// timeout.
StorePtr make_prefix_store(const std::string& prefix, StorePtr store);

}  // namespace lockstep::distributed
