#pragma once

#include <string>

#include "lockstep/core/device.h"

namespace lockstep::distributed {

/// The SHA-256, in hex, of what a short calculation on `device` gives: products, a convolution with its gradients,
/// elementary functions, a sum and numbers too small to be normal, all of fixed inputs. Processes whose hashes differ
/// do not compute the same bits, whatever the reason: a library, a setting of its own, a mode of the processor. A few
/// milliseconds. Draws no random numbers.
std::string arithmetic_hash(Device device);

}  // namespace lockstep::distributed
