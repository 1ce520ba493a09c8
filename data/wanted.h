#pragma once

// Whether what a thread makes is still wanted. For .cpp files only.

#include <atomic>
#include <utility>

namespace lockstep::data {

/// Thrown where a batch that nobody wants any more is given up.
struct Unwanted {};

class Dataset;

/// While it lives, check() on this thread throws Unwanted once `stopping` is true: a data set that makes samples one by
/// one need not make the rest of a batch. For the set that a loader reads alone, and not for one that a program's own
/// calls, whose code would see the exception.
class WantedUntil {
 public:
  WantedUntil(const Dataset& set, const std::atomic<bool>& stopping)
      : set_(set), stopping_(stopping), outer_(std::exchange(current_, this)) {}
  /// Of `inner`, of which `outer` is made: what that was until now.
  WantedUntil(const Dataset& outer, const Dataset& inner)
      : WantedUntil(inner, current_ && &current_->set_ == &outer ? current_->stopping_ : never_) {}
  ~WantedUntil() { current_ = outer_; }
  WantedUntil(const WantedUntil&) = delete;
  WantedUntil& operator=(const WantedUntil&) = delete;

  static void check(const Dataset& set) {
    if (current_ && &current_->set_ == &set && current_->stopping_) throw Unwanted();
  }

 private:
  static inline thread_local const WantedUntil* current_ = nullptr;
  static inline const std::atomic<bool> never_ = false;
  const Dataset& set_;
  const std::atomic<bool>& stopping_;
  const WantedUntil* outer_;
};

}  // namespace lockstep::data
