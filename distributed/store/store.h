#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
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

}  // namespace lockstep::distributed
