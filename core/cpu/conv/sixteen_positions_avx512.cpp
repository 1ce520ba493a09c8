// Compiled for AVX-512 (F, BW, DQ, VL) whatever the build's own instruction set is.
// Note [One instruction set a file] in core/cpu/gemm/micro_kernel_body.h

#include <immintrin.h>

#include "lockstep/core/cpu/conv/sixteen_positions.h"

namespace lockstep::cpu::conv_detail {
namespace {

template <int N>
void pack(const Sixteen& s, const float* images, const std::int32_t* offsets, std::int64_t steps, float* to,
          std::int64_t width) {
  const float* from[N];
  __mmask16 lanes[N];
  for (int i = 0; i < N; ++i) from[i] = images + s.first[i], lanes[i] = s.lanes[i];
  for (std::int64_t k = 0; k < steps; ++k, to += width) {
    const std::int64_t at = offsets[k];
    __m512 v = _mm512_maskz_loadu_ps(lanes[0], from[0] + at);
#pragma GCC unroll 4
    for (int i = 1; i < N; ++i) v = _mm512_mask_loadu_ps(v, lanes[i], from[i] + at);
    _mm512_storeu_ps(to, v);
  }
}

}  // namespace

void pack_sixteen(const Sixteen& s, const float* images, const std::int32_t* offsets, std::int64_t steps, float* to,
                  std::int64_t width) {
  switch (s.count) {
    case 1:
      return pack<1>(s, images, offsets, steps, to, width);
    case 2:
      return pack<2>(s, images, offsets, steps, to, width);
    case 3:
      return pack<3>(s, images, offsets, steps, to, width);
    default:
      return pack<4>(s, images, offsets, steps, to, width);
  }
}

}  // namespace lockstep::cpu::conv_detail
