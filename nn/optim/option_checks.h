#pragma once

// Checks of optimizers' options. For .cpp files only.

#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep::optim {

/// Throws Error, naming the optimizer and the option, unless `value` is finite and not negative.
inline void check_at_least_zero(const char* optimizer, const char* what, double value) {
  LOCKSTEP_CHECK(std::isfinite(value) && value >= 0.0, "[{}] expected a finite {} >= 0, found {}", optimizer, what,
                 value);
}

}  // namespace lockstep::optim
