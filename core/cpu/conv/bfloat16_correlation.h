#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/core/cpu/conv/correlation.h"
#include "lockstep/core/cpu/conv/planes.h"
#include "lockstep/core/cpu/gemm/bfloat16_kernels.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"

namespace lockstep::cpu::conv_detail {

/// Images as correlations by pairs read them: as planes lay them out, or where they lie.
struct Bfloat16Images {
  const BFloat16* data;
  std::int64_t image, group;  ///< elements from one image, and from one group of channels, to the next
  const BFloat16* end;        ///< of what may be read
  gemm_detail::Bfloat16Range range;
  Tensor copy;
};

/// Of images [n, groups * planes.channels, planes.h, planes.w].
Bfloat16Images bfloat16_images(const Planes& planes, const BFloat16* images, std::int64_t n, std::int64_t groups);

/// What all of [0, count) holds, seen in blocks by the threads of parallel_for: see(begin, end) gives that of one.
gemm_detail::Bfloat16Range bfloat16_range(
    std::int64_t count, std::int64_t block,
    const std::function<gemm_detail::Bfloat16Range(std::int64_t, std::int64_t)>& see);
/// That of `count` elements.
gemm_detail::Bfloat16Range bfloat16_range(const BFloat16* data, std::int64_t count);

/// A correlation of bfloat16, as Correlation is of floats.
struct Bfloat16Correlation {
  const Planes& planes;
  std::vector<Tap> taps;
  std::int64_t rows;       ///< channels of the result, of a group
  std::int64_t n, oh, ow;  ///< images; size of the result
  /// Writes rows [first, first + count) of the weights, [groups * rows][planes.channels * taps]; null: they lie so.
  std::function<void(std::int64_t first, std::int64_t count, BFloat16* to)> gather;
  const BFloat16* weights;
  BFloat16* out;
  std::int64_t out_image, out_group, out_plane, out_row, out_column;  ///< elements from one to the next
  const float* bias = nullptr;                                        ///< for each row of all groups, or null
  bool relu = false;
  std::int64_t groups = 1;

  /// False, with nothing computed, if the numbers are not for pairs.
  bool run(const Bfloat16Images& images) const;
};

}  // namespace lockstep::cpu::conv_detail
