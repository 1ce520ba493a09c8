#pragma once

// The transforms of Note [Minimal filtering], eight tiles or eight rows of weights at a time. For .cpp files only.

#include <cstdint>

#include "lockstep/core/cpu/conv/winograd.h"

namespace lockstep::cpu::conv_detail {

/// Floats from one point's block of `size` floats to the next one's: a whole, odd number of cache lines, so that the
/// points of a tile, which are written and read together, have places of their own in a cache.
inline std::int64_t point_stride_for(std::int64_t size) {
  constexpr std::int64_t kLine = 16;
  return ((size + kLine - 1) / kLine | 1) * kLine;
}

/// Rows of tiles of a batch of images, counted over all images: which rows of which image they read.
class TileRows {
 public:
  /// Images of `channels` planes of h x w, `stride` floats apart, with `top` and `left` zeros before them; a plane has
  /// `rows` x `columns` tiles. `most`: rows of tiles that are asked for at a time.
  TileRows(const float* images, std::int64_t stride, std::int64_t h, std::int64_t w, std::int64_t top,
           std::int64_t left, std::int64_t rows, std::int64_t columns, std::int64_t most);

  /// Floats of work space.
  std::int64_t space() const { return 4 * part_; }
  /// For the rows of tiles [begin, end) of one channel, B^T elements B: point p of tile t goes to
  /// to[p * point_stride + t]. Writes up to seven floats more behind each point's last one. `space`: zeros when it is
  /// used first, then left to this function.
  void elements(std::int64_t begin, std::int64_t end, std::int64_t channel, float* space, float* to,
                std::int64_t point_stride) const;
  /// The same with A values A^T, where the tiles are 2 x 2 of a gradient.
  void gradients(std::int64_t begin, std::int64_t end, std::int64_t channel, float* space, float* to,
                 std::int64_t point_stride) const;

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

 private:
  // Rows of one image in four parts, by the remainders of row and column, so that neighbouring tiles read neighbours.
  struct Parts {
    const float* part[2][2];
    std::int64_t pitch;
  };
  template <typename Transform>
  void transform(std::int64_t begin, std::int64_t end, std::int64_t channel, std::int64_t reach, float* space,
                 float* to, std::int64_t point_stride, const Transform& each) const;
  void part(const float* plane, std::int64_t first, std::int64_t count, float* space) const;

  const float* images_;
  std::int64_t stride_, h_, w_, top_, left_, rows_, columns_;
  std::int64_t pitch_, part_;
};

/// G weight G^T of `rows` neighbouring rows of weights, at most 16 and one channel after another: point p of row r and
/// channel c goes to to[p * point_stride + c * rows + r], with up to seven floats written behind a point's last one.
/// `row` and `channel`: floats from one row or channel to the next; `turned`: the kernel by half a turn.
void transform_weights(const float* weight, std::int64_t row, std::int64_t channel, bool turned, std::int64_t rows,
                       std::int64_t channels, float* to, std::int64_t point_stride);

/// A^T sums A + bias of one row of tiles: point p of tile t is sums[p * point_stride + t], seven floats more are
/// readable. Writes `height` (1 or 2) rows of `width` results, `pitch` apart; true if all are finite (before relu).
bool results_of_tiles(const float* sums, std::int64_t point_stride, float bias, bool relu, std::int64_t height,
                      std::int64_t width, std::int64_t pitch, float* out);

/// weight[o * weight_stride + tap] = G^T sums G for 0 <= o < count; point p of o is sums[p * point_stride + o],
/// readable for whole groups of eight. True if all are finite.
bool weights_of_sums(const float* sums, std::int64_t point_stride, std::int64_t count, float* weight,
                     std::int64_t weight_stride);

}  // namespace lockstep::cpu::conv_detail
