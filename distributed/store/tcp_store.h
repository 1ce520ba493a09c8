#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/own_process.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

struct TCPStoreOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  /// The job's secret, as the server has it.
  std::string token = {};
  /// Deadline of connecting, and the store's default deadline afterwards.
  Milliseconds timeout{300'000};
  /// Of connecting, if it comes before that.
  Deadline connected_by = Deadline::max();
};

/// A store that lives in a TCPStoreServer. Throws ConnectionError if the connection breaks; the next request makes a
/// new one, for which a server that has ended is not waited for longer than a moment. Requests of several threads
/// travel on connections of their own, so a blocked get() holds up nobody. Waits are kept by the server, which answers
/// at the deadline.
class TCPStore final : public Store {
 public:
  /// Connects, waiting for a server that starts later. Throws TimeoutError if none comes, StoreError if the server is
  /// of another kind or the token is wrong.
  explicit TCPStore(TCPStoreOptions options);
  ~TCPStore() override;

  std::string describe() const override;

 protected:
  void do_set(const std::string& key, const std::string& value, Milliseconds timeout) override;
  std::string do_get(const std::string& key, Milliseconds timeout) override;
  std::int64_t do_add(const std::string& key, std::int64_t delta, Milliseconds timeout) override;
  std::string do_compare_set(const std::string& key, const std::string& expected, const std::string& desired,
                             Milliseconds timeout) override;
  void do_wait(const std::vector<std::string>& keys, Milliseconds timeout) override;
  bool do_check(const std::vector<std::string>& keys, Milliseconds timeout) override;
  bool do_delete_key(const std::string& key, Milliseconds timeout) override;
  std::int64_t do_num_keys(Milliseconds timeout) override;

 private:
  FileDescriptor connect(Milliseconds timeout, Deadline deadline, Deadline listens_by = Deadline::max()) const;
  [[noreturn]] void throw_other_user() const;
  /// The body of the response; throws TimeoutError or StoreError if its status says so. `waits`: the server may take
  /// all of `timeout` to answer.
  std::string request(const std::string& message, Milliseconds timeout, bool waits = false);

  TCPStoreOptions options_;
  std::mutex mutex_;
  std::vector<FileDescriptor> idle_;
  OwnProcess made_in_;
};

}  // namespace lockstep::distributed
