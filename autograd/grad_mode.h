#pragma once

#include "lockstep/core/thread_pool.h"

namespace lockstep {

/// Whether operations on this thread are recorded for backward(). On by default.
class GradMode {
 public:
  static bool enabled() { return enabled_; }                 ///< on this thread
  static void set_enabled(bool value) { enabled_ = value; }  ///< on this thread; prefer the guards below

 private:
  LOCKSTEP_INITIAL_EXEC static thread_local constinit bool enabled_;
};

/// Switches recording off (or on) on this thread for its lifetime.
class GradModeGuard {
 public:
  explicit GradModeGuard(bool enabled) : saved_(GradMode::enabled()) { GradMode::set_enabled(enabled); }
  ~GradModeGuard() { GradMode::set_enabled(saved_); }
  GradModeGuard(const GradModeGuard&) = delete;
  GradModeGuard& operator=(const GradModeGuard&) = delete;

 private:
  bool saved_;
};

/// Switches recording off on this thread for its lifetime, as torch::NoGradGuard.
class NoGradGuard : public GradModeGuard {
 public:
  NoGradGuard() : GradModeGuard(false) {}
};

/// Switches recording on again, inside a NoGradGuard.
class EnableGradGuard : public GradModeGuard {
 public:
  EnableGradGuard() : GradModeGuard(true) {}
};

}  // namespace lockstep
