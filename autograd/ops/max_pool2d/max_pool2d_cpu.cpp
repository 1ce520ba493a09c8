// Windows of 2 x 2 with stride 2 in float32, in loops that the compiler turns into vector code; the reference serves
// the rest.

#include "autograd/ops/max_pool2d/max_pool2d_kernels.h"
#include "core/thread_pool.h"

namespace lockstep {
namespace {

bool is_two_by_two(const Pool2dGeometry& g, const Tensor& t) {
  return t.dtype() == kFloat32 && g.kernel == Size2d(2) && g.stride == Size2d(2) && g.padding == Size2d(0) &&
         g.dilation == Size2d(1) && g.oh == g.h / 2 && g.ow == g.w / 2;
}

// True if `value` takes the place of `best`: it is greater, or NaN.
[[gnu::always_inline]] inline bool wins(float value, float best) {
  return (value > best) | (value != value);
}

void pool_row(const float* __restrict upper, const float* __restrict lower, std::int64_t width, float* __restrict out,
              std::uint8_t* __restrict positions) {
  for (std::int64_t x = 0; x < width; ++x) {
    const float a = upper[2 * x], b = upper[2 * x + 1], c = lower[2 * x], d = lower[2 * x + 1];
    float best = a;
    int position = 0;
    position = wins(b, best) ? 1 : position;
    best = wins(b, best) ? b : best;
    position = wins(c, best) ? 2 : position;
    best = wins(c, best) ? c : best;
    position = wins(d, best) ? 3 : position;
    best = wins(d, best) ? d : best;
    out[x] = best;
    positions[x] = static_cast<std::uint8_t>(position);
  }
}

void pool_row(const float* __restrict upper, const float* __restrict lower, std::int64_t width, float* __restrict out) {
  for (std::int64_t x = 0; x < width; ++x) {
    const float a = upper[2 * x], b = upper[2 * x + 1], c = lower[2 * x], d = lower[2 * x + 1];
    const float left = wins(b, a) ? b : a, right = wins(d, c) ? d : c;
    out[x] = wins(right, left) ? right : left;
  }
}

void spread_row(const float* __restrict grad, const std::uint8_t* __restrict positions, std::int64_t width,
                float* __restrict upper, float* __restrict lower) {
  for (std::int64_t x = 0; x < width; ++x) {
    const float value = grad[x];
    const int position = positions[x];
    upper[2 * x] = position == 0 ? value : 0.0f;
    upper[2 * x + 1] = position == 1 ? value : 0.0f;
    lower[2 * x] = position == 2 ? value : 0.0f;
    lower[2 * x + 1] = position == 3 ? value : 0.0f;
  }
}

}  // namespace

void max_pool2d_forward_cpu(const Pool2dGeometry& g, const Tensor& x, const Tensor& out, const Tensor& positions) {
  if (!is_two_by_two(g, x)) return max_pool2d_forward_reference(g, x, out, positions);
  const float* in = x.data<float>();
  float* maxima = out.data<float>();
  std::uint8_t* where = positions.defined() ? positions.data<std::uint8_t>() : nullptr;
  parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin * g.oh; row < end * g.oh; ++row) {
      const float* upper = in + row / g.oh * g.h * g.w + row % g.oh * 2 * g.w;
      if (where)
        pool_row(upper, upper + g.w, g.ow, maxima + row * g.ow, where + row * g.ow);
      else
        pool_row(upper, upper + g.w, g.ow, maxima + row * g.ow);
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

}  // namespace lockstep
