#include "lockstep/core/cpu/conv/weight_chains.h"

#include "lockstep/core/cpu/transpose8.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::cpu::conv_detail {

void write_weight_gradient(const Conv& conv, const float* sums, std::int64_t pitch, std::int64_t first_out,
                           std::int64_t end_out, std::int64_t first_in, std::int64_t end_in, float* weight_grad) {
  const std::int64_t in = conv.group_in(), taps = conv.kh * conv.kw, rows = end_in - first_in;
  const auto sum_of = [&](std::int64_t at) { return sums + (at % taps * rows + at / taps) * pitch; };
  for (std::int64_t o = first_out; o < end_out; o += kLanes) {
    const std::int64_t from = o - first_out, count = std::min(kLanes, end_out - o);
    float* const to = weight_grad + (o * in + first_in) * taps;
    std::int64_t at = 0;
    for (; at + kLanes <= rows * taps; at += kLanes) {
      Vec8 square[kLanes];
      for (std::int64_t j = 0; j < kLanes; ++j) square[j] = load8(sum_of(at + j) + from);
      transpose8(square);
      for (std::int64_t j = 0; j < count; ++j) store8(to + j * in * taps + at, square[j]);
    }
    for (; at < rows * taps; ++at)
      for (std::int64_t j = 0; j < count; ++j) to[j * in * taps + at] = sum_of(at)[from + j];
  }
}

}  // namespace lockstep::cpu::conv_detail
