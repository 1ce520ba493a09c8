#pragma once

// How the positions of a weight gradient are summed, and where the sums go. For .cpp files only.

#include <algorithm>
#include <cstdint>

#include "lockstep/core/cpu/conv/conv.h"

namespace lockstep::cpu::conv_detail {

/// Note [Order of a weight gradient]
/// Positions are gone through image by image, row by row, in chains of fused multiply-adds over a block of them: some
/// whole images, or some rows of one. What the blocks give is added up in order.
inline constexpr std::int64_t kChain = 512;  // positions of a block, at most, unless a row is longer

/// Images [image, image + images) and of them the rows [y, y + rows).
struct WeightChain {
  std::int64_t image, images, y, rows;
};

class WeightChains {
 public:
  explicit WeightChains(const Conv& c)
      : n_(c.n),
        oh_(c.oh),
        images_(std::clamp<std::int64_t>(kChain / (c.oh * c.ow), 1, c.n)),
        rows_(images_ > 1 ? c.oh : std::clamp<std::int64_t>(kChain / c.ow, 1, c.oh)) {}

  std::int64_t count() const { return (n_ + images_ - 1) / images_ * blocks(); }
  std::int64_t images() const { return images_; }  ///< of a chain, at most
  std::int64_t rows() const { return rows_; }
  WeightChain at(std::int64_t index) const {
    const std::int64_t image = index / blocks() * images_, y = index % blocks() * rows_;
    return {image, std::min(images_, n_ - image), y, std::min(rows_, oh_ - y)};
  }

 private:
  std::int64_t blocks() const { return (oh_ + rows_ - 1) / rows_; }

  std::int64_t n_, oh_, images_, rows_;
};

/// The sums of the output channels [first_out, end_out) and the input channels [first_in, end_in) of a group, [tap][in]
/// and rows of output channels, `pitch` apart: put into its weight gradient, [out][in][tap], of float or BFloat16. So
/// many of a row as are a multiple of eight are read.
template <typename T>
void write_weight_gradient(const Conv& conv, const float* sums, std::int64_t pitch, std::int64_t first_out,
                           std::int64_t end_out, std::int64_t first_in, std::int64_t end_in, T* weight_grad);

}  // namespace lockstep::cpu::conv_detail
