#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// out[b] = the sum, from 0 on and in their order, of the rows weight[index[i]] with bags[i] == b. weight [rows, width]
/// and out [count, width] are float32 or float64, index and bags [n] int64, bags never falling; all contiguous. Indices
/// are in range.
using BagSumsKernel = void(const Tensor& weight, const Tensor& index, const Tensor& bags, const Tensor& out);
BagSumsKernel bag_sums_cpu;

}  // namespace lockstep::detail
