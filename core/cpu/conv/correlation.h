#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/cpu/conv/conv.h"
#include "lockstep/core/cpu/conv/planes.h"

namespace lockstep::cpu::conv_detail {

/// Note [Implicit products]
/// A convolution is a product: the weights of an output channel times, for each position of the result, the elements
/// that it sees, in the order (channel, ky, kx). That second operand is never written out: panels of it, some positions
/// wide, are packed from the image just before they are used, or for a few rows read where they lie. So the order of an
/// element's sum is that of a product (Note [Order of a product]). The gradient of x is the same with the result's
/// gradient as the image; for a stride above 1 one such product for each remainder of row and column.
///
/// Steps that read beside the image for all positions of a panel, above or below it, are left out where that is worth
/// it: a weight times 0 changes no sum. It would where the weight is infinite, so then none is left out, and a sum that
/// underflowed to -0 would become 0: so 0 is added to each block's sum of such a convolution.

/// Where a tap of a correlation reads, from where the first one does, in rows and columns of the padded image.
struct Tap {
  std::int64_t y, x;
};

/// Rows of weights in panels, as the kernels read them: row i * panel_rows + r at step k is at
/// [i * inner * padded + k * padded + r].
struct WeightPanels {
  std::int64_t count, panel_rows, padded;
  std::int64_t vectors;  ///< of results, that a tile has
  WeightPanels(InstructionSet set, std::int64_t rows);
  std::int64_t size(std::int64_t inner) const { return count * inner * padded; }
};

/// result[m][y][x] = sum over channels c and taps t of weight[m][c * taps + t] * image[c][y + t.y][x + t.x], for a
/// batch of images and for groups of channels, each with weights of its own.
struct Correlation {
  Planes planes;
  std::vector<Tap> taps;
  std::int64_t rows;                            ///< m: channels of the result
  std::int64_t n, oh, ow;                       ///< images; size of the result
  const float* images = nullptr;                ///< of the first one
  std::int64_t image_stride = 0;                ///< elements from one to the next
  float* out = nullptr;                         ///< of the first image's result
  std::int64_t out_image = 0;                   ///< elements from one image's result to the next
  std::int64_t out_plane, out_row, out_column;  ///< from one channel, row, column to the next
  const float* bias = nullptr;                  ///< for each row of all groups, or null
  bool relu = false;
  std::int64_t groups = 1;
  std::int64_t image_group = 0, out_group = 0;  ///< elements from one group of an image, and of a result, to the next

  std::int64_t inner() const { return planes.channels * static_cast<std::int64_t>(taps.size()); }
  /// weights: [groups][rows][inner()]. With a sink, for one group, `out` is not used: blocks of images, dense, are
  /// handed on.
  void run(InstructionSet set, const float* weights, const ConvSink* sink = nullptr) const;
  /// weights: of each group, in panels, or with `columns` above 0 as [inner()][rows], the rows so many floats apart.
  /// `finite`: all of them are. `offsets`: input_offsets().
  void run_packed(InstructionSet set, const float* weights, std::int64_t columns, bool finite,
                  const std::vector<std::int32_t>& offsets) const;
  /// Of each step of inner(), from where a position reads.
  std::vector<std::int32_t> input_offsets() const;
};

}  // namespace lockstep::cpu::conv_detail
