// One thread an output; backward one thread an element of x, which adds up the windows it won in the CPU's order: no
// atomics, and the same bits each time. Every element is read and written about once: 5 bytes of traffic a float that
// is pooled, at 2 x 2.

#include "lockstep/autograd/ops/pool2d/max_pool2d_channels.cuh"
#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"
#include "lockstep/autograd/ops/support/pool2d.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::Pack;
using cuda::to_element;

// NaN wins; of equal values the first.
template <typename C>
__device__ bool wins(C value, C best) {
  return value > best || value != value;
}

template <typename T, typename P>
__global__ void forward_kernel(Pool2dGeometry g, bool mark, const T* in, T* out, P* positions) {
  using C = compute_t<T>;
  const std::int64_t count = g.planes * g.oh * g.ow;
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const cuda::ImagePosition at(index, g.channels, g.oh, g.ow);
    const T* image = in + at.begin(g.h, g.w);
    const std::int64_t top = at.y * g.stride.h - g.padding.h, left = at.x * g.stride.w - g.padding.w;
    C best = kNothing<C>;
    std::int64_t position = -1;
    for (std::int64_t ky = 0; ky < g.kernel.h; ++ky) {
      const std::int64_t y = top + ky * g.dilation.h;
      if (y < 0 || y >= g.h) continue;
      for (std::int64_t kx = 0; kx < g.kernel.w; ++kx) {
        const std::int64_t x = left + kx * g.dilation.w;
        if (x < 0 || x >= g.w) continue;
        const C value = from_element<C>(image[(y * g.w + x) * g.channels]);
        if (position >= 0 && !wins(value, best)) continue;
        best = value;
        position = ky * g.kernel.w + kx;
      }
    }
    out[index] = to_element<T>(best);
    if (positions)
      positions[index] =
          static_cast<P>((position < 0 ? 0 : position) | (mark && best <= C(0) ? kMaxPoolNotPositive : 0));
  }
}

template <typename T, typename P>
__global__ void backward_kernel(Pool2dGeometry g, std::int64_t mask, const T* grad, const P* positions, T* x_grad) {
  using C = compute_t<T>;
  const std::int64_t count = g.planes * g.h * g.w;
  const std::int64_t reach_y = g.dilation.h * (g.kernel.h - 1) + 1, reach_x = g.dilation.w * (g.kernel.w - 1) + 1;
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const cuda::ImagePosition at(index, g.channels, g.h, g.w);
    const std::int64_t image = at.begin(g.oh, g.ow);
    const cuda::Range rows = cuda::windows_over(at.y, reach_y, g.stride.h, g.padding.h, g.oh);
    const cuda::Range columns = cuda::windows_over(at.x, reach_x, g.stride.w, g.padding.w, g.ow);
    C sum = 0;
    for (std::int64_t oy = rows.begin; oy < rows.end; ++oy) {
      const std::int64_t down = at.y + g.padding.h - oy * g.stride.h, ky = cuda::quotient(down, g.dilation.h);
      if (ky * g.dilation.h != down) continue;
      for (std::int64_t ox = columns.begin; ox < columns.end; ++ox) {
        const std::int64_t across = at.x + g.padding.w - ox * g.stride.w, kx = cuda::quotient(across, g.dilation.w);
        if (kx * g.dilation.w != across) continue;
        const std::int64_t output = image + (oy * g.ow + ox) * g.channels;
        if ((static_cast<std::int64_t>(positions[output]) & mask) == ky * g.kernel.w + kx)
          sum += from_element<C>(grad[output]);
      }
    }
    x_grad[index] = to_element<T>(sum);
  }
}

// Windows of 2 x 2 that tile images of even sides.
bool tiles_by_two(const Pool2dGeometry& g, const Tensor& image) {
  return g.channels == 1 && g.kernel == Size2d(2) && g.stride == Size2d(2) && g.padding == Size2d(0) &&
         g.dilation == Size2d(1) && g.h % 2 == 0 && g.w % 2 == 0 &&
         cuda::aligned(image.raw_data(), 2 * element_size(image.dtype()));
}

// `half_width`: pairs to an image's row. Output `index` lies in output row index / half_width, whose windows are the
// pairs of two image rows.
template <typename T>
__global__ void forward_by_two_kernel(std::int64_t count, std::int64_t half_width, const Pack<T, 2>* in, T* out,
                                      std::uint8_t* positions) {
  using C = compute_t<T>;
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const std::int64_t upper = index + index / half_width * half_width;
    const Pack<T, 2> pairs[2] = {in[upper], in[upper + half_width]};
    C best = from_element<C>(pairs[0].value[0]);
    int position = 0;
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      const C value = from_element<C>(pairs[i / 2].value[i % 2]);
      if (!wins(value, best)) continue;
      best = value;
      position = i;
    }
    out[index] = to_element<T>(best);
    if (positions) positions[index] = static_cast<std::uint8_t>(position | (best <= C(0) ? kMaxPoolNotPositive : 0));
  }
}

template <typename T>
__global__ void backward_by_two_kernel(std::int64_t count, std::int64_t half_width, const T* grad,
                                       const std::uint8_t* positions, Pack<T, 2>* x_grad) {
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const std::int64_t upper = index + index / half_width * half_width;
    const int position = positions[index] & 3;
    const T value = grad[index], zero = to_element<T>(0.0f);
    const auto at = [&](int place) { return place == position ? value : zero; };
    x_grad[upper] = {at(0), at(1)};
    x_grad[upper + half_width] = {at(2), at(3)};
  }
}

/// Channels that a thread takes, where they lie last.
template <typename T>
inline constexpr int kChannelsWidth = 16 / sizeof(T);

template <int W, typename T>
cuda::Pack<T, W>* packs(T* data) {
  return reinterpret_cast<cuda::Pack<T, W>*>(data);
}
/// Blocks for one thread to each of `count`.
unsigned threads_for(std::int64_t count) {
  return static_cast<unsigned>((count + cuda::kThreads - 1) / cuda::kThreads);
}

template <typename T, typename P>
void forward(const Pool2dGeometry& g, const Tensor& x, const Tensor& out, const Tensor& positions) {
  const cuda::Launch launch(x);
  constexpr int W = kChannelsWidth<T>;
  if (ChannelsPool::suits(g, W, x, out)) {
    const std::int64_t count = out.numel() / W;
    launch(forward_channels_kernel<W, T, P>, threads_for(count), cuda::kThreads, static_cast<int>(count),
           ChannelsPool(g, W), is_max_pool_2x2(g), packs<W>(x.data<T>()), packs<W>(out.data<T>()),
           positions.defined() ? packs<W>(positions.data<P>()) : nullptr);
    return;
  }
  launch(forward_kernel<T, P>, cuda::blocks_for(out.numel()), cuda::kThreads, g, is_max_pool_2x2(g), x.data<T>(),
         out.data<T>(), positions.defined() ? positions.data<P>() : nullptr);
}

template <typename T, typename P>
void backward(const Pool2dGeometry& g, const Tensor& grad, const Tensor& positions, const Tensor& x_grad) {
  const cuda::Launch launch(grad);
  constexpr int W = kChannelsWidth<T>;
  if (ChannelsPool::suits(g, W, grad, x_grad)) {
    const std::int64_t count = x_grad.numel() / W;
    launch(backward_channels_kernel<W, T, P>, threads_for(count), cuda::kThreads, static_cast<int>(count),
           ChannelsPool(g, W), is_max_pool_2x2(g) ? 3 : -1, packs<W>(grad.data<T>()), packs<W>(positions.data<P>()),
           packs<W>(x_grad.data<T>()));
    return;
  }
  launch(backward_kernel<T, P>, cuda::blocks_for(x_grad.numel()), cuda::kThreads, g, is_max_pool_2x2(g) ? 3 : -1,
         grad.data<T>(), positions.data<P>(), x_grad.data<T>());
}

}  // namespace

void max_pool2d_forward_cuda(const Pool2dGeometry& g, const Tensor& x, const Tensor& out, const Tensor& positions) {
  dispatch_numeric(x.dtype(), "max_pool2d", [&]<typename T>() {
    if (tiles_by_two(g, x)) {
      const cuda::Launch launch(x);
      launch(forward_by_two_kernel<T>, cuda::blocks_for(out.numel()), cuda::kThreads, out.numel(), g.ow,
             reinterpret_cast<const Pack<T, 2>*>(x.data<T>()), out.data<T>(),
             positions.defined() ? positions.data<std::uint8_t>() : nullptr);
    } else if (!positions.defined() || positions.dtype() == kUInt8) {
      forward<T, std::uint8_t>(g, x, out, positions);
    } else {
      forward<T, std::int32_t>(g, x, out, positions);
    }
  });
}

void max_pool2d_backward_cuda(const Pool2dGeometry& g, const Tensor& grad, const Tensor& positions,
                              const Tensor& x_grad) {
  dispatch_floating(grad.dtype(), "max_pool2d", [&]<typename T>() {
    if (tiles_by_two(g, x_grad)) {
      const cuda::Launch launch(grad);
      launch(backward_by_two_kernel<T>, cuda::blocks_for(grad.numel()), cuda::kThreads, grad.numel(), g.ow,
             grad.data<T>(), positions.data<std::uint8_t>(), reinterpret_cast<Pack<T, 2>*>(x_grad.data<T>()));
    } else if (positions.dtype() == kUInt8) {
      backward<T, std::uint8_t>(g, grad, positions, x_grad);
    } else {
      backward<T, std::int32_t>(g, grad, positions, x_grad);
    }
  });
}

namespace {

template <typename T>
__global__ void relu_grad_kernel(std::int64_t count, const T* grad, const std::uint8_t* positions, T* out) {
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads())
    out[index] = positions[index] & kMaxPoolNotPositive ? to_element<T>(0.0f) : grad[index];
}

}  // namespace

void max_pool2d_relu_grad_cuda(const Tensor& grad, const Tensor& positions, const Tensor& out) {
  dispatch_floating(grad.dtype(), "max_pool2d", [&]<typename T>() {
    const cuda::Launch launch(grad);
    launch(relu_grad_kernel<T>, cuda::blocks_for(grad.numel()), cuda::kThreads, grad.numel(), grad.data<T>(),
           positions.data<std::uint8_t>(), out.data<T>());
  });
}

}  // namespace lockstep
