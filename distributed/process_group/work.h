#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

namespace lockstep::distributed {

/// Unit of all deadlines.
using Milliseconds = std::chrono::milliseconds;

/// The handle on an operation that runs in the background. Keep or drop it at will: the operation runs to its end
/// either way, and keeps its tensors alive until then. Thread-safe.
class Work {
 public:
  Work(std::string description, Milliseconds default_wait);
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Blocks until the operation has ended and rethrows its error, if any. On success its results are visible to the
  /// caller. Of an operation on CUDA tensors it is the caller's stream that waits, see Note [NCCL executor].
  /// Throws TimeoutError, and leaves the operation running, if `timeout` passes first.
  virtual void wait(Milliseconds timeout);
  /// Waits as long as the group's own deadline can take to act, from when it has begun: those before it have theirs.
  void wait() { wait_for_group(); }
  /// True once the operation has ended, well or badly. Never blocks.
  virtual bool is_completed();
  /// True if it ended without an error.
  bool is_success();
  /// The error it ended with; null while running and on success.
  std::exception_ptr exception();

  /// "all_reduce #41 (float32 [1024], sum)".
  const std::string& description() const { return description_; }

  /// Ends the operation. For backends; the first call counts.
  void complete(std::exception_ptr error = nullptr);

 protected:
  virtual void wait_for_group() { wait(default_wait_); }

  std::string description_;
  Milliseconds default_wait_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool completed_ = false;
  std::exception_ptr error_;
};

/// Keep it to wait, or drop it.
using WorkPtr = std::shared_ptr<Work>;

}  // namespace lockstep::distributed
