#pragma once

#include <cstdint>
#include <type_traits>

#include "lockstep/core/dispatch.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// sum: out[i] = x[0] + ... + x[i]. product: the same with factors. product_before: out[i] = x[0] * ... * x[i - 1].
/// recurrence: out[i] = x[i] + y[i - 1] * out[i - 1], what cumprod's gradient is made of; just x[i] where y[i - 1] is
/// 0.
enum class Scan : std::uint8_t { sum, product, product_before, recurrence };

/// What values of T are added up and multiplied in, from one element to the next: double for float32, as in PyTorch.
template <typename T>
using scan_t = std::conditional_t<std::is_same_v<T, float>, double, compute_t<T>>;

/// Along the middle one of three dimensions, from the end if `reverse` (then i - 1 is i + 1). x, y (undefined unless
/// asked for) and out are contiguous, of one dtype and at least one element; computed in scan_t.
using ScanKernel = void(Scan scan, const Tensor& x, const Tensor& y, const Tensor& out, bool reverse);
ScanKernel scan_cpu, scan_cuda;

/// out[o, 0, i] = the product of x[o, :, i]. x is [outer, length, inner], contiguous, with elements, out [outer, 1,
/// inner] of the same dtype. Floating-point factors meet in double, in an order that depends on the sizes alone.
using ProductKernel = void(const Tensor& x, const Tensor& out);
ProductKernel product_cpu;

/// Running extremes: the largest (smallest) elements so far, or NaN from the first one on, and (int64) their last
/// places. x is [outer, length, inner], contiguous, with elements; so are values and indices.
using RunningExtremeKernel = void(bool largest, const Tensor& x, const Tensor& values, const Tensor& indices);
RunningExtremeKernel running_extreme_cpu;
/// out = log(exp(x[0]) + ... + exp(x[i])), as above, from the end if `reverse`. Floating point, in double.
using LogCumsumExpKernel = void(const Tensor& x, const Tensor& out, bool reverse);
LogCumsumExpKernel logcumsumexp_cpu;

}  // namespace lockstep
