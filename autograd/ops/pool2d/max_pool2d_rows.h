#pragma once

// Max pooling of one plane by windows of 2 x 2 with stride 2, float32. For .cpp files only.

#include <algorithm>
#include <cstdint>

#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_wide.h"
#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/cpu/wide_functions.h"

namespace lockstep::max_pool_rows {

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

[[gnu::always_inline]] inline Vec8 positive(Vec8 value) {
  return value < Vec8{} ? Vec8{} : value;
}
inline float positive(float value) {
  return value < 0.0f ? 0.0f : value;
}

// Eight outputs: their windows' upper rows are the elements of a0 and then a1, their lower rows those of b0 and b1.
template <bool kPositions, ReluPlace kRelu>
[[gnu::always_inline]] inline void pool8(const float* a0, const float* a1, const float* b0, const float* b1, float* out,
                                         std::uint8_t* positions) {
  const auto load = [](const float* p) { return kRelu == ReluPlace::before ? positive(load8(p)) : load8(p); };
  const Vec8 upper[2] = {load(a0), load(a1)}, lower[2] = {load(b0), load(b1)};
  Vec8 best = __builtin_shufflevector(upper[0], upper[1], 0, 2, 4, 6, 8, 10, 12, 14);
  IntVec8 position{};
  const auto challenge = [&](Vec8 value, std::int32_t index) {
    const IntVec8 won = wins(value, best);
    best = won ? value : best;
    if constexpr (kPositions) position = won ? IntVec8{} + index : position;
  };
  challenge(__builtin_shufflevector(upper[0], upper[1], 1, 3, 5, 7, 9, 11, 13, 15), 1);
  challenge(__builtin_shufflevector(lower[0], lower[1], 0, 2, 4, 6, 8, 10, 12, 14), 2);
  challenge(__builtin_shufflevector(lower[0], lower[1], 1, 3, 5, 7, 9, 11, 13, 15), 3);
  if constexpr (kPositions) position |= (best <= Vec8{}) & kMaxPoolNotPositive;
  store8(out, kRelu == ReluPlace::after ? positive(best) : best);
  if constexpr (kPositions) {
    cpu::narrow8(positions, position);
  }
}

template <bool kPositions, ReluPlace kRelu>
void pool1(const float* upper, const float* lower, float* out, std::uint8_t* positions) {
  const auto load = [](const float& value) { return kRelu == ReluPlace::before ? positive(value) : value; };
  const float values[4] = {load(upper[0]), load(upper[1]), load(lower[0]), load(lower[1])};
  int position = 0;
  for (int i = 1; i < 4; ++i) position = wins(values[i], values[position]) ? i : position;
  const float best = values[position];
  *out = kRelu == ReluPlace::after ? positive(best) : best;
  if constexpr (kPositions)
    *positions = static_cast<std::uint8_t>(best <= 0.0f ? position | kMaxPoolNotPositive : position);
}

/// A plane of rows of `width` elements to oh x ow outputs, ow <= width / 2. With kPositions, their positions as
/// max_pool2d_kernels.h has them, of what goes into the pool.
template <bool kPositions, ReluPlace kRelu>
void pool_plane(const float* in, std::int64_t width, std::int64_t oh, std::int64_t ow, float* out,
                std::uint8_t* positions) {
  const auto where = [=](std::int64_t i) -> std::uint8_t* { return kPositions ? positions + i : nullptr; };
  std::int64_t y = 0;
  if (ow == 4)  // two rows of outputs to a vector
    for (; y + 2 <= oh; y += 2) {
      const float* upper = in + 2 * y * width;
      pool8<kPositions, kRelu>(upper, upper + 2 * width, upper + width, upper + 3 * width, out + y * ow, where(y * ow));
    }
  for (; y < oh; ++y) {
    const float *upper = in + 2 * y * width, *lower = upper + width;
    float* row = out + y * ow;
    for_each_run(
        ow,
        [&](std::int64_t x) {
          const std::int64_t i = 2 * x;
          pool8<kPositions, kRelu>(upper + i, upper + i + kLanes, lower + i, lower + i + kLanes, row + x,
                                   where(y * ow + x));
        },
        [&](std::int64_t x) { pool1<kPositions, kRelu>(upper + 2 * x, lower + 2 * x, row + x, where(y * ow + x)); });
  }
}

// Eight gradients to the places of their windows' maxima, zeros to the others. The windows' upper rows are the elements
// of a0 and then a1, their lower rows those of b0 and b1.
[[gnu::always_inline]] inline void spread8(const float* grad, const std::uint8_t* positions, float* a0, float* a1,
                                           float* b0, float* b1) {
  const IntVec8 position = cpu::widen8(positions) & 3;
  const Vec8 value = load8(grad);
  const auto spread = [](IntVec8 where, IntVec8 wanted, Vec8 values, float* to) {
    store8(to, reinterpret_cast<Vec8>((where == wanted) & reinterpret_cast<IntVec8>(values)));
  };
  const IntVec8 in_upper{0, 1, 0, 1, 0, 1, 0, 1}, in_lower{2, 3, 2, 3, 2, 3, 2, 3};
  const IntVec8 left = __builtin_shufflevector(position, position, 0, 0, 1, 1, 2, 2, 3, 3);
  const IntVec8 right = __builtin_shufflevector(position, position, 4, 4, 5, 5, 6, 6, 7, 7);
  const Vec8 left_value = __builtin_shufflevector(value, value, 0, 0, 1, 1, 2, 2, 3, 3);
  const Vec8 right_value = __builtin_shufflevector(value, value, 4, 4, 5, 5, 6, 6, 7, 7);
  spread(left, in_upper, left_value, a0);
  spread(right, in_upper, right_value, a1);
  spread(left, in_lower, left_value, b0);
  spread(right, in_lower, right_value, b1);
}

/// The gradient of pool_plane()'s input, of h rows of `width` elements, from that of its result and the positions.
inline void spread_plane(const float* grad, const std::uint8_t* positions, std::int64_t h, std::int64_t width,
                         float* image) {
  const std::int64_t oh = h / 2, ow = width / 2;
  const bool odd = width % 2 != 0;
  std::int64_t y = 0;
  if (ow == 4 && !odd)  // two rows of gradients to a vector
    for (; y + 2 <= oh; y += 2) {
      float* upper = image + 2 * y * width;
      spread8(grad + y * ow, positions + y * ow, upper, upper + 2 * width, upper + width, upper + 3 * width);
    }
  for (; y < oh; ++y) {
    const float* from = grad + y * ow;
    const std::uint8_t* where = positions + y * ow;
    float *upper = image + 2 * y * width, *lower = upper + width;
    for_each_run(
        ow,
        [&](std::int64_t x) {
          const std::int64_t i = 2 * x;
          spread8(from + x, where + x, upper + i, upper + i + kLanes, lower + i, lower + i + kLanes);
        },
        [&](std::int64_t x) {
          const auto at = [&](int index) { return (where[x] & 3) == index ? from[x] : 0.0f; };
          upper[2 * x] = at(0);
          upper[2 * x + 1] = at(1);
          lower[2 * x] = at(2);
          lower[2 * x + 1] = at(3);
        });
    if (odd) upper[width - 1] = lower[width - 1] = 0.0f;  // a column that no window covers
  }
  if (h % 2 != 0) std::fill_n(image + (h - 1) * width, width, 0.0f);
}

/// The fastest pool_plane() of what is known at run time only.
inline PoolPlane pool_plane_function(bool with_positions, ReluPlace relu) {
#if defined(__x86_64__)
  if (cpu::has_wide_functions()) return pool_plane_avx512(with_positions, relu);
#endif
  const auto choose = [=]<ReluPlace kRelu>() {
    return with_positions ? static_cast<PoolPlane>(pool_plane<true, kRelu>) : pool_plane<false, kRelu>;
  };
  switch (relu) {
    case ReluPlace::before:
      return choose.template operator()<ReluPlace::before>();
    case ReluPlace::after:
      return choose.template operator()<ReluPlace::after>();
    default:
      return choose.template operator()<ReluPlace::none>();
  }
}

/// The fastest spread_plane().
inline SpreadPlane spread_plane_function() {
#if defined(__x86_64__)
  if (cpu::has_wide_functions()) return spread_plane_avx512;
#endif
  return spread_plane;
}

}  // namespace lockstep::max_pool_rows
