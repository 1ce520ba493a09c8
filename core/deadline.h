#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep {

/// Unit of all waits.
using Milliseconds = std::chrono::milliseconds;
/// The moment at which a wait gives up.
using Deadline = std::chrono::steady_clock::time_point;

/// Longer timeouts count as this one, a hundred years: sums of it and the present time are still times.
inline constexpr Milliseconds kLongestTimeout = std::chrono::hours(24 * 365 * 100);

/// The moment after so long a wait from now.
inline Deadline deadline_in(Milliseconds timeout) {
  return std::chrono::steady_clock::now() + std::min(timeout, kLongestTimeout);
}

/// True from that moment on.
inline bool has_passed(Deadline deadline) {
  return std::chrono::steady_clock::now() >= deadline;
}

/// Rounded up, so that a wait of this length ends at the deadline or after it; never negative.
inline Milliseconds time_left(Deadline deadline) {
  return std::max(std::chrono::ceil<Milliseconds>(deadline - std::chrono::steady_clock::now()), Milliseconds(0));
}

}  // namespace lockstep
