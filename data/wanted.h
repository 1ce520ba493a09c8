#pragma once

// Whether what a thread makes is still wanted. For .cpp files only.

#include <atomic>
#include <utility>

namespace lockstep::data {

/// Thrown where a batch that nobody wants any more is given up.
struct Unwanted {};

/// While it lives, check_wanted() on this thread throws Unwanted once `stopping` is true: data sets that make samples
/// one by one need not make the rest of a batch.
class WantedUntil {
 public:
  explicit WantedUntil(const std::atomic<bool>& stopping) : outer_(std::exchange(current_, &stopping)) {}
  ~WantedUntil() { current_ = outer_; }
  WantedUntil(const WantedUntil&) = delete;
  WantedUntil& operator=(const WantedUntil&) = delete;

  static void check() {
    if (current_ && *current_) throw Unwanted();
  }

 private:
  static inline thread_local const std::atomic<bool>* current_ = nullptr;
  const std::atomic<bool>* outer_;
};

}  // namespace lockstep::data
