#pragma once

// How the CPU engines cut the work; see Note [Thread-independent results]. For .cpp files only.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::conv2d_blocks {

/// Images to a block of work: some million multiply-adds. A power of two, as most batches are multiples of one: threads
/// then get equal shares.
inline std::int64_t images_per_block(const Conv2dGeometry& g) {
  const auto images = static_cast<std::uint64_t>(std::max<std::int64_t>(1, 1'500'000 / g.macs()));
  return std::min(static_cast<std::int64_t>(std::bit_floor(images)), g.n);
}

/// Groups of images whose weight gradients are summed apart, and then in order.
constexpr std::int64_t kMaxGroups = 8;
inline std::int64_t images_per_group(const Conv2dGeometry& g) {
  return std::max((g.n + kMaxGroups - 1) / kMaxGroups, images_per_block(g));
}
inline std::int64_t group_count(const Conv2dGeometry& g) {
  return (g.n + images_per_group(g) - 1) / images_per_group(g);
}

/// Adds `groups` partial results of `stride` values each, in order: the first weight_size values of each are a weight
/// gradient, the others a bias gradient (dropped if `bias` is null).
template <typename T>
void add_groups(const T* partial, std::int64_t groups, std::int64_t stride, std::int64_t weight_size, T* weight,
                T* bias) {
  parallel_for(stride, cpu::kElementBlock, [=](std::int64_t begin, std::int64_t end) {
    const auto add = [=](std::int64_t first, std::int64_t last, T* out) {  // out[0] is value number `first`
      for (std::int64_t i = first; i < last; ++i) out[i - first] = partial[i];
      for (std::int64_t p = 1; p < groups; ++p)
        for (std::int64_t i = first; i < last; ++i) out[i - first] += partial[p * stride + i];
    };
    const std::int64_t middle = std::clamp(weight_size, begin, end);
    add(begin, middle, weight + begin);
    if (bias) add(middle, end, bias + (middle - weight_size));
  });
}

/// sums[c] += the sum of plane c of [channels, plane], in eight interleaved parts.
template <typename T>
void add_plane_sums(const T* grad, std::int64_t channels, std::int64_t plane, T* sums) {
  for (std::int64_t c = 0; c < channels; ++c) {
    const T* values = grad + c * plane;
    T part[8] = {};
    std::int64_t i = 0;
    for (; i + 8 <= plane; i += 8)
      for (int lane = 0; lane < 8; ++lane) part[lane] += values[i + lane];
    for (; i < plane; ++i) part[i % 8] += values[i];
    sums[c] += ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
  }
}

}  // namespace lockstep::conv2d_blocks
