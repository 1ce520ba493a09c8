#pragma once

// What a convolution's stride makes of the gradient of its image. For .cpp files only.

#include <cstdint>
#include <vector>

#include "lockstep/core/cpu/conv/conv.h"
#include "lockstep/core/cpu/conv/planes.h"

namespace lockstep::cpu::conv_detail {

/// The rows or columns of x that a stride leaves the same remainder: which taps reach them, and where from.
struct Phase {
  std::int64_t first, count;          ///< x[first + q * stride] for q < count
  std::vector<std::int64_t> taps;     ///< rising
  std::vector<std::int64_t> offsets;  ///< tap i is multiplied with grad[q + offsets[i]]
};

/// Of each remainder, for x of `size` rows or columns.
std::vector<Phase> phases_of(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                             std::int64_t dilation);

/// The result's gradient with zeros around it, as far as any of the phases of rows and columns reads.
Planes planes_of(const Conv& conv, const std::vector<Phase>& rows, const std::vector<Phase>& columns);

}  // namespace lockstep::cpu::conv_detail
