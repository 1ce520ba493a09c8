#include "lockstep/core/cpu/conv/read_positions.h"

#include <algorithm>

#include "lockstep/core/cpu/vec8.h"

namespace lockstep::cpu::conv_detail {
namespace {

#if defined(__x86_64__)
// bases: where each lane reads; -1: nowhere.
Sixteen sixteen_of(const std::int32_t* bases) {
  Sixteen s{};
  for (int j = 0; j < 16;) {
    if (bases[j] < 0) {
      ++j;
      continue;
    }
    if (s.count == Sixteen::kMost) return {.count = -1, .first = {}, .lanes = {}};
    int end = j + 1;
    while (end < 16 && bases[end] == bases[j] + end - j) ++end;
    s.first[s.count] = bases[j] - j;
    s.lanes[s.count] = static_cast<std::uint16_t>(((1u << end) - 1) & ~((1u << j) - 1));
    ++s.count;
    j = end;
  }
  return s;
}
#endif

// Four eights at a time: what they read often lies together.
void copy_runs(const float* images, const Eight* eights, std::int64_t count, const std::int32_t* offsets,
               std::int64_t steps, float* to) {
  const std::int64_t width = 8 * count;
  std::int64_t g = 0;
  for (; g + 4 <= count; g += 4) {
    const float *const a = images + eights[g].first, *const b = images + eights[g + 1].first;
    const float *const c = images + eights[g + 2].first, *const d = images + eights[g + 3].first;
    float* p = to + 8 * g;
    for (std::int64_t k = 0; k < steps; ++k, p += width) {
      const std::int64_t at = offsets[k];
      store8(p, load8(a + at));
      store8(p + 8, load8(b + at));
      store8(p + 16, load8(c + at));
      store8(p + 24, load8(d + at));
    }
  }
  for (; g < count; ++g) {
    const float* const from = images + eights[g].first;
    float* p = to + 8 * g;
    for (std::int64_t k = 0; k < steps; ++k, p += width) store8(p, load8(from + offsets[k]));
  }
}

}  // namespace

void ReadPositions::resize(std::int64_t count, bool wide) {
  eights_.resize(static_cast<std::size_t>(count / 8));
  sixteens_.resize(static_cast<std::size_t>(wide ? count / 16 : 0));
}

void ReadPositions::set(std::int64_t first, const std::int32_t* bases, std::int64_t count) {
  Eight* const eights = eights_.data() + first / 8;
  for (std::int64_t e = 0; e < count / 8; ++e) eights[e] = eight_of(bases + 8 * e);
#if defined(__x86_64__)
  if (sixteens_.empty()) return;
  Sixteen* const sixteens = sixteens_.data() + first / 16;
  for (std::int64_t e = 0; e < count / 16; ++e) sixteens[e] = sixteen_of(bases + 16 * e);
#endif
}

bool ReadPositions::all_runs(std::int64_t first, std::int64_t width) const {
  const Eight* const eights = eights_.data() + first / 8;
  return std::all_of(eights, eights + width / 8, [](const Eight& e) { return e.kind == Eight::Kind::run; });
}

void ReadPositions::pack(std::int64_t first, std::int64_t width, const float* images, const std::int32_t* offsets,
                         std::int64_t steps, float* to) const {
#if defined(__x86_64__)
  const Sixteen* const sixteens = sixteens_.data() + first / 16;
  if (!sixteens_.empty() &&
      std::all_of(sixteens, sixteens + width / 16, [](const Sixteen& s) { return s.count > 0; })) {
    for (std::int64_t v = 0; v < width / 16; ++v) pack_sixteen(sixteens[v], images, offsets, steps, to + 16 * v, width);
    return;
  }
#endif
  const std::int64_t count = width / 8;
  const Eight* const eights = eights_.data() + first / 8;
  using Kind = Eight::Kind;
  if (all_runs(first, width)) return copy_runs(images, eights, count, offsets, steps, to);
  std::int64_t g = 0;
  for (; g + 2 <= count && eights[g].kind != Kind::scattered && eights[g + 1].kind != Kind::scattered; g += 2) {
    const Eight &e = eights[g], &f = eights[g + 1];
    const float *const first = images + e.first, *const second = images + e.second;
    const float *const third = images + f.first, *const fourth = images + f.second;
    const IntVec8 from_second = e.from_second, from_fourth = f.from_second;
    float* p = to + 8 * g;
    for (std::int64_t k = 0; k < steps; ++k, p += width) {
      const std::int64_t at = offsets[k];
      store8(p, from_second < 0 ? load8(second + at) : load8(first + at));
      store8(p + 8, from_fourth < 0 ? load8(fourth + at) : load8(third + at));
    }
  }
  for (; g < count; ++g) {
    const Eight& e = eights[g];
    float* p = to + 8 * g;
    const float *const first = images + e.first, *const second = images + e.second;
    if (e.kind != Kind::scattered)
      for (std::int64_t k = 0; k < steps; ++k, p += width)
        store8(p, e.from_second ? load8(second + offsets[k]) : load8(first + offsets[k]));
    else
      for (std::int64_t k = 0; k < steps; ++k, p += width)
        for (std::size_t j = 0; j < 8; ++j) p[j] = e.bases[j] < 0 ? 0.0f : images[e.bases[j] + offsets[k]];
  }
}

}  // namespace lockstep::cpu::conv_detail
