#include "lockstep/core/cpu/conv/phases.h"

#include <algorithm>
#include <utility>

namespace lockstep::cpu::conv_detail {

std::vector<Phase> phases_of(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                             std::int64_t dilation) {
  std::vector<Phase> phases;
  for (std::int64_t first = 0; first < std::min(stride, size); ++first) {
    Phase phase{first, (size - first - 1) / stride + 1, {}, {}};
    for (std::int64_t k = 0; k < kernel; ++k) {
      const std::int64_t distance = first + padding - k * dilation;
      if (distance % stride != 0) continue;
      phase.taps.push_back(k);
      phase.offsets.push_back(distance / stride);
    }
    phases.push_back(std::move(phase));
  }
  return phases;
}

Planes planes_of(const Conv& c, const std::vector<Phase>& ys, const std::vector<Phase>& xs) {
  struct Reach {
    std::int64_t before = 0, count = 0, last = 0;
    explicit Reach(const std::vector<Phase>& phases) {
      for (const Phase& phase : phases) {
        if (phase.taps.empty()) continue;
        before = std::max(before, -phase.offsets.back());  // offsets fall as taps rise
        count = std::max(count, phase.count);
        last = std::max(last, phase.offsets.front());
      }
    }
  };
  const Reach y(ys), x(xs);
  return {c.group_out(), c.oh, c.ow, y.before, x.before, 1, 1, y.count, x.count, y.last + y.before, x.last + x.before};
}

}  // namespace lockstep::cpu::conv_detail
