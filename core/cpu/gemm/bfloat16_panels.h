#pragma once

// Operands of products of bfloat16, packed. For .cpp files only.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/core/cpu/gemm/bfloat16_kernels.h"
#include "lockstep/core/cpu/gemm/operand.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/factories.h"

namespace lockstep::cpu::gemm_detail {

/// An operand in panels of up to `width` lanes, of which there is room for `width`, each in blocks of steps. Lanes are
/// shared evenly: a panel of few has few sums to hide the latency of one.
class Bfloat16Panels {
 public:
  Bfloat16Panels(std::int64_t lanes, std::int64_t width, std::int64_t steps)
      : lanes_(lanes),
        width_(width),
        each_(divide_up(lanes, divide_up(lanes, width))),
        steps_(steps),
        block_(inner_block(steps)),
        blocks_(divide_up(steps, block_)),
        pairs_(divide_up(steps, 2)),
        space_(empty({count() * pairs_ * width}, {.dtype = kInt32})),
        ranges_(static_cast<std::size_t>(count() * blocks_)) {}

  std::int64_t count() const { return divide_up(lanes_, each_); }
  std::int64_t blocks() const { return blocks_; }
  std::int64_t steps_of(std::int64_t block) const { return std::min(block_, steps_ - block * block_); }
  std::int64_t first_of(std::int64_t panel) const { return panel * each_; }  ///< lane
  std::int64_t lanes_of(std::int64_t panel) const { return std::min(each_, lanes_ - first_of(panel)); }
  std::uint32_t* at(std::int64_t panel, std::int64_t block) const {
    return reinterpret_cast<std::uint32_t*>(space_.data<std::int32_t>()) +
           (panel * pairs_ + block * block_ / 2) * width_;
  }
  const Bfloat16Range& range(std::int64_t panel, std::int64_t block) const {
    return ranges_[static_cast<std::size_t>(panel * blocks_ + block)];
  }
  /// From an operand's first element; `strides`: between lanes and between steps.
  void pack(const Bfloat16Kernels& kernels, std::int64_t panel, const BFloat16* data, std::int64_t lane_stride,
            std::int64_t step_stride) {
    pack_panel(kernels, panel, data + first_of(panel) * lane_stride, lane_stride, step_stride);
  }
  /// From the panel's first element.
  void pack_panel(const Bfloat16Kernels& kernels, std::int64_t panel, const BFloat16* data, std::int64_t lane_stride,
                  std::int64_t step_stride) {
    for (std::int64_t block = 0; block < blocks_; ++block)
      ranges_[static_cast<std::size_t>(panel * blocks_ + block)] = kernels.pack(
          {data + block * block_ * step_stride, lanes_of(panel), steps_of(block), lane_stride, step_stride}, width_,
          at(panel, block));
  }

 private:
  std::int64_t lanes_, width_, each_, steps_, block_, blocks_, pairs_;
  Tensor space_;
  std::vector<Bfloat16Range> ranges_;
};

}  // namespace lockstep::cpu::gemm_detail
