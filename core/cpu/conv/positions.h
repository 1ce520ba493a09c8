#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/cpu/conv/correlation.h"
#include "lockstep/core/cpu/conv/read_positions.h"

namespace lockstep::cpu::conv_detail {

/// The positions of the results of some images, in the order in which they are computed: where each reads, from the
/// first of these images on, and where its result goes. The same for all blocks of as many images, and for all groups
/// of channels.
class Positions {
 public:
  /// `by_rows`: row by row of all images, else image by image. Vectors of `width` positions are used at a time. `wide`:
  /// AVX-512 packs what they read.
  Positions(const Correlation& correlation, std::int64_t images, bool by_rows, std::int64_t width, bool wide);

  std::int64_t count() const { return count_; }
  const ReadPositions& reads() const { return reads_; }
  /// The row of the result that a position lies in.
  std::int64_t row_of(std::int64_t position) const {
    return by_rows_ ? position / (c_.ow * images_) : position / c_.ow % c_.oh;
  }
  std::int64_t out_of(std::int64_t position) const { return outs_[static_cast<std::size_t>(position)]; }
  /// Whether the results of [first, first + count) are neighbours.
  bool in_place(std::int64_t first, std::int64_t count) const;
  /// Puts results from a tile, [rows][width], where they belong.
  void scatter(std::int64_t first, std::int64_t count, const float* tile, std::int64_t width, float* out) const;

 private:
  void locate(std::int64_t first, std::int64_t end);

  const Correlation& c_;
  const std::int64_t images_, count_;
  const bool by_rows_;
  std::vector<std::int32_t> bases_;
  std::vector<std::int64_t> outs_;
  ReadPositions reads_;
};

}  // namespace lockstep::cpu::conv_detail
