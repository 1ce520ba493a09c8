// Windows of 2 x 2 with stride 2 in float32, in loops that the compiler turns into vector code; the reference serves
// the rest.

#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_rows.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

bool is_two_by_two(const Pool2dGeometry& g, const Tensor& t) {
  return t.dtype() == kFloat32 && is_max_pool_2x2(g);
}

using namespace max_pool_rows;

void spread_row(const float* grad, const std::uint8_t* positions, std::int64_t width, float* upper, float* lower) {
  for_each_run(
      width,
      [&](std::int64_t x) {
        cpu::ByteVec8 bytes;
        std::memcpy(&bytes, positions + x, sizeof bytes);
        const IntVec8 position = __builtin_convertvector(bytes, IntVec8) & 3;
        const Vec8 value = load8(grad + x);
        const auto at = [&](std::int32_t index) { return position == index ? value : Vec8{}; };
        store_alternating(upper + 2 * x, at(0), at(1));
        store_alternating(lower + 2 * x, at(2), at(3));
      },
      [&](std::int64_t x) {
        const auto at = [&](int index) { return (positions[x] & 3) == index ? grad[x] : 0.0f; };
        upper[2 * x] = at(0);
        upper[2 * x + 1] = at(1);
        lower[2 * x] = at(2);
        lower[2 * x + 1] = at(3);
      });
}

}  // namespace

void max_pool2d_forward_cpu(const Pool2dGeometry& g, const Tensor& x, const Tensor& out, const Tensor& positions) {
  if (!is_two_by_two(g, x)) return max_pool2d_forward_reference(g, x, out, positions);
  const float* in = x.data<float>();
  float* maxima = out.data<float>();
  std::uint8_t* where = positions.defined() ? positions.data<std::uint8_t>() : nullptr;
  parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const float* image = in + plane * g.h * g.w;
      float* to = maxima + plane * g.oh * g.ow;
      if (where)
        pool_plane<true, ReluPlace::none>(image, g.w, g.oh, g.ow, to, where + plane * g.oh * g.ow);
      else
        pool_plane<false, ReluPlace::none>(image, g.w, g.oh, g.ow, to, nullptr);
    }
  });
}

void max_pool2d_backward_cpu(const Pool2dGeometry& g, const Tensor& grad, const Tensor& positions,
                             const Tensor& x_grad) {
  if (!is_two_by_two(g, grad)) return max_pool2d_backward_reference(g, grad, positions, x_grad);
  const float* d = grad.data<float>();
  const std::uint8_t* where = positions.data<std::uint8_t>();
  parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      float* image = x_grad.data<float>() + plane * g.h * g.w;
      for (std::int64_t y = 0; y < g.oh; ++y) {
        float* upper = image + 2 * y * g.w;
        const std::int64_t row = (plane * g.oh + y) * g.ow;
        spread_row(d + row, where + row, g.ow, upper, upper + g.w);
        if (g.w % 2 != 0) upper[g.w - 1] = upper[2 * g.w - 1] = 0.0f;  // a column that no window covers
      }
      if (g.h % 2 != 0) std::fill_n(image + (g.h - 1) * g.w, g.w, 0.0f);
    }
  });
}

void max_pool2d_relu_grad_cpu(const Tensor& grad, const Tensor& positions, const Tensor& out) {
  const float* d = grad.data<float>();
  const std::uint8_t* where = positions.data<std::uint8_t>();
  float* to = out.data<float>();
  parallel_for(grad.numel(), cpu::kElementBlock, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] = where[i] & kMaxPoolNotPositive ? 0.0f : d[i];
  });
}

}  // namespace lockstep
