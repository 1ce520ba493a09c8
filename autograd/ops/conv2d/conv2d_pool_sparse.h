#pragma once

// The pieces of a convolution's backward pass under a pool. For .cpp files only.

#include <cstdint>
#include <vector>

#include "lockstep/autograd/ops/conv2d/conv2d_pool_kernels.h"
#include "lockstep/autograd/ops/conv2d/conv2d_pool_sums.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::conv2d_pool {

using cpu::kLanes;
static_assert(kLanes == kSumLanes);

/// Note [Sparse gradients]
/// Below a 2 x 2 pool at least three in four elements of a convolution's gradient are zero, and relu and dropout make
/// it more. So gradients are taken as a list of those that are not, each with its place: for each, a patch of x is
/// added to the weight's gradient, and a weight to a patch of x's. Images lie channels-last here, so that a row of a
/// patch (kw * in floats) is one run of memory whatever the number of channels. What is skipped are products with zero:
/// the results are those of the dense sums, unless x or the weights hold infinities or NaN.
struct Layout {
  explicit Layout(const Conv2dGeometry& geometry);

  Conv2dGeometry g;
  std::int64_t ph, pw;     ///< of the pooled result
  std::int64_t pitch;      ///< floats of an image row: (w + 2 * padding.w) * in
  std::int64_t size;       ///< floats of an image, with a vector of room behind it
  std::int64_t vectors;    ///< of a patch's row, the last one maybe in part
  std::int64_t row;        ///< floats of a weight's row with room: vectors * kLanes
  std::int64_t band_rows;  ///< pooled rows whose patches stay in the first-level cache
};

/// One image from channels first to the layout's inside, whose padding is zero already; and back.
void to_channels_last(const Layout& layout, const float* image, float* to);
void to_channels_first(const Layout& layout, const float* image, float* to);

/// Weights as InputGradient wants them: [kh][out][row].
Tensor pack_weights(const Layout& layout, const float* weight);
/// sums[out][kh][row] as a weight [out][in][kh][kw].
void unpack_sums(const Layout& layout, const float* sums, float* weight);

/// Adds images to sums[out][kh][row] and bias[out].
class WeightGradient {
 public:
  explicit WeightGradient(const Layout& layout);
  void add(const float* grad, const std::uint8_t* positions, const float* image, float* sums, float* bias);

 private:
  // Entries of one channel in [begin, end) of its plane. Adds their values to *bias.
  std::int64_t gather(const float* grad, const std::uint8_t* positions, std::int64_t begin, std::int64_t end,
                      float* bias);

  const Layout& layout_;
  std::vector<std::int32_t> corners_;  // where in an image the window of each pooled element begins
  // The entries, with room for a vector behind them.
  std::vector<float> values_;
  std::vector<std::int32_t> places_;
};

/// Adds to a channels-last image what the gradient of its result makes of it.
class InputGradient {
 public:
  InputGradient(const Layout& layout, const float* packed_weights);
  void add(const float* grad, const std::uint8_t* positions, float* image);

 private:
  void gather_row(const float* grad, const std::uint8_t* positions);
  void spread(std::int64_t slot, std::int64_t ky, std::int64_t rows, float* image) const;
  void spread_alone(std::int64_t slot, std::int64_t ky, std::int64_t rows, float* image) const;
  float* corner_of(std::int64_t slot, std::int64_t ky, float* image) const {
    return image + ((slot >> 1 & 1) + ky) * layout_.pitch + (slot / 4 * 2 + (slot & 1)) * layout_.g.in;
  }

  const Layout& layout_;
  const float* weights_;
  const SparseSums& sums_;
  // For each position of one row of windows: how many channels have a gradient there, which, and where their weights
  // are.
  std::vector<std::int32_t> counts_;
  std::vector<float> values_;
  std::vector<std::int32_t> places_;
};

}  // namespace lockstep::conv2d_pool
