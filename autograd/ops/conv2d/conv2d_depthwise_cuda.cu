// Note [Depthwise convolutions on CUDA].

#include "lockstep/autograd/ops/conv2d/conv2d_depthwise.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/quotient.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep::conv2d_depthwise {
namespace {

constexpr int kStrip = 4;            // pixels of a row that a thread takes together
constexpr int kMaxTile = 32;         // packs of channels to a block
constexpr int kMaxTaps = 49;         // of a filter
constexpr int kFilterFloats = 8192;  // of a block's filters in shared memory
constexpr int kSegments = 8;         // in which blocks' sums are added
constexpr std::int64_t kBlocks = 528;

template <typename T>
constexpr int kWide = 16 / static_cast<int>(sizeof(T));

/// What a thread does: channels of pack `pack`, and which of the block's `lanes` strips or rows.
struct Place {
  int pack, lane, lanes;
  bool idle;

  __device__ Place(int tile, std::int64_t packs)
      : pack(static_cast<int>(threadIdx.x) % tile),
        lane(static_cast<int>(threadIdx.x) / tile),
        lanes(cuda::kThreads / tile),
        idle(lane >= lanes || static_cast<std::int64_t>(blockIdx.x) * tile + pack >= packs) {}
};

/// filters[tap][channel of the block], turned round if `flip`.
template <typename T>
__device__ void load_filters(const T* weight, std::int64_t channels, int taps, int width, bool flip, float* filters) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * width;
  for (int i = static_cast<int>(threadIdx.x); i < taps * width; i += cuda::kThreads) {
    const int tap = i / width, c = i % width;
    const int from = flip ? taps - 1 - tap : tap;
    filters[i] = first + c < channels ? cuda::from_element<float>(weight[(first + c) * taps + from]) : 0.0f;
  }
  __syncthreads();
}

/// The sizes of a correlation: x is [n, h, w, channels], out [n, oh, ow, channels].
struct Sizes {
  std::int64_t n, channels, h, w, oh, ow;
  int kh, kw, stride_h, stride_w, padding_h, padding_w;
};

Sizes forward_sizes(const Conv2dGeometry& g) {
  const auto small = [](std::int64_t v) { return static_cast<int>(v); };
  return {g.n,
          g.in,
          g.h,
          g.w,
          g.oh,
          g.ow,
          small(g.kh),
          small(g.kw),
          small(g.stride.h),
          small(g.stride.w),
          small(g.padding.h),
          small(g.padding.w)};
}

/// out = correlation of x with the filters, KW wide, at every S-th column.
template <typename T, int KW, int S>
__global__ void correlate_kernel(Sizes g, int tile, bool flip, const T* x, const T* weight, const T* bias, bool relu,
                                 T* out) {
  constexpr int W = kWide<T>;
  alignas(16) __shared__ float filters[kFilterFloats];
  const int width = tile * W;
  load_filters(weight, g.channels, g.kh * KW, width, flip, filters);
  const std::int64_t packs = g.channels / W;
  const Place place(tile, packs);
  if (place.idle) return;
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * tile + place.pack;
  cuda::Pack<float, W> start;
#pragma unroll
  for (int l = 0; l < W; ++l) start.value[l] = bias ? cuda::from_element<float>(bias[pack * W + l]) : 0.0f;
  const std::int64_t strips = (g.ow + kStrip - 1) / kStrip, count = g.n * g.oh * strips;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * place.lanes + place.lane; i < count;
       i += static_cast<std::int64_t>(gridDim.y) * place.lanes) {
    const std::int64_t row = cuda::quotient(i, strips), first = (i - row * strips) * kStrip;
    const std::int64_t image = cuda::quotient(row, g.oh), at_y = (row - image * g.oh) * g.stride_h - g.padding_h;
    const std::int64_t at_x = first * S - g.padding_w;
    cuda::Pack<float, W> sums[kStrip];
#pragma unroll
    for (int j = 0; j < kStrip; ++j) sums[j] = start;
    for (int ky = 0; ky < g.kh; ++ky) {
      const std::int64_t y = at_y + ky;
      if (y < 0 || y >= g.h) continue;
      cuda::Pack<float, W> taps[KW];
#pragma unroll
      for (int kx = 0; kx < KW; ++kx)
        taps[kx] = cuda::read_pack<float, W>(filters + (ky * KW + kx) * width, place.pack);
      const std::int64_t pixels = (image * g.h + y) * g.w;
#pragma unroll
      for (int column = 0; column < (kStrip - 1) * S + KW; ++column) {
        if (at_x + column < 0 || at_x + column >= g.w) continue;
        const auto values = cuda::read_pack<float, W>(x, (pixels + at_x + column) * packs + pack);
#pragma unroll
        for (int j = 0; j < kStrip; ++j) {
          const int kx = column - j * S;
          if (kx < 0 || kx >= KW) continue;
#pragma unroll
          for (int l = 0; l < W; ++l) sums[j].value[l] = std::fma(values.value[l], taps[kx].value[l], sums[j].value[l]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kStrip; ++j) {
      if (first + j >= g.ow) break;
      if (relu)
        for (int l = 0; l < W; ++l) sums[j].value[l] = sums[j].value[l] < 0.0f ? 0.0f : sums[j].value[l];
      cuda::write_pack(out, (row * g.ow + first + j) * packs + pack, sums[j]);
    }
  }
}

/// The gradient of x where columns or rows are passed over.
template <typename T>
__global__ void strided_data_kernel(Sizes g, int tile, const T* grad, const T* weight, T* x_grad) {
  constexpr int W = kWide<T>;
  alignas(16) __shared__ float filters[kFilterFloats];
  const int width = tile * W;
  load_filters(weight, g.channels, g.kh * g.kw, width, false, filters);
  const std::int64_t packs = g.channels / W;
  const Place place(tile, packs);
  if (place.idle) return;
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * tile + place.pack, count = g.n * g.h * g.w;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * place.lanes + place.lane; i < count;
       i += static_cast<std::int64_t>(gridDim.y) * place.lanes) {
    const std::int64_t row = cuda::quotient(i, g.w), image = cuda::quotient(row, g.h);
    const int y = static_cast<int>(row - image * g.h), x = static_cast<int>(i - row * g.w);
    cuda::Pack<float, W> sum = cuda::pack_of<W>(0.0f);
    for (int ky = 0; ky < g.kh; ++ky) {
      const int from_y = y + g.padding_h - ky, oy = from_y / g.stride_h;
      if (from_y < 0 || oy * g.stride_h != from_y || oy >= g.oh) continue;
      for (int kx = 0; kx < g.kw; ++kx) {
        const int from_x = x + g.padding_w - kx, ox = from_x / g.stride_w;
        if (from_x < 0 || ox * g.stride_w != from_x || ox >= g.ow) continue;
        const auto values = cuda::read_pack<float, W>(grad, ((image * g.oh + oy) * g.ow + ox) * packs + pack);
        const auto taps = cuda::read_pack<float, W>(filters + (ky * g.kw + kx) * width, place.pack);
#pragma unroll
        for (int l = 0; l < W; ++l) sum.value[l] = std::fma(values.value[l], taps.value[l], sum.value[l]);
      }
    }
    cuda::write_pack(x_grad, i * packs + pack, sum);
  }
}

/// partial[block row][channel][ky][kx]: the sums over some rows of the result. Threads of a block share channels, rows
/// of a filter, and rows of the result.
template <typename T, int KW, int S>
__global__ void weight_kernel(Sizes g, int tile, const T* grad, const T* x, float* partial) {
  constexpr int W = kWide<T>;
  const std::int64_t packs = g.channels / W, rows = g.n * g.oh;
  const int pack_in_tile = static_cast<int>(threadIdx.x) % tile, rest = static_cast<int>(threadIdx.x) / tile;
  const int ky = rest % g.kh, part = rest / g.kh, parts = cuda::kThreads / (tile * g.kh);
  const std::int64_t pack = static_cast<std::int64_t>(blockIdx.x) * tile + pack_in_tile;
  cuda::Pack<float, W> sums[KW];
#pragma unroll
  for (int kx = 0; kx < KW; ++kx) sums[kx] = cuda::pack_of<W>(0.0f);
  if (part < parts && pack < packs) {
    for (std::int64_t row = static_cast<std::int64_t>(blockIdx.y) * parts + part; row < rows;
         row += static_cast<std::int64_t>(gridDim.y) * parts) {
      const std::int64_t image = cuda::quotient(row, g.oh);
      const std::int64_t y = (row - image * g.oh) * g.stride_h - g.padding_h + ky;
      if (y < 0 || y >= g.h) continue;
      const std::int64_t pixels = (image * g.h + y) * g.w;
      for (std::int64_t first = 0; first < g.ow; first += kStrip) {
        cuda::Pack<float, W> grads[kStrip];
#pragma unroll
        for (int j = 0; j < kStrip; ++j)
          grads[j] = first + j < g.ow ? cuda::read_pack<float, W>(grad, (row * g.ow + first + j) * packs + pack)
                                      : cuda::pack_of<W>(0.0f);
        const std::int64_t at_x = first * S - g.padding_w;
#pragma unroll
        for (int column = 0; column < (kStrip - 1) * S + KW; ++column) {
          if (at_x + column < 0 || at_x + column >= g.w) continue;
          const auto values = cuda::read_pack<float, W>(x, (pixels + at_x + column) * packs + pack);
#pragma unroll
          for (int j = 0; j < kStrip; ++j) {
            const int kx = column - j * S;
            if (kx < 0 || kx >= KW || first + j >= g.ow) continue;
#pragma unroll
            for (int l = 0; l < W; ++l)
              sums[kx].value[l] = std::fma(values.value[l], grads[j].value[l], sums[kx].value[l]);
          }
        }
      }
    }
  }
  alignas(16) __shared__ float shared[cuda::kThreads * W];
#pragma unroll
  for (int kx = 0; kx < KW; ++kx) {
    cuda::write_pack(shared, static_cast<std::int64_t>(threadIdx.x), sums[kx]);
    __syncthreads();
    if (part == 0 && pack < packs) {
      cuda::Pack<float, W> sum = sums[kx];
      for (int other = 1; other < parts; ++other) {
        const auto more = cuda::read_pack<float, W>(shared, (other * g.kh + ky) * tile + pack_in_tile);
#pragma unroll
        for (int l = 0; l < W; ++l) sum.value[l] += more.value[l];
      }
      for (int l = 0; l < W; ++l)
        partial[((blockIdx.y * g.channels + pack * W + l) * g.kh + ky) * KW + kx] = sum.value[l];
    }
    __syncthreads();
  }
}

/// The sums over the rows of partial [count, elements].
template <typename T>
__global__ void finish_kernel(const float* partial, std::int64_t count, std::int64_t elements, T* weight_grad) {
  __shared__ float shared[kSegments][cuda::kWarpSize];
  const int lane = static_cast<int>(threadIdx.x) % cuda::kWarpSize,
            part = static_cast<int>(threadIdx.x) / cuda::kWarpSize;
  const std::int64_t element = static_cast<std::int64_t>(blockIdx.x) * cuda::kWarpSize + lane;
  const std::int64_t each = (count + kSegments - 1) / kSegments, first = part * each;
  const std::int64_t end = first + each < count ? first + each : count;
  float sum = 0.0f;
  if (element < elements)
    for (std::int64_t i = first; i < end; ++i) sum += partial[i * elements + element];
  shared[part][lane] = sum;
  __syncthreads();
  if (part != 0 || element >= elements) return;
  for (int other = 1; other < kSegments; ++other) sum += shared[other][lane];
  weight_grad[element] = cuda::to_element<T>(sum);
}

static_assert(kSegments * cuda::kWarpSize == cuda::kThreads);

/// Packs of channels to a block, so that it has room for `each` threads and `floats` of shared memory a pack.
int tile_of(std::int64_t packs, std::int64_t each, std::int64_t floats) {
  return static_cast<int>(std::min({packs, std::int64_t{kMaxTile}, cuda::kThreads / each, kFilterFloats / floats}));
}

/// Blocks by tiles of channels and by strips or rows, of which a block takes `lanes` at once.
dim3 grid_of(std::int64_t packs, int tile, std::int64_t count, std::int64_t lanes, std::int64_t blocks) {
  const std::int64_t tiles = (packs + tile - 1) / tile;
  const std::int64_t along = std::clamp<std::int64_t>(blocks / tiles, 1, (count + lanes - 1) / lanes);
  return {static_cast<unsigned>(tiles), static_cast<unsigned>(along)};
}

template <typename F>
void dispatch_type(DType dtype, F&& f) {
  if (dtype == kFloat32) return f.template operator()<float>();
  if (dtype == kFloat16) return f.template operator()<Half>();
  return f.template operator()<BFloat16>();
}

/// f with the filters' width and the step along a row.
template <typename F>
void dispatch_shape(int kw, int stride, F&& f) {
  const auto with = [&]<int KW>() {
    return stride == 1 ? f.template operator()<KW, 1>() : f.template operator()<KW, 2>();
  };
  if (kw == 3) return with.template operator()<3>();
  if (kw == 5) return with.template operator()<5>();
  return with.template operator()<7>();
}

void correlate(const Sizes& g, bool flip, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out,
               bool relu) {
  dispatch_type(x.dtype(), [&]<typename T>() {
    const std::int64_t packs = g.channels / kWide<T>, count = g.n * g.oh * ((g.ow + kStrip - 1) / kStrip);
    const int tile = tile_of(packs, 1, g.kh * g.kw * kWide<T>);
    const dim3 grid = grid_of(packs, tile, count, cuda::kThreads / tile, 4 * kBlocks);
    dispatch_shape(g.kw, g.stride_w, [&]<int KW, int S>() {
      const cuda::Launch launch(out);
      launch(correlate_kernel<T, KW, S>, grid, cuda::kThreads, g, tile, flip, static_cast<const T*>(x.data<T>()),
             static_cast<const T*>(weight.data<T>()), static_cast<const T*>(bias.defined() ? bias.data<T>() : nullptr),
             relu, out.data<T>());
    });
  });
}

}  // namespace

bool supports(const Conv2dGeometry& g, DType dtype) {
  const auto is_short = [](std::int64_t v) { return v < (std::int64_t{1} << 30); };
  return g.channels_last && g.groups == g.in && g.out == g.in && g.in % 8 == 0 && dtype != kFloat64 &&
         g.dilation == Size2d(1) && (g.kw == 3 || g.kw == 5 || g.kw == 7) && g.kh * g.kw <= kMaxTaps &&
         (g.stride.w == 1 || g.stride.w == 2) && is_short(g.stride.h) && is_short(g.padding.h) &&
         is_short(g.padding.w) && is_short(g.h) && is_short(g.w);
}

void forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out,
             bool relu) {
  correlate(forward_sizes(g), false, x, weight, bias, out, relu);
}

void backward_data(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight, const Tensor& x_grad) {
  Sizes sizes = forward_sizes(g);
  if (g.stride == Size2d(1)) {
    // The gradient correlated with the filters turned round.
    std::swap(sizes.h, sizes.oh);
    std::swap(sizes.w, sizes.ow);
    sizes.padding_h = sizes.kh - 1 - sizes.padding_h;
    sizes.padding_w = sizes.kw - 1 - sizes.padding_w;
    return correlate(sizes, true, grad, weight, {}, x_grad, false);
  }
  dispatch_type(grad.dtype(), [&]<typename T>() {
    const std::int64_t packs = g.in / kWide<T>;
    const int tile = tile_of(packs, 1, g.kh * g.kw * kWide<T>);
    const dim3 grid = grid_of(packs, tile, g.n * g.h * g.w, cuda::kThreads / tile, 8 * kBlocks);
    const cuda::Launch launch(x_grad);
    launch(strided_data_kernel<T>, grid, cuda::kThreads, sizes, tile, static_cast<const T*>(grad.data<T>()),
           static_cast<const T*>(weight.data<T>()), x_grad.data<T>());
  });
}

void backward_weight(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight_grad) {
  const Sizes sizes = forward_sizes(g);
  dispatch_type(grad.dtype(), [&]<typename T>() {
    const std::int64_t packs = g.in / kWide<T>, elements = g.in * g.kh * g.kw;
    const int tile = tile_of(packs, g.kh, 1);
    const std::int64_t parts = cuda::kThreads / (tile * g.kh);
    const dim3 grid = grid_of(packs, tile, g.n * g.oh, parts, kBlocks);
    const Tensor partial = empty({static_cast<std::int64_t>(grid.y), elements}, {.device = grad.device()});
    const cuda::Launch launch(weight_grad);
    dispatch_shape(sizes.kw, sizes.stride_w, [&]<int KW, int S>() {
      launch(weight_kernel<T, KW, S>, grid, cuda::kThreads, sizes, tile, static_cast<const T*>(grad.data<T>()),
             static_cast<const T*>(x.data<T>()), partial.data<float>());
    });
    launch(finish_kernel<T>, static_cast<unsigned>((elements + cuda::kWarpSize - 1) / cuda::kWarpSize), cuda::kThreads,
           static_cast<const float*>(partial.data<float>()), static_cast<std::int64_t>(grid.y), elements,
           weight_grad.data<T>());
  });
}

}  // namespace lockstep::conv2d_depthwise
