#pragma once

// The sizes of a 2-D pool. For .cpp and .cu files only.

#include <algorithm>
#include <cstdint>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Windows over `planes` images of h x w, giving planes of oh x ow.
struct Pool2dGeometry {
  std::int64_t planes = 0, h = 0, w = 0, oh = 0, ow = 0;
  Size2d kernel, stride, padding, dilation = 1;
  /// On a device: of images that lie as [n, h, w, channels] (Note [Channels last]). 1 is either order.
  std::int64_t channels = 1;

  /// Planes to a block of work; see Note [Thread-independent results].
  std::int64_t planes_per_block() const { return std::max<std::int64_t>(1, cpu::kElementBlock / (h * w)); }
  /// Sizes of the result for an input of sizes [n, c, h, w] or [c, h, w].
  Shape output_sizes(Shape sizes) const {
    sizes[sizes.dim() - 2] = oh;
    sizes[sizes.dim() - 1] = ow;
    return sizes;
  }
};

}  // namespace lockstep
