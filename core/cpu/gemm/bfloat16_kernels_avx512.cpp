#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "lockstep/core/cpu/gemm/bfloat16_kernels.h"
#include "lockstep/core/cpu/round_sixteen.h"

namespace lockstep::cpu::gemm_detail {
namespace {

/// The smallest and the largest exponent so far; all of it in magnitudes, as unsigned numbers less 1, so that zeros are
/// the largest.
struct RangeOf {
  __m512i least = _mm512_set1_epi16(-1), most = _mm512_setzero_si512();

  [[gnu::always_inline]] void see(__m512i pairs) {
    const __m512i size = _mm512_and_si512(pairs, _mm512_set1_epi16(0x7fff));
    least = _mm512_min_epu16(least, _mm512_sub_epi16(size, _mm512_set1_epi16(1)));
    most = _mm512_max_epu16(most, size);
  }
  Bfloat16Range range() const {
    const auto smallest_of = [](__m512i words) -> std::uint32_t {
      const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
      const __m128i quarter = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
      return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_minpos_epu16(quarter))) & 0xffff;
    };
    const __m512i all = _mm512_set1_epi16(-1);
    const std::uint32_t smallest = smallest_of(least), largest = 0xffff - smallest_of(_mm512_xor_si512(all, most));
    return {smallest == 0xffff ? 255 : static_cast<int>((smallest + 1) >> 7), static_cast<int>(largest >> 7)};
  }
};

__mmask16 first_lanes(std::int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffff : (1U << std::max<std::int64_t>(count, 0)) - 1);
}
__mmask32 first_halves(std::int64_t count) {
  return static_cast<__mmask32>(count >= 32 ? 0xffffffffU : (std::uint32_t{1} << std::max<std::int64_t>(count, 0)) - 1);
}

/// Sixteen lanes of one step, or of two: the first in the upper halves.
__m512i interleaved(const BFloat16* first, const BFloat16* second, std::int64_t lanes) {
  const auto mask = first_lanes(lanes);
  const __m512i upper = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, first));
  const __m512i pairs = _mm512_slli_epi32(upper, 16);
  if (!second) return pairs;
  return _mm512_or_si512(pairs, _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, second)));
}

Bfloat16Range pack_steps_apart(const Bfloat16Lines& lines, std::int64_t width, std::uint32_t* to) {
  constexpr std::int64_t kAhead = 16;  // steps, whose lines are asked for
  RangeOf seen;
  for (std::int64_t step = 0; step < lines.steps; step += 2, to += width) {
    const BFloat16* const first = lines.data + step * lines.step_stride;
    __builtin_prefetch(first + kAhead * lines.step_stride);
    __builtin_prefetch(first + (kAhead + 1) * lines.step_stride);
    for (std::int64_t lane = 0; lane < width; lane += 16) {
      const __m512i pairs = interleaved(
          first + lane, step + 1 < lines.steps ? first + lines.step_stride + lane : nullptr, lines.lanes - lane);
      seen.see(pairs);
      _mm512_mask_storeu_epi32(to + lane, first_lanes(width - lane), pairs);
    }
  }
  return seen.range();
}

/// rows[i] lane j becomes rows[j] lane i.
[[gnu::always_inline]] inline void transpose(__m512i (&rows)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    rows[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    rows[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    rows[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    rows[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // rows[4 q + i] holds column i of each quarter for the four rows of group q.
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    rows[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    rows[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    rows[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

/// Sixteen lanes from `lane` on at 32 steps from `step` on, as pairs, into pairs of sixteen lanes.
[[gnu::always_inline]] inline void load_lines(const Bfloat16Lines& lines, std::int64_t lane, std::int64_t step,
                                              RangeOf& seen, __m512i (&rows)[16]) {
  const __mmask32 steps = first_halves(lines.steps - step);
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < 16; ++i) {
    const bool is_there = lane + i < lines.lanes;
    const BFloat16* const from = lines.data + (is_there ? lane + i : 0) * lines.lane_stride + step;
    __builtin_prefetch(from + lines.lanes * lines.lane_stride);  // of the next panel
    rows[i] = _mm512_rol_epi32(_mm512_maskz_loadu_epi16(is_there ? steps : 0, from), 16);
    seen.see(rows[i]);
  }
  transpose(rows);
}

Bfloat16Range pack_lanes_apart(const Bfloat16Lines& lines, std::int64_t width, std::uint32_t* to) {
  RangeOf seen;
  for (std::int64_t lane = 0; lane < width; lane += 16) {
    const __mmask16 kept = first_lanes(width - lane);
    for (std::int64_t step = 0; step < lines.steps; step += 32) {
      __m512i rows[16];
      load_lines(lines, lane, step, seen, rows);
      const std::int64_t pairs = std::min<std::int64_t>(16, (lines.steps - step + 1) / 2);
      std::uint32_t* out = to + step / 2 * width + lane;
      if (pairs == 16) {
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < 16; ++i) _mm512_mask_storeu_epi32(out + i * width, kept, rows[i]);
      } else {
        for (std::int64_t i = 0; i < pairs; ++i) _mm512_mask_storeu_epi32(out + i * width, kept, rows[i]);
      }
    }
  }
  return seen.range();
}

Bfloat16Range pack(const Bfloat16Lines& lines, std::int64_t width, std::uint32_t* to) {
  return lines.step_stride == 1 ? pack_lanes_apart(lines, width, to) : pack_steps_apart(lines, width, to);
}

/// The pairs of two steps, in the order of Bfloat16Results.
void write_pairs(__m512i first, __m512i second, std::uint32_t* to) {
  _mm512_storeu_si512(to, _mm512_unpacklo_epi16(second, first));
  _mm512_storeu_si512(to + 16, _mm512_unpackhi_epi16(second, first));
}

void pack_positions(const Bfloat16Positions& positions, const std::int32_t* offsets, std::int64_t steps,
                    std::uint32_t* to) {
  const BFloat16 *const first = positions.data[0], *const second = positions.data[1];
  const std::int32_t farthest = *std::max_element(offsets, offsets + steps);
  const bool inside = std::max(first, second) + farthest + kReadLanes <= positions.end;
  const auto pack = [&](auto lanes_at) {
    std::int64_t step = 0;
    for (; step + 1 < steps; step += 2, to += kBfloat16Columns)
      write_pairs(lanes_at(offsets[step]), lanes_at(offsets[step + 1]), to);
    if (step < steps) write_pairs(lanes_at(offsets[step]), _mm512_setzero_si512(), to);
  };
  const bool gathers = positions.lanes[0] && positions.lanes[1];
  if (inside && !gathers && second == first + 16)
    return pack([&](std::int32_t offset) { return _mm512_loadu_si512(first + offset); });
  const auto halves = [](__m512i left, __m512i right) {
    return _mm512_inserti64x4(left, _mm512_castsi512_si256(right), 1);
  };
  if (inside && gathers) {
    const __m512i left = _mm512_loadu_si512(positions.lanes[0]), right = _mm512_loadu_si512(positions.lanes[1]);
    return pack([&](std::int32_t offset) {
      return halves(_mm512_permutexvar_epi16(left, _mm512_loadu_si512(first + offset)),
                    _mm512_permutexvar_epi16(right, _mm512_loadu_si512(second + offset)));
    });
  }
  alignas(64) std::uint16_t neighbours[kReadLanes];
  for (std::int64_t i = 0; i < kReadLanes; ++i) neighbours[i] = static_cast<std::uint16_t>(i);
  const __m512i left = _mm512_loadu_si512(gathers ? positions.lanes[0] : neighbours),
                right = _mm512_loadu_si512(gathers ? positions.lanes[1] : neighbours);
  const auto read = [&](const BFloat16* from) {
    return _mm512_maskz_loadu_epi16(first_halves(positions.end - from), from);
  };
  pack([&](std::int32_t offset) {
    return halves(_mm512_permutexvar_epi16(left, read(first + offset)),
                  _mm512_permutexvar_epi16(right, read(second + offset)));
  });
}

Bfloat16Range range(const BFloat16* data, std::int64_t count) {
  RangeOf seen;
  for (std::int64_t i = 0; i < count; i += 32) seen.see(_mm512_maskz_loadu_epi16(first_halves(count - i), data + i));
  return seen.range();
}

void put(const Bfloat16Results& results, int half, std::int64_t row, __m256i values) {
  BFloat16* const out = results.out[half] + row * results.out_row;
  if (results.step == 1) {
    for (const Bfloat16Run* run = results.first[half]; run < results.end[half]; ++run)
      _mm256_mask_storeu_epi16(out + run->at, run->mask, values);
    return;
  }
  alignas(32) BFloat16 lanes[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), values);
  for (const Bfloat16Run* run = results.first[half]; run < results.end[half]; ++run)
    for (unsigned mask = run->mask; mask != 0; mask &= mask - 1) {
      const int lane = std::countr_zero(mask);
      out[run->at + lane * results.step] = lanes[lane];
    }
}

void finish(const Bfloat16Results& results) {
  const float* sums = results.sums;
  for (std::int64_t r = 0; r < results.rows; ++r, sums += kBfloat16Columns) {
    const auto value = [&](const float* from) {
      __m512 values = _mm512_loadu_ps(from);
      if (results.bias) values = _mm512_add_ps(values, _mm512_set1_ps(results.bias[r]));
      // A NaN stays one.
      if (results.relu) values = _mm512_max_ps(_mm512_setzero_ps(), values);
      return _mm512_srli_epi32(round_sixteen(values), 16);
    };
    const __m512i halves = _mm512_packus_epi32(value(sums), value(sums + 16));
    put(results, 0, r, _mm512_castsi512_si256(halves));
    put(results, 1, r, _mm512_extracti64x4_epi64(halves, 1));
  }
}

template <int kRows>
void write(const __m512 (&sums)[kRows][2], float* out, std::int64_t stride, std::int64_t columns, bool adds) {
  const __mmask16 masks[2] = {first_lanes(columns), first_lanes(columns - 16)};
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) {
      float* const to = out + r * stride + 16 * v;
      const __m512 value = adds ? _mm512_add_ps(_mm512_maskz_loadu_ps(masks[v], to), sums[r][v]) : sums[r][v];
      _mm512_mask_storeu_ps(to, masks[v], value);
    }
}

__m512bh as_bfloat16(__m512i pairs) {
  return (__m512bh)pairs;
}

template <int kRows>
void paired(const std::uint32_t* a, const std::uint32_t* b, std::int64_t steps, float* out, std::int64_t stride,
            std::int64_t columns, bool adds) {
  __m512 sums[kRows][2];
  for (auto& row : sums) row[0] = row[1] = _mm512_setzero_ps();
  for (std::int64_t p = 0; p < (steps + 1) / 2; ++p, a += kBfloat16Rows, b += kBfloat16Columns) {
    const __m512i left = _mm512_loadu_si512(b), right = _mm512_loadu_si512(b + 16);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512i row = _mm512_set1_epi32(static_cast<int>(a[r]));
      sums[r][0] = _mm512_dpbf16_ps(sums[r][0], as_bfloat16(row), as_bfloat16(left));
      sums[r][1] = _mm512_dpbf16_ps(sums[r][1], as_bfloat16(row), as_bfloat16(right));
    }
  }
  write(sums, out, stride, columns, adds);
}

template <int kRows>
void chain(const Bfloat16Rows& a, const std::uint32_t* b, float* out, std::int64_t stride, bool adds) {
  __m512 sums[kRows][2];
  for (auto& row : sums) row[0] = row[1] = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < a.repeats; ++i) {
    for (std::int64_t s = 0; s < a.segments; ++s) {
      const BFloat16* rows = a.data + i * a.repeat + s * a.segment;
      for (std::int64_t p = 0; p < a.pairs; ++p, rows += 2, b += kBfloat16Columns) {
        const __m512i left = _mm512_loadu_si512(b), right = _mm512_loadu_si512(b + 16);
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r) {
          std::int32_t pair;
          std::memcpy(&pair, rows + r * a.row, sizeof(pair));
          const __m512i row = _mm512_set1_epi32(pair);
          sums[r][0] = _mm512_dpbf16_ps(sums[r][0], as_bfloat16(row), as_bfloat16(left));
          sums[r][1] = _mm512_dpbf16_ps(sums[r][1], as_bfloat16(row), as_bfloat16(right));
        }
      }
    }
  }
  write(sums, out, stride, kBfloat16Columns, adds);
}

template <int kRows>
Bfloat16Range multiply_lines(const std::uint32_t* a, const Bfloat16Lines& b, float* out) {
  RangeOf seen;
  __m512 sums[kRows][2];
  for (auto& row : sums) row[0] = row[1] = _mm512_setzero_ps();
  for (std::int64_t step = 0; step < b.steps; step += 32, a += 16 * kBfloat16Rows) {
    const std::int64_t pairs = std::min<std::int64_t>(16, (b.steps - step + 1) / 2);
    __m512i columns[2][16];
    load_lines(b, 0, step, seen, columns[0]);
    load_lines(b, 16, step, seen, columns[1]);
    // Both halves in turn, so that their sums wait for each other's.
    const auto add = [&](std::int64_t p) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const __m512bh pair = as_bfloat16(_mm512_set1_epi32(static_cast<int>(a[p * kBfloat16Rows + r])));
        sums[r][0] = _mm512_dpbf16_ps(sums[r][0], pair, as_bfloat16(columns[0][p]));
        sums[r][1] = _mm512_dpbf16_ps(sums[r][1], pair, as_bfloat16(columns[1][p]));
      }
    };
    if (pairs == 16) {
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) add(p);
    } else {
      for (std::int64_t p = 0; p < pairs; ++p) add(p);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) _mm512_storeu_ps(out + r * kBfloat16Columns + 16 * v, sums[r][v]);
  return seen.range();
}

template <int kRows>
void fused(const std::uint32_t* a, const std::uint32_t* b, std::int64_t steps, float* out, std::int64_t stride,
           std::int64_t columns, bool adds) {
  __m512 sums[kRows][2];
  for (auto& row : sums) row[0] = row[1] = _mm512_setzero_ps();
  const auto step = [&](std::int64_t at) {
    const auto value = [&](__m512i pairs) {
      return _mm512_castsi512_ps(at % 2 == 0 ? _mm512_and_si512(pairs, _mm512_set1_epi32(-65536))
                                             : _mm512_slli_epi32(pairs, 16));
    };
    const std::uint32_t* const rows = a + at / 2 * kBfloat16Rows;
    const __m512 left = value(_mm512_loadu_si512(b + at / 2 * kBfloat16Columns));
    const __m512 right = value(_mm512_loadu_si512(b + at / 2 * kBfloat16Columns + 16));
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const __m512 row = value(_mm512_set1_epi32(static_cast<int>(rows[r])));
      sums[r][0] = _mm512_fmadd_ps(row, left, sums[r][0]);
      sums[r][1] = _mm512_fmadd_ps(row, right, sums[r][1]);
    }
  };
  for (std::int64_t at = 0; at < steps; ++at) step(at);
  write(sums, out, stride, columns, adds);
}

/// The first of each pair in the upper half.
__m512i swapped(__m512i pairs) {
  return _mm512_rol_epi32(pairs, 16);
}

void swap_pairs(const BFloat16* from, std::int64_t count, BFloat16* to) {
  for (std::int64_t i = 0; i < count; i += 32) {
    const __mmask32 all = first_halves(count - i), pairs = first_halves((count - i + 1) / 2 * 2);
    _mm512_mask_storeu_epi16(to + i, pairs, swapped(_mm512_maskz_loadu_epi16(all, from + i)));
  }
}

template <std::size_t... kRows, std::size_t... kFew>
constexpr Bfloat16Kernels make_kernels(std::index_sequence<kRows...>, std::index_sequence<kFew...>) {
  return {pack,
          pack_positions,
          range,
          finish,
          swap_pairs,
          {nullptr, chain<kRows + 1>...},
          {nullptr, multiply_lines<kFew + 1>...},
          {nullptr, paired<kRows + 1>...},
          {nullptr, fused<kRows + 1>...}};
}

/// Tries the processor on numbers of all signs and nearby exponents.
bool adds_one_after_the_other() {
  std::uint32_t state = 1;
  const auto draw = [&](std::uint32_t least, std::uint32_t exponents) {
    state = state * 1664525U + 1013904223U;
    const std::uint32_t exponent = least + (state >> 8) % exponents;
    return (state >> 31) << 15 | exponent << 7 | ((state >> 16) & 0x7f);
  };
  const auto upper = [](std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000U); };
  const auto lower = [](std::uint32_t pair) { return std::bit_cast<float>(pair << 16); };
  for (int round = 0; round < 64; ++round) {
    alignas(64) std::uint32_t a[16], b[16];
    alignas(64) float before[16], after[16];
    for (int i = 0; i < 16; ++i) {
      a[i] = draw(118, 12) << 16 | draw(118, 12);
      b[i] = draw(118, 12) << 16 | draw(118, 12);
      before[i] = std::bit_cast<float>(draw(114, 20) << 16 | draw(0, 256));
    }
    _mm512_store_ps(after, _mm512_dpbf16_ps(_mm512_load_ps(before), as_bfloat16(_mm512_load_si512(a)),
                                            as_bfloat16(_mm512_load_si512(b))));
    for (int i = 0; i < 16; ++i) {
      const float first = std::fma(upper(a[i]), upper(b[i]), before[i]);
      const float both = std::fma(lower(a[i]), lower(b[i]), first);
      if (std::bit_cast<std::uint32_t>(after[i]) != std::bit_cast<std::uint32_t>(both)) return false;
    }
  }
  return true;
}

constexpr Bfloat16Kernels kernels =
    make_kernels(std::make_index_sequence<kBfloat16Rows>(), std::make_index_sequence<kBfloat16Few>());

}  // namespace

const Bfloat16Kernels* bfloat16_kernels_avx512() {
  static const bool usable = adds_one_after_the_other();
  return usable ? &kernels : nullptr;
}

}  // namespace lockstep::cpu::gemm_detail
