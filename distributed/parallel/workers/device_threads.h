#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/autograd/autocast.h"

namespace lockstep::distributed {

/// One lasting thread for each device but the first, whose work the caller does itself. Threads last, so that what
/// kernels keep by thread (handles, scratch memory) does too.
class DeviceThreads {
 public:
  explicit DeviceThreads(int devices);
  ~DeviceThreads();
  DeviceThreads(const DeviceThreads&) = delete;
  DeviceThreads& operator=(const DeviceThreads&) = delete;

  /// Has the devices, and what is computed on them, for its lifetime: other threads wait. Throws Error, naming `op`, on
  /// a thread that works for a turn of these devices already, which would wait for itself.
  class [[nodiscard]] Turn {
   public:
    Turn(DeviceThreads& threads, const char* op);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    DeviceThreads& threads_;
    std::unique_lock<std::mutex> lock_;
    const Turn* outer_;  // for which this thread works too
  };

  /// In a turn: calls body(0) .. body(devices - 1), each on its device's thread, under the caller's autocast and
  /// AnomalyMode, and returns when all have ended. Then rethrows the exception of the lowest device that threw, if any.
  void run(const std::function<void(int)>& body);

 private:
  void serve(int device);
  void stop();
  void call(int device);
  void call_as_caller(int device);

  std::mutex turns_;  // held by a Turn
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* body_ = nullptr;
  const autocast::Settings* settings_ = nullptr;  // the caller's
  const Turn* turn_ = nullptr;                    // likewise
  bool anomaly_ = false;
  std::uint64_t round_ = 0;
  int running_ = 0;
  bool stopping_ = false;
  std::vector<std::exception_ptr> errors_;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::distributed
