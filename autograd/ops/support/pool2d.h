#pragma once

// What the 2-D pools share. For .cpp files only.

#include <cstdint>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/autograd/ops/support/pool2d_geometry.h"
#include "lockstep/autograd/ops/support/window_numbers.h"
#include "lockstep/core/check.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Whether a pool takes integers too.
enum class PoolOf : std::uint8_t { floats, floats_or_integers };

/// Checks what is common to all pools: an [n, c, h, w] or [c, h, w] of a dtype that the pool takes.
inline void check_pool2d_input(const Tensor& x, const char* op, PoolOf of = PoolOf::floats) {
  LOCKSTEP_CHECK(x.defined(), "[{}] x is undefined", op);
  const bool integers = of == PoolOf::floats_or_integers;
  LOCKSTEP_CHECK(x.is_floating_point() || (integers && x.dtype() != kBool),
                 "[{}] expected a floating-point {}x, found {}; cast it", op, integers ? "or integer " : "",
                 name(x.dtype()));
  LOCKSTEP_CHECK(x.dim() == 3 || x.dim() == 4,
                 "[{}] expected x of sizes [n, channels, height, width] or [channels, height, width], found {}", op,
                 to_string(x.sizes()));
  LOCKSTEP_CHECK(x.size(-1) > 0 && x.size(-2) > 0, "[{}] the image is empty: x has sizes {}", op, to_string(x.sizes()));
}

namespace detail {
// As PyTorch: with ceil_mode, a window may hang over the end, but must start inside the image or its left padding.
inline std::int64_t pooled_size(const char* op, const char* side, std::int64_t size, std::int64_t kernel,
                                std::int64_t stride, std::int64_t padding, std::int64_t dilation, bool ceil_mode) {
  LOCKSTEP_CHECK(kernel >= 1 && stride >= 1 && dilation >= 1,
                 "[{}] expected kernel, stride and dilation of at least 1, found {}, {} and {}", op, kernel, stride,
                 dilation);
  LOCKSTEP_CHECK(padding >= 0 && 2 * padding <= kernel, "[{}] expected padding of 0 to half the kernel ({}), found {}",
                 op, kernel / 2, padding);
  const std::int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
  std::int64_t out = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (out - 1) * stride >= size + padding) --out;
  LOCKSTEP_CHECK(room >= 0 || (ceil_mode && room + stride > 0),
                 "[{}] the window is larger than the image: {} {} with padding {}, kernel {}, dilation {}", op, side,
                 size, padding, kernel, dilation);
  return out;
}
}  // namespace detail

/// Checks the arguments of a window pool and works out the sizes. A stride of 0 means the kernel's size.
inline Pool2dGeometry pool2d_geometry(const Tensor& x, const char* op, Size2d kernel, Size2d stride, Size2d padding,
                                      Size2d dilation, bool ceil_mode, PoolOf of = PoolOf::floats) {
  check_pool2d_input(x, op, of);
  check_window_numbers(op, {kernel.h, kernel.w, stride.h, stride.w, padding.h, padding.w, dilation.h, dilation.w});
  Pool2dGeometry g;
  g.h = x.size(-2), g.w = x.size(-1);
  g.planes = x.numel() / (g.h * g.w);
  g.kernel = kernel, g.padding = padding, g.dilation = dilation;
  g.stride = {stride.h == 0 ? kernel.h : stride.h, stride.w == 0 ? kernel.w : stride.w};
  g.oh = detail::pooled_size(op, "height", g.h, kernel.h, g.stride.h, padding.h, dilation.h, ceil_mode);
  g.ow = detail::pooled_size(op, "width", g.w, kernel.w, g.stride.w, padding.w, dilation.w, ceil_mode);
  return g;
}

}  // namespace lockstep
