#include "lockstep/core/cpu/conv/weight_chains.h"

#include <type_traits>

#include "lockstep/core/cpu/half_rows.h"
#include "lockstep/core/cpu/transpose8.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::cpu::conv_detail {

template <typename T>
void write_weight_gradient(const Conv& conv, const float* sums, std::int64_t pitch, std::int64_t first_out,
                           std::int64_t end_out, std::int64_t first_in, std::int64_t end_in, T* weight_grad) {
  const std::int64_t in = conv.group_in(), taps = conv.kh * conv.kw, rows = end_in - first_in;
  constexpr std::int64_t kTogether = 256;
  alignas(64) float together[kLanes][kTogether];  // of each output channel
  for (std::int64_t o = first_out; o < end_out; o += kLanes) {
    const std::int64_t count = std::min(kLanes, end_out - o);
    T* const to = weight_grad + (o * in + first_in) * taps;
    const float* const from = sums + (o - first_out);
    const auto sum_of = [&](std::int64_t row, std::int64_t tap) { return from + (tap * rows + row) * pitch; };
    std::int64_t row = 0, tap = 0;  // of the next one
    const auto next = [&] {
      const float* const sum = sum_of(row, tap);
      if (++tap == taps) tap = 0, ++row;
      return sum;
    };
    for (std::int64_t begin = 0; begin < rows * taps; begin += kTogether) {
      const std::int64_t length = std::min(kTogether, rows * taps - begin);
      std::int64_t at = 0;
      for (; at + kLanes <= length; at += kLanes) {
        Vec8 square[kLanes];
        for (std::int64_t j = 0; j < kLanes; ++j) square[j] = load8(next());
        transpose8(square);
        for (std::int64_t j = 0; j < kLanes; ++j) store8(together[j] + at, square[j]);
      }
      for (; at < length; ++at) {
        const float* const sum = next();
        for (std::int64_t j = 0; j < kLanes; ++j) together[j][at] = sum[j];
      }
      for (std::int64_t j = 0; j < count; ++j)
        if constexpr (std::is_same_v<T, float>)
          std::copy_n(together[j], length, to + j * in * taps + begin);
        else
          narrow_row(together[j], length, to + j * in * taps + begin);
    }
  }
}

template void write_weight_gradient(const Conv&, const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                    std::int64_t, float*);
template void write_weight_gradient(const Conv&, const float*, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                                    std::int64_t, BFloat16*);

}  // namespace lockstep::cpu::conv_detail
