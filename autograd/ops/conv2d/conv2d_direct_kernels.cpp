// The inner loops of direct convolution. Each keeps a tile of sums in registers: up to 4 output channels x 3 vectors of
// positions (forward), or 4 output channels x 3 taps (weight gradient), so that 7 loads feed 12 fused multiply-adds.

#include <algorithm>
#include <array>

#include "autograd/ops/conv2d/conv2d_direct.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors never cross a function call

namespace lockstep::conv2d_direct {
namespace {

[[gnu::always_inline]] inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
[[gnu::always_inline]] inline void store(float* p, Vec v) {
  std::memcpy(p, &v, sizeof v);
}

struct TileArguments {
  const float* image;
  std::int64_t channels, plane, pitch, kh, kw;
  const float* weights;
  const float* bias;
  bool relu;
  float* out;
  std::int64_t out_plane;
};

// O output channels at V vectors of positions. KW is the kernel's width, or 0 if known only at run time.
template <int O, int V, int KW>
[[gnu::noinline]] void tile(const TileArguments& a, const std::int32_t* in_offset, const std::int32_t* out_offset) {
  Vec sum[O][V];
  for (int o = 0; o < O; ++o)
    for (int v = 0; v < V; ++v) sum[o][v] = Vec{} + (a.bias ? a.bias[o] : 0.0f);
  const float* in[V];
  for (int v = 0; v < V; ++v) in[v] = a.image + in_offset[v];
  const float* w = a.weights;
  const std::int64_t kw = KW ? KW : a.kw;
  for (std::int64_t c = 0; c < a.channels; ++c) {
    for (std::int64_t ky = 0; ky < a.kh; ++ky) {
      const std::int64_t row = c * a.plane + ky * a.pitch;
      for (std::int64_t kx = 0; kx < kw; ++kx, w += O) {
        Vec x[V];
        for (int v = 0; v < V; ++v) x[v] = load(in[v] + row + kx);
        for (int o = 0; o < O; ++o) {
          const Vec factor = Vec{} + w[o];
          for (int v = 0; v < V; ++v) sum[o][v] += factor * x[v];
        }
      }
    }
  }
  for (int o = 0; o < O; ++o)
    for (int v = 0; v < V; ++v) {
      Vec value = sum[o][v];
      if (a.relu) value = value < Vec{} ? Vec{} : value;
      store(a.out + o * a.out_plane + out_offset[v], value);
    }
}

using Tile = void (*)(const TileArguments&, const std::int32_t*, const std::int32_t*);

template <int KW>
constexpr std::array<std::array<Tile, 3>, 4> kTiles = {{{tile<1, 1, KW>, tile<1, 2, KW>, tile<1, 3, KW>},
                                                        {tile<2, 1, KW>, tile<2, 2, KW>, tile<2, 3, KW>},
                                                        {tile<3, 1, KW>, tile<3, 2, KW>, tile<3, 3, KW>},
                                                        {tile<4, 1, KW>, tile<4, 2, KW>, tile<4, 3, KW>}}};

const std::array<Tile, 3>& tiles_for(int channels, std::int64_t kw) {
  const auto row = static_cast<std::size_t>(channels - 1);
  switch (kw) {
    case 1:
      return kTiles<1>[row];
    case 3:
      return kTiles<3>[row];
    case 5:
      return kTiles<5>[row];
    default:
      return kTiles<0>[row];
  }
}

struct SweepArguments {
  const float* grad;
  const float* image;
  std::int64_t count, grad_stride, image_stride;
  std::int64_t rows, row_vecs, grad_pitch, grad_plane, image_pitch;
  float* sums;
  std::int64_t sums_stride;
};

// Sums of O output channels x K neighbouring taps over the positions of all images.
template <int O, int K>
[[gnu::noinline]] void sweep(const SweepArguments& a) {
  Vec sum[O][K];
  for (int o = 0; o < O; ++o)
    for (int k = 0; k < K; ++k) sum[o][k] = Vec{};
  for (std::int64_t i = 0; i < a.count; ++i) {
    for (std::int64_t y = 0; y < a.rows; ++y) {
      const float* d = a.grad + i * a.grad_stride + y * a.grad_pitch;
      const float* x = a.image + i * a.image_stride + y * a.image_pitch;
      for (std::int64_t v = 0; v < a.row_vecs; ++v, d += kLanes, x += kLanes) {
        Vec g[O];
        for (int o = 0; o < O; ++o) g[o] = load(d + o * a.grad_plane);
        for (int k = 0; k < K; ++k) {
          const Vec tap = load(x + k);
          for (int o = 0; o < O; ++o) sum[o][k] += g[o] * tap;
        }
      }
    }
  }
  for (int o = 0; o < O; ++o)
    for (int k = 0; k < K; ++k) {
      const Vec s = sum[o][k];
      a.sums[o * a.sums_stride + k] += ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
    }
}

using Sweep = void (*)(const SweepArguments&);
constexpr std::array<std::array<Sweep, 5>, 4> kSweeps = {
    {{sweep<1, 1>, sweep<1, 2>, sweep<1, 3>, sweep<1, 4>, sweep<1, 5>},
     {sweep<2, 1>, sweep<2, 2>, sweep<2, 3>, sweep<2, 4>, sweep<2, 5>},
     {sweep<3, 1>, sweep<3, 2>, sweep<3, 3>, sweep<3, 4>, nullptr},
     {sweep<4, 1>, sweep<4, 2>, sweep<4, 3>, nullptr, nullptr}}};

// How many of the `left` taps of a row to take at once.
std::int64_t taps_to_take(std::int64_t left) {
  return left <= 5 ? left : left == 6 ? 3 : 4;
}
// Output channels to a sweep of that many taps: as many as 16 registers hold.
std::int64_t channels_to_sweep(std::int64_t taps) {
  return taps == 5 ? 2 : taps == 4 ? 3 : 4;
}

}  // namespace

void Correlation::run(const float* image, const float* packed_weights, const float* bias, bool relu, float* result,
                      float* space) const {
  const auto vectors = static_cast<std::int64_t>(in_offsets_.size());
  const std::int64_t out_plane = oh_ * ow_;
  std::int64_t first = 0;
  for (const int width : blocks_) {
    const std::array<Tile, 3>& tiles = tiles_for(width, kw_);
    const TileArguments arguments{image,
                                  image_.channels,
                                  image_.plane,
                                  image_.pitch,
                                  kh_,
                                  kw_,
                                  packed_weights + first * image_.channels * kh_ * kw_,
                                  bias ? bias + first : nullptr,
                                  relu,
                                  flat_ ? space : result + first * out_plane,
                                  flat_ ? flat_plane_ : out_plane};
    for (std::int64_t v = 0; v < vectors;) {
      const std::int64_t left = vectors - v;
      const std::int64_t take = left == 4 ? 2 : std::min<std::int64_t>(left, 3);  // 2 + 2 keeps more sums than 3 + 1
      tiles[static_cast<std::size_t>(take - 1)](arguments, in_offsets_.data() + v, out_offsets_.data() + v);
      v += take;
    }
    if (flat_)
      for (int o = 0; o < width; ++o)
        for (std::int64_t y = 0; y < oh_; ++y)
          std::copy_n(space + o * flat_plane_ + y * image_.pitch, ow_, result + (first + o) * out_plane + y * ow_);
    first += width;
  }
}

void WeightGradient::add(const float* grad, const float* images, std::int64_t count, std::int64_t first,
                         std::int64_t last, float* sums) const {
  const std::int64_t kernel = kh * kw;
  for (std::int64_t kx = 0; kx < kw;) {
    const std::int64_t taps = taps_to_take(kw - kx);
    for (std::int64_t o = first; o < last;) {
      const std::int64_t channels = std::min(last - o, channels_to_sweep(taps));
      const Sweep run = kSweeps[static_cast<std::size_t>(channels - 1)][static_cast<std::size_t>(taps - 1)];
      for (std::int64_t c = 0; c < image.channels; ++c)
        for (std::int64_t ky = 0; ky < kh; ++ky)
          run({grad + o * grad_plane, images + c * image.plane + ky * image.pitch + kx, count, grad_stride,
               image_stride, rows, row_vecs, grad_pitch, grad_plane, image.pitch,
               sums + (o * image.channels + c) * kernel + ky * kw + kx, image.channels * kernel});
      o += channels;
    }
    kx += taps;
  }
}

}  // namespace lockstep::conv2d_direct
