// The inner loops of direct convolution. Each keeps a tile of sums in registers, the weight gradient's up to 4 output
// channels x 3 taps, so that 7 loads feed 12 fused multiply-adds. Those of Correlation are in
// conv2d_direct_tile_body.h.

#include <algorithm>
#include <array>

#include "lockstep/autograd/ops/conv2d/conv2d_direct.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::conv2d_direct {
namespace {

using cpu::broadcast8;
using cpu::fma8;
using cpu::load8;
using cpu::store8;
using cpu::sum8;
using Vec = cpu::Vec8;

struct ScatterArguments {
  const float* grad;
  std::int64_t out, grad_plane;
  const float* weights;
  std::int64_t plane;  // of the image
};

// Sums over all output channels for one tap of C channels of the image at V vectors of positions, added to the image:
// to[v] is where the first channel gets the sum of vector v.
template <int C, int V>
[[gnu::noinline]] void scatter_tile(const ScatterArguments& a, float* const* to) {
  Vec sum[C][V];
  for (int c = 0; c < C; ++c)
    for (int v = 0; v < V; ++v) sum[c][v] = Vec{};
  const float *d = a.grad, *w = a.weights;
  for (std::int64_t o = 0; o < a.out; ++o, d += a.grad_plane, w += C) {
    Vec g[V];
    for (int v = 0; v < V; ++v) g[v] = load8(d + v * kLanes);
    for (int c = 0; c < C; ++c) {
      const Vec factor = broadcast8(w[c]);
      for (int v = 0; v < V; ++v) sum[c][v] = fma8(factor, g[v], sum[c][v]);
    }
  }
  for (int c = 0; c < C; ++c)
    for (int v = 0; v < V; ++v) {
      float* p = to[v] + c * a.plane;
      store8(p, load8(p) + sum[c][v]);
    }
}

using ScatterTile = void (*)(const ScatterArguments&, float* const*);
constexpr std::array<std::array<ScatterTile, 3>, 4> kScatterTiles = {
    {{scatter_tile<1, 1>, scatter_tile<1, 2>, scatter_tile<1, 3>},
     {scatter_tile<2, 1>, scatter_tile<2, 2>, scatter_tile<2, 3>},
     {scatter_tile<3, 1>, scatter_tile<3, 2>, scatter_tile<3, 3>},
     {scatter_tile<4, 1>, scatter_tile<4, 2>, scatter_tile<4, 3>}}};

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
        for (int o = 0; o < O; ++o) g[o] = load8(d + o * a.grad_plane);
        for (int k = 0; k < K; ++k) {
          const Vec tap = load8(x + k);
          for (int o = 0; o < O; ++o) sum[o][k] = fma8(g[o], tap, sum[o][k]);
        }
      }
    }
  }
  for (int o = 0; o < O; ++o)
    for (int k = 0; k < K; ++k) {
      a.sums[o * a.sums_stride + k] += sum8(sum[o][k]);
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

// A group of vectors covers a few rows of all channels, which then stay in the first-level cache while every block of
// output channels passes over them.
void Correlation::run(const float* image, const float* packed_weights, const float* bias, bool relu, float* result,
                      float* space) const {
  const auto vectors = static_cast<std::int64_t>(in_offsets_.size());
  const std::int64_t out_plane = flat_ ? flat_plane_ : oh_ * ow_;
  for (std::int64_t begin = 0; begin < vectors; begin += group_) {
    const std::int64_t end = std::min(vectors, begin + group_);
    std::int64_t first = 0;
    for (const int width : blocks_) {
      const Tile* const row = tiles_->row(width, kw_);
      const TileArguments arguments{image,
                                    image_.channels,
                                    image_.plane,
                                    image_.pitch,
                                    kh_,
                                    kw_,
                                    packed_weights + first * image_.channels * kh_ * kw_,
                                    bias ? bias + first : nullptr,
                                    relu,
                                    (flat_ ? space : result) + first * out_plane,
                                    out_plane,
                                    ow_};
      for (std::int64_t v = begin; v < end;) {
        const std::int64_t left = end - v, parts = (left + tiles_->vectors - 1) / tiles_->vectors;
        const std::int64_t take = (left + parts - 1) / parts;  // 2 + 2 beat 3 + 1
        row[take - 1](arguments, in_offsets_.data() + v, out_offsets_.data() + v);
        v += take;
      }
      first += width;
    }
  }
  if (flat_)
    for (std::int64_t o = 0; o < out_; ++o)
      for (std::int64_t y = 0; y < oh_; ++y)
        std::copy_n(space + o * flat_plane_ + y * image_.pitch, ow_, result + (o * oh_ + y) * ow_);
}

// A tile takes one tap of several channels, whose planes lie apart. Neighbouring taps of one channel would be added to
// places that overlap, each load waiting for the store before it.
void Scatter::add(const float* grad, const float* packed_weights, float* image) const {
  const std::int64_t vectors = oh * ow / kLanes, per_row = ow / kLanes, plane = rows * pitch;
  for (std::int64_t v = 0; v < vectors;) {
    const std::int64_t left = vectors - v;
    const std::int64_t take = left == 4 ? 2 : std::min<std::int64_t>(left, 3);
    std::array<float*, 3> first{image, image, image};
    for (std::int64_t i = 0; i < take; ++i)
      first[static_cast<std::size_t>(i)] = image + (v + i) / per_row * pitch + (v + i) % per_row * kLanes;
    const float* weights = packed_weights;
    for (const int channels : blocks) {
      const ScatterTile run = kScatterTiles[static_cast<std::size_t>(channels - 1)][static_cast<std::size_t>(take - 1)];
      for (std::int64_t ky = 0; ky < kh; ++ky)
        for (std::int64_t kx = 0; kx < kw; ++kx, weights += channels * out) {
          std::array<float*, 3> to = first;
          for (float*& place : to) place += ky * pitch + kx;
          run({grad + v * kLanes, out, oh * ow, weights, plane}, to.data());
        }
      for (float*& place : first) place += channels * plane;
    }
    v += take;
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
