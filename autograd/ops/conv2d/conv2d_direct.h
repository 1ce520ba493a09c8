#pragma once

// The pieces of direct convolution. For .cpp files only.

#include <cstdint>
#include <vector>

#include "lockstep/autograd/ops/conv2d/conv2d_direct_tiles.h"
#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::conv2d_direct {

using cpu::kLanes;

/// Images of several channels with room around them: planes of `rows` x `pitch` floats, `plane` floats apart.
struct PaddedImage {
  std::int64_t channels, rows, pitch, plane;
  std::int64_t size() const { return channels * plane; }
};

/// A padded image that holds channels of h x w with `top` and `left` zeros before them and as many after, plus a vector
/// of zeros after each plane, so that a vector that starts inside a plane ends inside the image.
PaddedImage padded_image(std::int64_t channels, std::int64_t h, std::int64_t w, std::int64_t top, std::int64_t left);
/// Copies the channels of an image into a padded one whose borders are zero already.
void copy_into_padded(const PaddedImage& to, const float* image, std::int64_t h, std::int64_t w, std::int64_t top,
                      std::int64_t left, float* padded);

/// Sizes of blocks of channels: 1 to `most`, as equal as possible.
std::vector<int> channel_blocks(std::int64_t channels, std::int64_t most);

/// A stride-1 correlation of padded images: result[o][y][x] = bias[o] + sum of weight[o][c][ky][kx] *
/// image[c][y + ky][x + kx].
class Correlation {
 public:
  Correlation(const PaddedImage& image, std::int64_t out, std::int64_t kh, std::int64_t kw, std::int64_t oh,
              std::int64_t ow);

  /// Weights in the order in which run() reads them; weight(o, c, ky, kx) gives one.
  template <typename Weight>
  std::vector<float> pack(Weight&& weight) const {
    std::vector<float> packed(static_cast<std::size_t>(out_ * image_.channels * kh_ * kw_));
    float* to = packed.data();
    // Channel after channel, as weights lie in memory: where another core has just written them, lines that are not
    // neighbours would be waited for one after the other.
    for (std::int64_t first = 0; const int width : blocks_) {
      for (std::int64_t o = 0; o < width; ++o) {
        float* tap = to + o;
        for (std::int64_t c = 0; c < image_.channels; ++c)
          for (std::int64_t ky = 0; ky < kh_; ++ky)
            for (std::int64_t kx = 0; kx < kw_; ++kx, tap += width) *tap = weight(first + o, c, ky, kx);
      }
      to += image_.channels * kh_ * kw_ * width;
      first += width;
    }
    return packed;
  }

  /// True if image rows are read to their end but not beyond, so that an unpadded tensor will do.
  bool stays_inside() const { return !flat_; }
  /// Floats of work space that run() needs.
  std::int64_t space() const { return flat_ ? out_ * flat_plane_ : 0; }
  /// One image. `bias` may be null.
  void run(const float* image, const float* packed_weights, const float* bias, bool relu, float* result,
           float* space) const;

 private:
  PaddedImage image_;
  std::int64_t out_, kh_, kw_, oh_, ow_;
  const Tiles* tiles_;
  bool flat_;                // vectors run over the ends of rows; else each lies within a row
  std::int64_t flat_plane_;  // floats of one channel in flat form
  std::int64_t group_;       // vectors to a group; see run()
  std::vector<int> blocks_;
  std::vector<std::int32_t> in_offsets_, out_offsets_;  // where each vector of a plane starts
};

/// Weight gradients: sums[o][c][ky][kx] += sum over images, y and x of grad[o][y][x] * image[c][y + ky][x + kx], for
/// output channels [first, last).
struct WeightGradient {
  PaddedImage image;            ///< layout of the images
  std::int64_t image_stride;    ///< floats from one image to the next
  std::int64_t rows, row_vecs;  ///< vectors of a gradient plane: `row_vecs` in each of `rows`
  std::int64_t grad_pitch;      ///< floats between rows of a gradient plane
  std::int64_t grad_plane;      ///< floats between planes
  std::int64_t grad_stride;     ///< floats from one image's gradient to the next
  std::int64_t kh, kw;

  void add(const float* grad, const float* images, std::int64_t count, std::int64_t first, std::int64_t last,
           float* sums) const;
};

/// The transpose of a stride-1 correlation with result rows of whole vectors: image[c][y + ky][x + kx] += sum over o of
/// weight[o][c][ky][kx] * grad[o][y][x].
struct Scatter {
  std::int64_t out;          ///< channels of grad
  std::vector<int> blocks;   ///< of the image's channels: those to a tile
  std::int64_t oh, ow;       ///< of grad; ow is a multiple of kLanes
  std::int64_t rows, pitch;  ///< of the image
  std::int64_t kh, kw;

  /// One image. The weights of each tap lie in blocks of channels, each [out][channels of the block].
  void add(const float* grad, const float* packed_weights, float* image) const;
};

}  // namespace lockstep::conv2d_direct
