#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// sum: out[i] = x[0] + ... + x[i]. product: the same with factors. product_before: out[i] = x[0] * ... * x[i - 1].
/// recurrence: out[i] = x[i] + y[i - 1] * out[i - 1], what cumprod's gradient is made of.
enum class Scan : std::uint8_t { sum, product, product_before, recurrence };

/// Along the middle one of three dimensions, from the end if `reverse` (then i - 1 is i + 1). x, y (undefined unless
/// asked for) and out are contiguous, of one dtype and at least one element; computed as in Note [Compute types].
using ScanKernel = void(Scan scan, const Tensor& x, const Tensor& y, const Tensor& out, bool reverse);
ScanKernel scan_cpu, scan_cuda;

}  // namespace lockstep
