#pragma once

// For kernels' .cpp files only.

#include <cstdint>

#include "lockstep/core/profile.h"

namespace lockstep::profile {

/// Adds to the floating-point operations of the innermost event of this thread, for the table's GFLOP/s. For kernels
/// that are done when they return; sums over zeros that are skipped count too.
void add_flops_of_event(double flops);

/// The same while a profile is recorded: `sums` multiply-adds, two operations each.
inline void add_multiply_adds(std::int64_t sums) {
  if (enabled()) [[unlikely]]
    add_flops_of_event(2.0 * static_cast<double>(sums));
}

}  // namespace lockstep::profile
