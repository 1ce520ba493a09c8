// Windows of 2 x 2 with stride 2 in float32, in loops that the compiler turns into vector code; the reference serves
// the rest.

#include "autograd/ops/max_pool2d/max_pool2d_kernels.h"
#include "core/cpu/vec8.h"
#include "core/thread_pool.h"

namespace lockstep {
namespace {

bool is_two_by_two(const Pool2dGeometry& g, const Tensor& t) {
  return t.dtype() == kFloat32 && g.kernel == Size2d(2) && g.stride == Size2d(2) && g.padding == Size2d(0) &&
         g.dilation == Size2d(1) && g.oh == g.h / 2 && g.ow == g.w / 2;
}

using cpu::IntVec8;
using cpu::kLanes;
using cpu::load8;
using cpu::store8;
using cpu::Vec8;

// Lanes in which `value` takes the place of `best`: it is greater, or NaN.
[[gnu::always_inline]] inline IntVec8 wins(Vec8 value, Vec8 best) {
  return (value > best) | (value != value);
}
inline bool wins(float value, float best) {
  return value > best || value != value;
}

// Every second element of the 16 from p: from p[0] or from p[1].
[[gnu::always_inline]] inline Vec8 load_even(const float* p) {
  return __builtin_shuffle(load8(p), load8(p + kLanes), IntVec8{0, 2, 4, 6, 8, 10, 12, 14});
}
[[gnu::always_inline]] inline Vec8 load_odd(const float* p) {
  return __builtin_shuffle(load8(p), load8(p + kLanes), IntVec8{1, 3, 5, 7, 9, 11, 13, 15});
}
[[gnu::always_inline]] inline void store_alternating(float* p, Vec8 even, Vec8 odd) {
  store8(p, __builtin_shuffle(even, odd, IntVec8{0, 8, 1, 9, 2, 10, 3, 11}));
  store8(p + kLanes, __builtin_shuffle(even, odd, IntVec8{4, 12, 5, 13, 6, 14, 7, 15}));
}

// Calls vector(x) for runs of eight outputs, and scalar(x) for each output if there are fewer than eight. The last run
// may repeat outputs of the one before.
template <typename Vector, typename Scalar>
[[gnu::always_inline]] inline void for_each_run(std::int64_t width, Vector&& vector, Scalar&& scalar) {
  if (width < kLanes) {
    for (std::int64_t x = 0; x < width; ++x) scalar(x);
    return;
  }
  std::int64_t x = 0;
  for (; x + kLanes <= width; x += kLanes) vector(x);
  if (x < width) vector(width - kLanes);
}

template <bool kPositions>
void pool_row(const float* upper, const float* lower, std::int64_t width, float* out, std::uint8_t* positions) {
  for_each_run(
      width,
      [&](std::int64_t x) {
        Vec8 best = load_even(upper + 2 * x);
        IntVec8 position{};
        const auto challenge = [&](Vec8 value, std::int32_t index) {
          const IntVec8 won = wins(value, best);
          best = won ? value : best;
          if constexpr (kPositions) position = won ? IntVec8{} + index : position;
        };
        challenge(load_odd(upper + 2 * x), 1);
        challenge(load_even(lower + 2 * x), 2);
        challenge(load_odd(lower + 2 * x), 3);
        store8(out + x, best);
        if constexpr (kPositions) {
          const cpu::ByteVec8 bytes = __builtin_convertvector(position, cpu::ByteVec8);
          std::memcpy(positions + x, &bytes, sizeof bytes);
        }
      },
      [&](std::int64_t x) {
        const float values[4] = {upper[2 * x], upper[2 * x + 1], lower[2 * x], lower[2 * x + 1]};
        int position = 0;
        for (int i = 1; i < 4; ++i) position = wins(values[i], values[position]) ? i : position;
        out[x] = values[position];
        if constexpr (kPositions) positions[x] = static_cast<std::uint8_t>(position);
      });
}

void spread_row(const float* grad, const std::uint8_t* positions, std::int64_t width, float* upper, float* lower) {
  for_each_run(
      width,
      [&](std::int64_t x) {
        cpu::ByteVec8 bytes;
        std::memcpy(&bytes, positions + x, sizeof bytes);
        const IntVec8 position = __builtin_convertvector(bytes, IntVec8);
        const Vec8 value = load8(grad + x);
        const auto at = [&](std::int32_t index) { return position == index ? value : Vec8{}; };
        store_alternating(upper + 2 * x, at(0), at(1));
        store_alternating(lower + 2 * x, at(2), at(3));
      },
      [&](std::int64_t x) {
        const auto at = [&](int index) { return positions[x] == index ? grad[x] : 0.0f; };
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
    for (std::int64_t row = begin * g.oh; row < end * g.oh; ++row) {
      const float* upper = in + row / g.oh * g.h * g.w + row % g.oh * 2 * g.w;
      if (where)
        pool_row<true>(upper, upper + g.w, g.ow, maxima + row * g.ow, where + row * g.ow);
      else
        pool_row<false>(upper, upper + g.w, g.ow, maxima + row * g.ow, nullptr);
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
