#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::testing {

/// Hostile clients of a port of this machine, for as long as the object lives: so many connections at a time, opened
/// again when they are dropped. By turns they are silent, send garbage as fast as it is taken (256 KiB each: what
/// nobody reads lies in the kernel's memory), send a byte now and then, and answer the greeting of a store with a proof
/// that is wrong.
class Flood {
 public:
  Flood(int port, int connections);
  ~Flood();
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;

  /// Open now.
  int open() const { return open_; }
  /// Opened altogether.
  int opened() const { return opened_; }
  std::int64_t bytes_sent() const { return bytes_sent_; }

 private:
  enum class Kind { silent, garbage, slow, wrong_proof };
  struct Client {
    Kind kind;
    int fd = -1;
    std::chrono::steady_clock::time_point next{};  // nothing is done before
    std::size_t sent = 0;
  };
  void run();
  void connect(Client& client);
  void drop(Client& client);
  void look_after(Client& client, std::chrono::steady_clock::time_point now);
  bool send(Client& client, std::size_t bytes);

  int port_;
  std::string garbage_;
  std::vector<Client> clients_;
  std::atomic<int> open_{0};
  std::atomic<int> opened_{0};
  std::atomic<std::int64_t> bytes_sent_{0};
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace lockstep::testing
