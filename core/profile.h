#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace lockstep {

class Shape;
class Tensor;

/// Note [Profile]
/// LOCKSTEP_PROFILE=trace.json records what every thread computes, and writes it when the process exits as a Chrome
/// trace, for chrome://tracing or ui.perfetto.dev: kernels with the shapes and bytes of their tensors, backward
/// functions, optimizer steps, and the share of each pool thread. "%p" in the name stands for the process id; under a
/// launcher (RANK is set) ".rank<N>" goes before the extension. While nothing is recorded, a place that could be costs
/// one load and one branch.

/// Starts recording; what was recorded before is dropped.
void start_profile(std::string path);
/// Stops recording and writes the file. Does nothing if nothing is being recorded. Throws Error if the file cannot be
/// written.
void stop_profile();

namespace profile {

namespace detail {
extern constinit std::atomic<bool> recording;
struct Event;
}  // namespace detail

/// True while a profile is recorded. One load and a branch.
inline bool enabled() {
  return detail::recording.load(std::memory_order_relaxed);
}

/// Records the time from its construction to its destruction as one event of this thread. All strings must outlive the
/// process.
class Scope {
 public:
  /// `category` and `name` must live until the profile is written; string literals do.
  Scope(const char* category, const char* name) {
    if (enabled()) [[unlikely]]
      begin(category, name);
  }
  ~Scope() {
    if (event_) [[unlikely]]
      end();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  /// The functions below may be called only if this is true.
  bool active() const { return event_ != nullptr; }
  /// Adds a tensor's shape and bytes; an undefined one is left out.
  void add(const Tensor& tensor);
  void add(const Shape& shape);
  /// Which of several operations that share a kernel.
  void set_label(const char* label);

 private:
  void begin(const char* category, const char* name);
  void end() noexcept;

  detail::Event* event_ = nullptr;
  const char* outer_ = nullptr;
};

/// Name of the innermost scope of this thread, or null.
const char* current_name();

/// Adds a kernel's argument to its event: tensors with their shapes, and whatever has a profile_label() of its own;
/// nothing for others.
template <typename T>
void add_argument(Scope& scope, const T& argument) {
  if constexpr (requires { scope.set_label(profile_label(argument)); }) {
    scope.set_label(profile_label(argument));
  } else if constexpr (requires { static_cast<const Tensor&>(argument); }) {
    scope.add(argument);
  }
}

}  // namespace profile
}  // namespace lockstep
