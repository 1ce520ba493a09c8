// The loops around the innermost ones of direct convolution, which are in conv2d_direct_tile_body.h and
// conv2d_direct_sums.cpp.

#include <algorithm>
#include <array>

#include "lockstep/autograd/ops/conv2d/conv2d_direct.h"
#include "lockstep/autograd/ops/conv2d/conv2d_direct_sums.h"

namespace lockstep::conv2d_direct {
namespace {

// How many of `left` to take at once, of `most`: shares as equal as possible, 2 + 2 and not 3 + 1.
std::int64_t share(std::int64_t left, std::int64_t most) {
  const std::int64_t parts = (left + most - 1) / most;
  return (left + parts - 1) / parts;
}

// How many of the `left` taps of a row to take at once.
std::int64_t taps_to_take(std::int64_t left) {
  return left <= 5 ? left : left == 6 ? 3 : 4;
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
        const std::int64_t take = share(end - v, tiles_->vectors);
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

// A group of runs takes one tap after the other, each of all channels: neighbouring taps are added to places that
// overlap, and a load that is covered by a store in part waits until that has left the core. The group is the same for
// all instruction sets, as the order in which a place gets its sums depends on it.
void Scatter::add(const float* grad, const float* packed_weights, float* image) const {
  const Sums& sums = sums_in_use();
  const std::int64_t runs = oh * ow / kLanes, per_row = ow / kLanes, plane = rows * pitch;
  for (std::int64_t v = 0; v < runs;) {
    const std::int64_t take = share(runs - v, Sums::kMostRuns);
    std::array<float*, Sums::kMostRuns> first{};
    for (std::int64_t i = 0; i < take; ++i)
      first[static_cast<std::size_t>(i)] = image + (v + i) / per_row * pitch + (v + i) % per_row * kLanes;
    const float* weights = packed_weights;
    for (std::int64_t ky = 0; ky < kh; ++ky)
      for (std::int64_t kx = 0; kx < kw; ++kx) {
        std::array<float*, Sums::kMostRuns> to = first;
        for (float*& place : to) place += ky * pitch + kx;
        for (const int channels : blocks) {
          sums.scatters[channels - 1][take - 1]({grad + v * kLanes, out, oh * ow, weights, plane}, to.data());
          weights += channels * out;
          for (float*& place : to) place += channels * plane;
        }
      }
    v += take;
  }
}

void WeightGradient::add(const float* grad, const float* images, std::int64_t count, std::int64_t first,
                         std::int64_t last, float* sums) const {
  const Sums& all = sums_in_use();
  const std::int64_t kernel = kh * kw;
  for (std::int64_t kx = 0; kx < kw;) {
    const std::int64_t taps = taps_to_take(kw - kx);
    for (std::int64_t o = first; o < last;) {
      const std::int64_t channels = share(last - o, all.outputs[taps - 1]);
      const Sweep run = all.sweeps[channels - 1][taps - 1];
      for (std::int64_t c = 0; c < image.channels; ++c)
        for (std::int64_t ky = 0; ky < kh; ++ky)
          run({grad + o * grad_plane, images + c * image.plane + ky * image.pitch + kx, count, grad_stride,
               image_stride, rows, row_vecs, grad_pitch, grad_plane, image.pitch,
               sums + (o * image.channels + c) * kernel + ky * kw + kx, image.channels * kernel, channels});
      o += channels;
    }
    kx += taps;
  }
}

}  // namespace lockstep::conv2d_direct
