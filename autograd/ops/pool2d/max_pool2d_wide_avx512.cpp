// Compiled for AVX-512 (F, BW, DQ, VL) whatever the build's own instruction set is.
// Note [One instruction set a file] in core/cpu/gemm/micro_kernel_body.h

#include <immintrin.h>

#include "lockstep/autograd/ops/pool2d/max_pool2d_wide.h"

namespace lockstep::max_pool_rows {
namespace {

constexpr std::int64_t kWide = 16;

[[gnu::always_inline]] inline __mmask16 first(std::int64_t n) {
  return n >= kWide ? __mmask16{0xffff} : n <= 0 ? __mmask16{0} : static_cast<__mmask16>((1u << n) - 1);
}

// A vector of sixteen windows holds kRows rows of 16 / kRows columns. Of those, `rows` and `columns` are there. The
// windows' elements in one row of the image are two vectors.
template <int kRows>
struct Block {
  static constexpr std::int64_t kColumns = kWide / kRows;
  std::int64_t rows, columns;
  bool whole;  // all windows are there, and their results neighbours in memory

  Block(std::int64_t rows_left, std::int64_t columns_left, std::int64_t ow)
      : rows(rows_left < kRows ? rows_left : kRows),
        columns(columns_left < kColumns ? columns_left : kColumns),
        whole(rows == kRows && columns == kColumns && (kRows == 1 || ow == kColumns)) {}

  // pitch: from one row of windows to the next.
  [[gnu::always_inline]] void load(const float* p, std::int64_t pitch, __m512 (&to)[2]) const {
    if constexpr (kRows == 1) {
      to[0] = _mm512_maskz_loadu_ps(first(2 * columns), p);
      to[1] = _mm512_maskz_loadu_ps(first(2 * columns - kWide), p + kWide);
    } else if constexpr (kRows == 2) {
      to[0] = _mm512_maskz_loadu_ps(first(2 * columns), p);
      to[1] = _mm512_maskz_loadu_ps(rows > 1 ? first(2 * columns) : __mmask16{0}, p + pitch);
    } else {
      for (int half = 0; half < 2; ++half) {
        const auto row = [&](std::int64_t r) {
          return _mm256_maskz_loadu_ps(r < rows ? static_cast<__mmask8>(first(2 * columns)) : __mmask8{0},
                                       p + r * pitch);
        };
        to[half] = _mm512_insertf32x8(_mm512_castps256_ps512(row(2 * half)), row(2 * half + 1), 1);
      }
    }
  }
  [[gnu::always_inline]] void store(float* p, std::int64_t pitch, const __m512 (&from)[2]) const {
    if constexpr (kRows == 1) {
      _mm512_mask_storeu_ps(p, first(2 * columns), from[0]);
      if (2 * columns > kWide) _mm512_mask_storeu_ps(p + kWide, first(2 * columns - kWide), from[1]);
    } else if constexpr (kRows == 2) {
      _mm512_mask_storeu_ps(p, first(2 * columns), from[0]);
      if (rows > 1) _mm512_mask_storeu_ps(p + pitch, first(2 * columns), from[1]);
    } else {
      const auto mask = static_cast<__mmask8>(first(2 * columns));
      for (int half = 0; half < 2; ++half) {
        float* const upper = p + 2 * half * pitch;
        if (2 * half < rows) _mm256_mask_storeu_ps(upper, mask, _mm512_maskz_extractf32x8_ps(0xff, from[half], 0));
        if (2 * half + 1 < rows)
          _mm256_mask_storeu_ps(upper + pitch, mask, _mm512_maskz_extractf32x8_ps(0xff, from[half], 1));
      }
    }
  }

  // Values and bytes of the windows, whose rows lie `ow` apart. A row of lanes starts where its first lane is in the
  // vector; lanes that are not in the mask touch no memory.
  [[gnu::always_inline]] __m512 load_values(const float* p, std::int64_t ow) const {
    if (whole) return _mm512_loadu_ps(p);
    __m512 values = _mm512_setzero_ps();
    for (std::int64_t r = 0; r < rows; ++r) values = _mm512_mask_loadu_ps(values, lanes_of(r), p + r * (ow - kColumns));
    return values;
  }
  [[gnu::always_inline]] __m128i load_bytes(const std::uint8_t* p, std::int64_t ow) const {
    if (whole) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    __m128i bytes = _mm_setzero_si128();
    for (std::int64_t r = 0; r < rows; ++r) bytes = _mm_mask_loadu_epi8(bytes, lanes_of(r), p + r * (ow - kColumns));
    return bytes;
  }
  [[gnu::always_inline]] void store_values(float* p, std::int64_t ow, __m512 values) const {
    if (whole) return _mm512_storeu_ps(p, values);
    for (std::int64_t r = 0; r < rows; ++r) _mm512_mask_storeu_ps(p + r * (ow - kColumns), lanes_of(r), values);
  }
  [[gnu::always_inline]] void store_bytes(std::uint8_t* p, std::int64_t ow, __m128i bytes) const {
    if (whole) return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    for (std::int64_t r = 0; r < rows; ++r) _mm_mask_storeu_epi8(p + r * (ow - kColumns), lanes_of(r), bytes);
  }
  [[gnu::always_inline]] __mmask16 lanes_of(std::int64_t row) const {
    return static_cast<__mmask16>(first(columns) << row * kColumns);
  }
};

// Calls body(block, row, column) for blocks that cover oh x ow windows.
template <typename Body>
[[gnu::always_inline]] inline void for_each_block(std::int64_t oh, std::int64_t ow, Body&& body) {
  const auto go = [&]<int kRows>() __attribute__((always_inline)) {
    constexpr std::int64_t kColumns = Block<kRows>::kColumns;
    for (std::int64_t y = 0; y < oh; y += kRows)
      for (std::int64_t x = 0; x < ow; x += kColumns) body(Block<kRows>(oh - y, ow - x, ow), y, x);
  };
  if (ow <= 4)
    go.template operator()<4>();
  else if (ow <= 8)
    go.template operator()<2>();
  else
    go.template operator()<1>();
}

// Lanes in which `value` takes the place of `best`: it is greater, or NaN.
[[gnu::always_inline]] inline __mmask16 wins(__m512 value, __m512 best) {
  return static_cast<__mmask16>(_mm512_cmp_ps_mask(value, best, _CMP_GT_OQ) |
                                _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q));
}

// value < 0 ? 0 : value
[[gnu::always_inline]] inline __m512 positive(__m512 value) {
  return _mm512_maskz_max_ps(0xffff, _mm512_setzero_ps(), value);
}

template <bool kPositions, ReluPlace kRelu>
void pool_plane(const float* in, std::int64_t width, std::int64_t oh, std::int64_t ow, float* out,
                std::uint8_t* positions) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
  for_each_block(
      oh, ow, [&](const auto& block, std::int64_t y, std::int64_t x) __attribute__((always_inline)) {
        const float* upper = in + 2 * (y * width + x);
        __m512 a[2], b[2];
        block.load(upper, 2 * width, a);
        block.load(upper + width, 2 * width, b);
        if constexpr (kRelu == ReluPlace::before)
          for (int i = 0; i < 2; ++i) a[i] = positive(a[i]), b[i] = positive(b[i]);
        // One row of a window, the other, then both: the same as one element after the other.
        const __m512 a_even = _mm512_permutex2var_ps(a[0], even, a[1]), a_odd = _mm512_permutex2var_ps(a[0], odd, a[1]);
        const __m512 b_even = _mm512_permutex2var_ps(b[0], even, b[1]), b_odd = _mm512_permutex2var_ps(b[0], odd, b[1]);
        const __mmask16 in_a = wins(a_odd, a_even), in_b = wins(b_odd, b_even);
        const __m512 a_best = _mm512_mask_mov_ps(a_even, in_a, a_odd), b_best = _mm512_mask_mov_ps(b_even, in_b, b_odd);
        const __mmask16 lower = wins(b_best, a_best);
        __m512 best = _mm512_mask_mov_ps(a_best, lower, b_best);
        const std::int64_t at = y * ow + x;
        if constexpr (kPositions) {
          const __mmask16 right = static_cast<__mmask16>((lower & in_b) | (~lower & in_a));
          const __mmask16 not_positive = _mm512_cmp_ps_mask(best, _mm512_setzero_ps(), _CMP_LE_OQ);
          const __m128i bytes = _mm_or_si128(_mm_or_si128(_mm_maskz_set1_epi8(right, 1), _mm_maskz_set1_epi8(lower, 2)),
                                             _mm_maskz_set1_epi8(not_positive, kMaxPoolNotPositive));
          block.store_bytes(positions + at, ow, bytes);
        }
        if constexpr (kRelu == ReluPlace::after) best = positive(best);
        block.store_values(out + at, ow, best);
      });
}

template <ReluPlace kRelu>
PoolPlane choose(bool with_positions) {
  return with_positions ? pool_plane<true, kRelu> : pool_plane<false, kRelu>;
}

}  // namespace

PoolPlane pool_plane_avx512(bool with_positions, ReluPlace relu) {
  switch (relu) {
    case ReluPlace::before:
      return choose<ReluPlace::before>(with_positions);
    case ReluPlace::after:
      return choose<ReluPlace::after>(with_positions);
    default:
      return choose<ReluPlace::none>(with_positions);
  }
}

void spread_plane_avx512(const float* grad, const std::uint8_t* positions, std::int64_t h, std::int64_t width,
                         float* image) {
  const std::int64_t oh = h / 2, ow = width / 2;
  const __m512i left = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i right = _mm512_add_epi32(left, _mm512_set1_epi32(8));
  const __m256i in_upper = _mm256_set1_epi16(0x0100), in_lower = _mm256_set1_epi16(0x0302);
  for_each_block(
      oh, ow, [&](const auto& block, std::int64_t y, std::int64_t x) __attribute__((always_inline)) {
        const std::int64_t at = y * ow + x;
        const __m512 value = block.load_values(grad + at, ow);
        const __m128i bytes = _mm_and_si128(block.load_bytes(positions + at, ow), _mm_set1_epi8(3));
        // Each byte twice, for the two elements of a window's row.
        const __m256i twice = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi8(bytes, bytes)),
                                                      _mm_unpackhi_epi8(bytes, bytes), 1);
        const __m512 values[2] = {_mm512_maskz_permutexvar_ps(0xffff, left, value),
                                  _mm512_maskz_permutexvar_ps(0xffff, right, value)};
        const auto spread = [&](__m256i wanted, float* to) __attribute__((always_inline)) {
          const __mmask32 mask = _mm256_cmpeq_epi8_mask(twice, wanted);
          const __m512 row[2] = {_mm512_maskz_mov_ps(static_cast<__mmask16>(mask), values[0]),
                                 _mm512_maskz_mov_ps(static_cast<__mmask16>(mask >> 16), values[1])};
          block.store(to, 2 * width, row);
        };
        float* upper = image + 2 * (y * width + x);
        spread(in_upper, upper);
        spread(in_lower, upper + width);
      });
  // What no window covers.
  if (width % 2 != 0)
    for (std::int64_t y = 0; y < 2 * oh; ++y) image[y * width + width - 1] = 0.0f;
  if (h % 2 != 0)
    for (std::int64_t x = 0; x < width; ++x) image[(h - 1) * width + x] = 0.0f;
}

}  // namespace lockstep::max_pool_rows
