#pragma once

// Max pools of images whose channels lie last (Note [Channels last]): a thread takes some neighbouring channels of one
// pixel, so that the work of finding windows is done once for all of them. For max_pool2d_cuda.cu.

#include <limits>

#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

/// A pool in the numbers that the kernels count with.
struct ChannelsPool {
  int h, w, oh, ow, packs;  ///< packs of channels to a pixel
  int kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;

  ChannelsPool(const Pool2dGeometry& g, int width)
      : h(narrow(g.h)),
        w(narrow(g.w)),
        oh(narrow(g.oh)),
        ow(narrow(g.ow)),
        packs(narrow(g.channels / width)),
        kernel_h(narrow(g.kernel.h)),
        kernel_w(narrow(g.kernel.w)),
        stride_h(narrow(g.stride.h)),
        stride_w(narrow(g.stride.w)),
        padding_h(narrow(g.padding.h)),
        padding_w(narrow(g.padding.w)),
        dilation_h(narrow(g.dilation.h)),
        dilation_w(narrow(g.dilation.w)) {}

  /// Whether the numbers are small enough, and memory is aligned for packs of `width` channels.
  static bool suits(const Pool2dGeometry& g, int width, const Tensor& a, const Tensor& b) {
    constexpr std::int64_t kMost = std::numeric_limits<int>::max() / 4;
    const auto small = [](std::int64_t n) { return n <= kMost; };
    return g.channels > 1 && g.channels % width == 0 && small(g.planes * g.h * g.w) && small(g.planes * g.oh * g.ow) &&
           small(reach(g.h, g.kernel.h, g.dilation.h, g.padding.h)) &&
           small(reach(g.w, g.kernel.w, g.dilation.w, g.padding.w)) && small(g.stride.h) && small(g.stride.w) &&
           cuda::aligned(a.raw_data(), 16) && cuda::aligned(b.raw_data(), 16);
  }

 private:
  static std::int64_t reach(std::int64_t side, std::int64_t kernel, std::int64_t dilation, std::int64_t padding) {
    constexpr std::int64_t kMost = std::numeric_limits<int>::max();
    if (kernel > kMost || dilation > kMost || padding > kMost) return kMost;
    return side + kernel * dilation + 2 * padding;
  }
  static int narrow(std::int64_t n) { return static_cast<int>(n); }
};

/// Pack `index` of images of height x width.
struct PackPosition {
  int image, y, x, pack;
  __device__ PackPosition(int index, int packs, int height, int width) {
    const int pixel = index / packs, row = pixel / width;
    pack = index - pixel * packs;
    x = pixel - row * width;
    image = row / height;
    y = row - image * height;
  }
};

template <int W, typename T, typename P>
__global__ void forward_channels_kernel(int count, ChannelsPool g, bool mark, const cuda::Pack<T, W>* in,
                                        cuda::Pack<T, W>* out, cuda::Pack<P, W>* positions) {
  using C = compute_t<T>;
  const int index = static_cast<int>(cuda::global_thread());
  if (index >= count) return;
  const PackPosition at(index, g.packs, g.oh, g.ow);
  const int top = at.y * g.stride_h - g.padding_h, left = at.x * g.stride_w - g.padding_w;
  C best[W];
  int position[W];
#pragma unroll
  for (int j = 0; j < W; ++j) best[j] = kNothing<C>, position[j] = -1;
  for (int ky = 0; ky < g.kernel_h; ++ky) {
    const int y = top + ky * g.dilation_h;
    if (y < 0 || y >= g.h) continue;
    for (int kx = 0; kx < g.kernel_w; ++kx) {
      const int x = left + kx * g.dilation_w;
      if (x < 0 || x >= g.w) continue;
      const auto values = in[((at.image * g.h + y) * g.w + x) * g.packs + at.pack];
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const C value = cuda::from_element<C>(values.value[j]);
        if (position[j] >= 0 && !(value > best[j] || value != value)) continue;
        best[j] = value;
        position[j] = ky * g.kernel_w + kx;
      }
    }
  }
  cuda::Pack<T, W> results;
  cuda::Pack<P, W> places;
#pragma unroll
  for (int j = 0; j < W; ++j) {
    results.value[j] = cuda::to_element<T>(best[j]);
    places.value[j] =
        static_cast<P>((position[j] < 0 ? 0 : position[j]) | (mark && best[j] <= C(0) ? kMaxPoolNotPositive : 0));
  }
  out[index] = results;
  if (positions) positions[index] = places;
}

/// Windows that reach `at`, [begin, end): those that begin at index * stride - padding.
struct Windows {
  int begin, end;
  __device__ Windows(int at, int reach, int stride, int padding, int out) {
    const int last = (at + padding) / stride, before = at + padding - reach;
    begin = before < 0 ? 0 : before / stride + 1;
    end = last < out ? last + 1 : out;
  }
};

template <int W, typename T, typename P>
__global__ void backward_channels_kernel(int count, ChannelsPool g, int mask, const cuda::Pack<T, W>* grad,
                                         const cuda::Pack<P, W>* positions, cuda::Pack<T, W>* x_grad) {
  using C = compute_t<T>;
  const int index = static_cast<int>(cuda::global_thread());
  if (index >= count) return;
  const PackPosition at(index, g.packs, g.h, g.w);
  const Windows rows(at.y, g.dilation_h * (g.kernel_h - 1) + 1, g.stride_h, g.padding_h, g.oh);
  const Windows columns(at.x, g.dilation_w * (g.kernel_w - 1) + 1, g.stride_w, g.padding_w, g.ow);
  C sums[W] = {};
  for (int oy = rows.begin; oy < rows.end; ++oy) {
    const int down = at.y + g.padding_h - oy * g.stride_h, ky = g.dilation_h == 1 ? down : down / g.dilation_h;
    if (ky * g.dilation_h != down) continue;
    for (int ox = columns.begin; ox < columns.end; ++ox) {
      const int across = at.x + g.padding_w - ox * g.stride_w, kx = g.dilation_w == 1 ? across : across / g.dilation_w;
      if (kx * g.dilation_w != across) continue;
      const int output = ((at.image * g.oh + oy) * g.ow + ox) * g.packs + at.pack, place = ky * g.kernel_w + kx;
      const auto places = positions[output];
      const auto incoming = grad[output];
#pragma unroll
      for (int j = 0; j < W; ++j)
        if ((static_cast<int>(places.value[j]) & mask) == place) sums[j] += cuda::from_element<C>(incoming.value[j]);
    }
  }
  cuda::Pack<T, W> results;
#pragma unroll
  for (int j = 0; j < W; ++j) results.value[j] = cuda::to_element<T>(sums[j]);
  x_grad[index] = results;
}

}  // namespace
}  // namespace lockstep
