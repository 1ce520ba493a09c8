#pragma once

#include <cstdint>

#include "lockstep/core/philox.h"

struct CUstream_st;

namespace lockstep::cuda {

/// Fills `count` floats of device memory with uniform numbers on [low, high): element i gets the word of element i
/// under `key`, as on the CPU; on [0, 1) the numbers are the CPU's bit for bit. Asynchronous on `stream` (null: the
/// default stream) of the current device. Throws Error if the launch fails.
void philox_uniform(float* data, std::int64_t count, float low, float high, philox::Key key,
                    CUstream_st* stream = nullptr);

}  // namespace lockstep::cuda
