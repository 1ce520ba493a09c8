#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/cpu/conv/correlation.h"
#include "lockstep/core/cpu/conv/planes.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"

namespace lockstep::cpu::conv_detail {

/// Images as correlations by pairs read them: as planes lay them out, or where they lie.
struct Bfloat16Images {
  const BFloat16* data;
  std::int64_t image, group;  ///< elements from one image, and from one group of channels, to the next
  const BFloat16* end;        ///< of what may be read
  Tensor copy;
};

/// Of images [n, groups * planes.channels, planes.h, planes.w].
Bfloat16Images bfloat16_images(const Planes& planes, const BFloat16* images, std::int64_t n, std::int64_t groups);

/// A correlation of bfloat16, as Correlation is of floats.
struct Bfloat16Correlation {
  const Planes& planes;
  std::vector<Tap> taps;
  std::int64_t rows;        ///< channels of the result, of a group
  std::int64_t n, oh, ow;   ///< images; size of the result
  const BFloat16* weights;  ///< [groups][rows][planes.channels * taps]
  BFloat16* out;
  std::int64_t out_image, out_group, out_plane, out_row, out_column;  ///< elements from one to the next
  const float* bias = nullptr;                                        ///< for each row of all groups, or null
  bool relu = false;
  std::int64_t groups = 1;

  void run(const Bfloat16Images& images) const;
};

}  // namespace lockstep::cpu::conv_detail
