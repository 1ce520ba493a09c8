#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops/conv2d/conv2d_pool_small.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep::conv2d_pool_small {
namespace {

using cuda::from_element;
using cuda::kThreads;
using cuda::to_element;

// Of a block's shared memory, 48 KiB: floats for an image, for weights, and for the pooled elements of one channel.
constexpr int kImage = 7168, kWeights = 4096, kPooled = 1024;
constexpr int kColumns = 4;     // of x's gradient to a thread
constexpr int kMaxTaps = 1024;  // of a weight, and the bias
constexpr int kTapsToThread = kMaxTaps / kThreads;
constexpr int kBlocks = 320;  // that fill a device, about

/// Sizes as the kernels want them.
struct Sizes {
  int n, in, h, w, out, oh, ow, ph, pw, pad_h, pad_w;
  int height, pitch;  ///< of a channel in shared memory, with its zeros around
  int per_block;      ///< channels of the result to a block
  int blocks;         ///< to an image

  explicit Sizes(const Conv2dGeometry& g)
      : n(static_cast<int>(g.n)),
        in(static_cast<int>(g.in)),
        h(static_cast<int>(g.h)),
        w(static_cast<int>(g.w)),
        out(static_cast<int>(g.out)),
        oh(static_cast<int>(g.oh)),
        ow(static_cast<int>(g.ow)),
        ph(oh / 2),
        pw(ow / 2),
        pad_h(static_cast<int>(g.padding.h)),
        pad_w(static_cast<int>(g.padding.w)),
        height(h + 2 * pad_h),
        pitch(w + 2 * pad_w) {}

  /// Shares `channels` among blocks that have threads for `room` items, each channel making `items` of them.
  void share(int channels, int items, int most) {
    const int fitting = std::clamp(kThreads / items, 1, std::max(most, 1));
    blocks = (channels + fitting - 1) / fitting;
    per_block = (channels + blocks - 1) / blocks;
  }
};

unsigned threads_for(int items) {
  const int warps = (std::min(items, kThreads) + cuda::kWarpSize - 1) / cuda::kWarpSize;
  return static_cast<unsigned>(warps * cuda::kWarpSize);
}

/// One image with zeros around, in shared memory. The caller waits for the block's threads.
template <typename T>
__device__ void load_image(const Sizes& s, const T* x, float* image) {
  for (int i = static_cast<int>(threadIdx.x); i < s.in * s.height * s.pitch; i += static_cast<int>(blockDim.x)) {
    const int row = i / s.pitch, c = row / s.height;
    const int ix = i - row * s.pitch - s.pad_w, iy = row - c * s.height - s.pad_h;
    const bool inside = ix >= 0 && ix < s.w && iy >= 0 && iy < s.h;
    image[i] = inside ? from_element<float>(x[(c * s.h + iy) * s.w + ix]) : 0.0f;
  }
}

__device__ float positive(float value) {
  return value < 0.0f ? 0.0f : value;
}

/// The sum over kSplit neighbouring lanes.
template <int kSplit>
__device__ float lanes_sum(float value) {
#pragma unroll
  for (int mask = kSplit / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  return value;
}

/// A block takes one image and some channels of the result, a thread the four outputs below one pooled element, over
/// one in kSplit of the input's channels.
template <int K, int kSplit, typename T>
__global__ void forward_kernel(Sizes s, ReluPlace relu, const T* x, const T* weight, const T* bias, T* out,
                               std::uint8_t* positions) {
  __shared__ float image[kImage];
  __shared__ float weights[kWeights];
  const int n = static_cast<int>(blockIdx.x) / s.blocks, first = static_cast<int>(blockIdx.x) % s.blocks * s.per_block;
  const int channels = first + s.per_block < s.out ? s.per_block : s.out - first;
  const int taps = s.in * K * K, patches = s.ph * s.pw;
  load_image(s, x + static_cast<std::int64_t>(n) * s.in * s.h * s.w, image);
  for (int i = static_cast<int>(threadIdx.x); i < channels * taps; i += static_cast<int>(blockDim.x))
    weights[i] = from_element<float>(weight[first * taps + i]);
  __syncthreads();

  const int items = channels * patches * kSplit;
  // All lanes of a warp go round as often: they add up each other's sums.
  for (int start = 0; start < items; start += static_cast<int>(blockDim.x)) {
    const int item = start + static_cast<int>(threadIdx.x), part = item % kSplit;
    const bool exists = item < items;
    const int patch = exists ? item / kSplit % patches : 0, channel = exists ? item / kSplit / patches : 0;
    const int y = patch / s.pw, column = patch - y * s.pw;
    float sums[2][2] = {};
    for (int c = part; c < s.in; c += kSplit) {
      const float* corner = image + (c * s.height + 2 * y) * s.pitch + 2 * column;
      const float* w = weights + (channel * s.in + c) * K * K;
      float above[K] = {};  // the weights' row before
#pragma unroll
      for (int row = 0; row <= K; ++row) {
        float values[K + 1], own[K] = {};
#pragma unroll
        for (int i = 0; i <= K; ++i) values[i] = corner[row * s.pitch + i];
#pragma unroll
        for (int i = 0; i < K; ++i) {
          if (row < K) own[i] = w[row * K + i];
          sums[0][0] = std::fma(values[i], own[i], sums[0][0]);
          sums[0][1] = std::fma(values[i + 1], own[i], sums[0][1]);
          sums[1][0] = std::fma(values[i], above[i], sums[1][0]);
          sums[1][1] = std::fma(values[i + 1], above[i], sums[1][1]);
        }
#pragma unroll
        for (int i = 0; i < K; ++i) above[i] = own[i];
      }
    }
    const float shift = bias ? from_element<float>(bias[first + channel]) : 0.0f;
    float best = 0.0f;
    int position = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float sum = lanes_sum<kSplit>(sums[i / 2][i % 2]) + shift;
      const float value = relu == ReluPlace::before ? positive(sum) : sum;
      if (i > 0 && !(value > best || value != value)) continue;  // NaN wins; of equal values the first
      best = value;
      position = i;
    }
    if (!exists || part != 0) continue;
    const std::int64_t at = (static_cast<std::int64_t>(n) * s.out + first + channel) * patches + patch;
    out[at] = to_element<T>(relu == ReluPlace::after ? positive(best) : best);
    if (positions) positions[at] = static_cast<std::uint8_t>(best <= 0.0f ? position | kMaxPoolNotPositive : position);
  }
}

/// A block takes one channel of the result and some images. Its threads stand for taps of the weight (and one more, the
/// bias), several times over if they are few: then each slice of threads takes a part of the pooled elements.
/// partials[chunk][out][taps + 1]
template <int K, typename T>
__global__ void weight_kernel(Sizes s, int images, const T* grad, const std::uint8_t* positions, const T* x,
                              float* partials) {
  __shared__ float image[kImage];
  __shared__ float values[kPooled];  // of the pooled elements, and where in the image their windows begin
  __shared__ int corners[kPooled];
  __shared__ float slices_sums[kThreads];
  const int o = static_cast<int>(blockIdx.x) % s.out, chunk = static_cast<int>(blockIdx.x) / s.out;
  const int taps = s.in * K * K + 1, patches = s.ph * s.pw, thread = static_cast<int>(threadIdx.x);
  const int slices = taps < kThreads ? kThreads / taps : 1;
  const int slice = slices > 1 ? thread / taps : 0, first = slices > 1 ? thread % taps : thread;
  float sums[kTapsToThread] = {};
  int offsets[kTapsToThread];
#pragma unroll
  for (int i = 0; i < kTapsToThread; ++i) {
    const int tap = first + i * kThreads, c = tap / (K * K), rest = tap - c * K * K;
    offsets[i] = (c * s.height + rest / K) * s.pitch + rest % K;
  }
  const int end = (chunk + 1) * images < s.n ? (chunk + 1) * images : s.n;
  for (int n = chunk * images; n < end; ++n) {
    __syncthreads();  // the image before has been used
    load_image(s, x + static_cast<std::int64_t>(n) * s.in * s.h * s.w, image);
    for (int i = thread; i < patches; i += kThreads) {
      const std::int64_t at = (static_cast<std::int64_t>(n) * s.out + o) * patches + i;
      const int position = positions[at] & 3;
      values[i] = from_element<float>(grad[at]);
      corners[i] = (2 * (i / s.pw) + (position >> 1 & 1)) * s.pitch + 2 * (i % s.pw) + (position & 1);
    }
    __syncthreads();
    if (slice >= slices) continue;
    for (int i = slice; i < patches; i += slices) {
      const float value = values[i];
      if (value == 0.0f) continue;
      const float* corner = image + corners[i];
#pragma unroll
      for (int j = 0; j < kTapsToThread; ++j) {
        const int tap = first + j * kThreads;
        if (tap < taps - 1) sums[j] = std::fma(value, corner[offsets[j]], sums[j]);
        if (tap == taps - 1) sums[j] += value;
      }
    }
  }
  float* result = partials + static_cast<std::int64_t>(blockIdx.x) * taps;
  if (slices == 1) {
#pragma unroll
    for (int j = 0; j < kTapsToThread; ++j)
      if (first + j * kThreads < taps) result[first + j * kThreads] = sums[j];
    return;
  }
  slices_sums[thread] = sums[0];
  __syncthreads();
  if (thread >= taps) return;
  float sum = slices_sums[thread];
  for (int i = 1; i < slices; ++i) sum += slices_sums[i * taps + thread];
  result[thread] = sum;
}

template <typename T>
__global__ void finish_weight_kernel(const float* partials, int chunks, int out, int taps, T* weight_grad,
                                     T* bias_grad) {
  for (int i = static_cast<int>(cuda::global_thread()); i < out * taps; i += static_cast<int>(cuda::all_threads())) {
    float sum = 0;
    for (int k = 0; k < chunks; ++k) sum += partials[static_cast<std::int64_t>(k) * out * taps + i];
    const int o = i / taps, tap = i - o * taps;
    if (tap < taps - 1)
      weight_grad[o * (taps - 1) + tap] = to_element<T>(sum);
    else if (bias_grad)
      bias_grad[o] = to_element<T>(sum);
  }
}

/// A block takes one image and some of x's channels. It spreads the pooled gradients out in shared memory, with K - 1
/// zeros around; a thread takes kColumns neighbours of x's gradient, over one in kSplit of the result's channels.
template <int K, int kSplit, typename T>
__global__ void data_kernel(Sizes s, const T* grad, const std::uint8_t* positions, const T* weight, T* x_grad) {
  __shared__ float spread[kImage];
  __shared__ float weights[kWeights];
  const int n = static_cast<int>(blockIdx.x) / s.blocks, first = static_cast<int>(blockIdx.x) % s.blocks * s.per_block;
  const int channels = first + s.per_block < s.in ? s.per_block : s.in - first;
  const int thread = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  const int patches = s.ph * s.pw;
  for (int i = thread; i < s.out * s.height * s.pitch; i += step) spread[i] = 0.0f;
  // weights[o][c][ky][kx] of the block's channels c
  for (int i = thread; i < s.out * channels * K * K; i += step) {
    const int o = i / (channels * K * K);
    weights[i] = from_element<float>(weight[(o * s.in + first) * K * K + i - o * channels * K * K]);
  }
  __syncthreads();
  for (int i = thread; i < s.out * patches; i += step) {
    const std::int64_t at = static_cast<std::int64_t>(n) * s.out * patches + i;
    const int position = positions[at] & 3, o = i / patches, patch = i - o * patches, y = patch / s.pw;
    const int row = 2 * y + (position >> 1) + K - 1, column = 2 * (patch - y * s.pw) + (position & 1) + K - 1;
    spread[(o * s.height + row) * s.pitch + column] = from_element<float>(grad[at]);
  }
  __syncthreads();

  const int strips = (s.w + kColumns - 1) / kColumns, items = channels * s.h * strips * kSplit;
  for (int start = 0; start < items; start += step) {
    const int item = start + thread, part = item % kSplit;
    const bool exists = item < items;
    const int strip = exists ? item / kSplit % strips : 0, row = exists ? item / kSplit / strips : 0;
    const int channel = row / s.h, y = row - channel * s.h, left = strip * kColumns;
    float sums[kColumns] = {};
    for (int o = part; o < s.out; o += kSplit) {
      const float* w = weights + (o * channels + channel) * K * K;
      // x's element (y, left) meets tap (ky, kx) in the spread element (y + pad - ky, left + pad - kx).
      const float* corner = spread + (o * s.height + y + s.pad_h) * s.pitch + left + s.pad_w;
#pragma unroll
      for (int r = 0; r < K; ++r) {
        float values[K + kColumns - 1];
#pragma unroll
        for (int i = 0; i < K + kColumns - 1; ++i) values[i] = corner[r * s.pitch + i];
#pragma unroll
        for (int kx = 0; kx < K; ++kx) {
          const float factor = w[(K - 1 - r) * K + kx];
#pragma unroll
          for (int i = 0; i < kColumns; ++i) sums[i] = std::fma(values[i + K - 1 - kx], factor, sums[i]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float sum = lanes_sum<kSplit>(sums[i]);
      if (exists && part == 0 && left + i < s.w)
        x_grad[((static_cast<std::int64_t>(n) * s.in + first + channel) * s.h + y) * s.w + left + i] =
            to_element<T>(sum);
    }
  }
}

/// Sizes for data_kernel: what lies in shared memory is the result's gradient.
Sizes data_sizes(const Conv2dGeometry& g) {
  Sizes s(g);
  const int k = static_cast<int>(g.kh);
  s.height = s.oh + 2 * (k - 1);
  s.pitch = s.ow + 2 * (k - 1) + kColumns - 1;
  return s;
}

/// Calls f.template operator()<T, K, kSplit>().
template <typename F>
void dispatch(DType dtype, std::int64_t kernel, bool split, F&& f) {
  const auto with_type = [&]<typename T>() {
    if (kernel == 3)
      split ? f.template operator()<T, 3, 4>() : f.template operator()<T, 3, 1>();
    else
      split ? f.template operator()<T, 5, 4>() : f.template operator()<T, 5, 1>();
  };
  if (dtype == kFloat32) return with_type.template operator()<float>();
  if (dtype == kFloat16) return with_type.template operator()<Half>();
  with_type.template operator()<BFloat16>();
}

bool is_small(const Conv2dGeometry& g, DType dtype) {
  return dtype != kFloat64 && g.groups == 1 && g.stride == Size2d(1) && g.dilation == Size2d(1) && g.kh == g.kw &&
         (g.kh == 3 || g.kh == 5) && g.padding.h < g.kh && g.padding.w < g.kw && g.h <= 64 && g.w <= 64 && g.in <= 32 &&
         g.out <= 32 && g.n <= (1 << 20);
}

bool splits(std::int64_t channels) {
  return channels >= 8;
}

}  // namespace

bool supports_forward(const Conv2dGeometry& g, DType dtype) {
  return is_small(g, dtype) && g.in * (g.h + 2 * g.padding.h) * (g.w + 2 * g.padding.w) <= kImage &&
         g.in * g.kh * g.kw <= kWeights;
}

void forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias, ReluPlace relu,
             const Tensor& out, const Tensor& positions) {
  const cuda::Launch launch(x);
  dispatch(x.dtype(), g.kh, splits(g.in), [&]<typename T, int K, int kSplit>() {
    Sizes s(g);
    const int items = s.ph * s.pw * kSplit;
    s.share(s.out, items, kWeights / (s.in * K * K));
    launch(forward_kernel<K, kSplit, T>, static_cast<unsigned>(s.n * s.blocks), threads_for(s.per_block * items), s,
           relu, x.data<T>(), weight.data<T>(), bias.defined() ? bias.data<T>() : nullptr, out.data<T>(),
           positions.defined() ? positions.data<std::uint8_t>() : nullptr);
  });
}

bool supports_weight(const Conv2dGeometry& g, DType dtype) {
  return supports_forward(g, dtype) && (g.oh / 2) * (g.ow / 2) <= kPooled && g.in * g.kh * g.kw + 1 <= kMaxTaps;
}

void backward_weight(const Conv2dGeometry& g, const Tensor& grad, const Tensor& positions, const Tensor& x,
                     const Tensor& weight_grad, const Tensor& bias_grad) {
  const cuda::Launch launch(x);
  const Sizes s(g);
  const int images = (s.n * s.out + kBlocks - 1) / kBlocks, chunks = (s.n + images - 1) / images;
  const int taps = static_cast<int>(g.in * g.kh * g.kw) + 1;
  const Tensor memory = empty({chunks, s.out, taps}, {.device = x.device()});
  auto* partials = memory.data<float>();
  dispatch(x.dtype(), g.kh, false, [&]<typename T, int K, int>() {
    launch(weight_kernel<K, T>, static_cast<unsigned>(chunks * s.out), kThreads, s, images, grad.data<T>(),
           positions.data<std::uint8_t>(), x.data<T>(), partials);
    launch(finish_weight_kernel<T>, cuda::blocks_for(s.out * taps), kThreads, partials, chunks, s.out, taps,
           weight_grad.data<T>(), bias_grad.defined() ? bias_grad.data<T>() : nullptr);
  });
}

bool supports_data(const Conv2dGeometry& g, DType dtype) {
  const Sizes s = data_sizes(g);
  return is_small(g, dtype) && s.out * s.height * s.pitch <= kImage && g.out * g.kh * g.kw <= kWeights;
}

void backward_data(const Conv2dGeometry& g, const Tensor& grad, const Tensor& positions, const Tensor& weight,
                   const Tensor& x_grad) {
  const cuda::Launch launch(grad);
  dispatch(grad.dtype(), g.kh, splits(g.out), [&]<typename T, int K, int kSplit>() {
    Sizes s = data_sizes(g);
    const int items = s.h * ((s.w + kColumns - 1) / kColumns) * kSplit;
    s.share(s.in, items, kWeights / (s.out * K * K));
    launch(data_kernel<K, kSplit, T>, static_cast<unsigned>(s.n * s.blocks), threads_for(s.per_block * items), s,
           grad.data<T>(), positions.data<std::uint8_t>(), weight.data<T>(), x_grad.data<T>());
  });
}

}  // namespace lockstep::conv2d_pool_small
