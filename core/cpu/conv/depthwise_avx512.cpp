// Compiled for AVX-512 (F, BW, DQ, VL) whatever the build's own instruction set is.
// Note [One instruction set a file] in core/cpu/gemm/micro_kernel_body.h

#include <immintrin.h>

#include "lockstep/core/cpu/conv/depthwise_wide.h"

namespace lockstep::cpu::conv_detail {
namespace {

constexpr std::int64_t kWide = 16;

__mmask16 first(std::int64_t n) {
  return n >= kWide ? __mmask16{0xffff} : static_cast<__mmask16>((1u << n) - 1);
}

// Elements [column, column + 16) of a row of w; 0 beside it.
[[gnu::always_inline]] inline __m512 load(const float* row, std::int64_t column, std::int64_t w) {
  if (column < 0 || column >= w) return _mm512_setzero_ps();
  return _mm512_maskz_loadu_ps(first(w - column), row + column);
}

// Lane j: element j + kShift of `at`, where lanes below 0 are those of `before`, and lanes from 16 on of `after`.
template <int kShift>
[[gnu::always_inline]] inline __m512 shifted(__m512 before, __m512 at, __m512 after) {
  if constexpr (kShift == 0)
    return at;
  else if constexpr (kShift < 0)
    return _mm512_castsi512_ps(_mm512_maskz_alignr_epi32(0xffff, _mm512_castps_si512(at), _mm512_castps_si512(before),
                                                         static_cast<int>(kWide) + kShift));
  else
    return _mm512_castsi512_ps(
        _mm512_maskz_alignr_epi32(0xffff, _mm512_castps_si512(after), _mm512_castps_si512(at), kShift));
}

// What V vectors of results see of a row, and their neighbours; for a step of 2 even and odd columns by themselves.
template <int kStep, int V>
struct Row {
  __m512 part[kStep][V + 2];

  [[gnu::always_inline]] void read(const float* row, std::int64_t x, std::int64_t w) {
#pragma GCC unroll 4
    for (int j = 0; j < V + 2; ++j) {
      const std::int64_t column = kStep * (x + kWide * (j - 1));
      if constexpr (kStep == 1) {
        part[0][j] = load(row, column, w);
      } else {
        const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const __m512i odds = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
        const __m512 low = load(row, column, w), high = load(row, column + kWide, w);
        part[0][j] = _mm512_permutex2var_ps(low, evens, high);
        part[1][j] = _mm512_permutex2var_ps(low, odds, high);
      }
    }
  }
  void clear() {
    for (int s = 0; s < kStep; ++s)
      for (int j = 0; j < V + 2; ++j) part[s][j] = _mm512_setzero_ps();
  }
  // Column kStep * x + kDistance for each result x of vector v.
  template <int kDistance>
  [[gnu::always_inline]] __m512 at(int v) const {
    constexpr int kPart = kStep == 1 ? 0 : (kDistance % 2 + 2) % 2;
    constexpr int kShift = (kDistance - kPart) / kStep;
    return shifted<kShift>(part[kPart][v], part[kPart][v + 1], part[kPart][v + 2]);
  }
};

// Calls body(constant I) for I = 0 ... N - 1.
template <int I>
struct Constant {
  static constexpr int value = I;
};
template <int N, int I = 0, typename Body>
[[gnu::always_inline]] inline void for_each(const Body& body) {
  if constexpr (I < N) {
    body(Constant<I>{});
    for_each<N, I + 1>(body);
  }
}

[[gnu::always_inline]] inline __m512 finished(__m512 sum, float term, bool relu) {
  const __m512 value = _mm512_add_ps(sum, _mm512_set1_ps(term));
  return relu ? _mm512_maskz_max_ps(0xffff, _mm512_setzero_ps(), value) : value;  // NaN: the second
}

// Of R rows from y on, V vectors from x on.
template <int K, int kStep, int R, int V>
void results(const WidePlane& p, const float* image, const float* weights, float term, bool relu, std::int64_t y,
             std::int64_t x, float* out) {
  __m512 sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = _mm512_setzero_ps();
  Row<kStep, V> row;
  for_each<kStep*(R - 1) + K>([&](auto i) __attribute__((always_inline)) {
    const std::int64_t at = kStep * y + i.value - K / 2;
    at >= 0 && at < p.h ? row.read(image + at * p.w, x, p.w) : row.clear();
    for_each<K>([&](auto kx) __attribute__((always_inline)) {
      for_each<V>([&](auto v) __attribute__((always_inline)) {
        const __m512 seen = row.template at<kx.value - K / 2>(v.value);
        for_each<R>([&](auto r) __attribute__((always_inline)) {
          constexpr int kRow = decltype(i)::value - kStep * decltype(r)::value;
          if constexpr (kRow >= 0 && kRow < K) {
            const __m512 factor = _mm512_set1_ps(weights[kRow * K + kx.value]);
            sum[r.value][v.value] = _mm512_fmadd_ps(factor, seen, sum[r.value][v.value]);
          }
        });
      });
    });
  });
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      _mm512_mask_storeu_ps(out + (y + r) * p.ow + x + v * kWide, first(p.ow - x - v * kWide),
                            finished(sum[r][v], term, relu));
}

template <int K, int kStep, int V>
void results(const WidePlane& p, const float* image, const float* weights, float term, bool relu, std::int64_t x,
             float* out) {
  std::int64_t y = 0;
  for (; y + 4 <= p.oh; y += 4) results<K, kStep, 4, V>(p, image, weights, term, relu, y, x, out);
  for (; y + 2 <= p.oh; y += 2) results<K, kStep, 2, V>(p, image, weights, term, relu, y, x, out);
  for (; y < p.oh; ++y) results<K, kStep, 1, V>(p, image, weights, term, relu, y, x, out);
}

template <int K, int kStep>
void results(const WidePlane& p, const float* image, const float* weights, float term, bool relu, float* out) {
  std::int64_t x = 0;
  for (; x + kWide < p.ow; x += 2 * kWide) results<K, kStep, 2>(p, image, weights, term, relu, x, out);
  if (x < p.ow) results<K, kStep, 1>(p, image, weights, term, relu, x, out);
}

// Of a row, the pixels of 2 * V vectors from column 2 * x on. Even and odd pixels, and even and odd rows, see taps of
// their own.
template <int K, int kOdd, int V>
void gradients(const WidePlane& p, const float* grad, const float* weights, std::int64_t y, std::int64_t x,
               float* x_grad) {
  __m512 sum[2][V];
  for (int q = 0; q < 2; ++q)
    for (int v = 0; v < V; ++v) sum[q][v] = _mm512_setzero_ps();
  Row<1, V> row;
  for_each<K>([&](auto i) __attribute__((always_inline)) {
    constexpr int kRow = K - 1 - decltype(i)::value, kDistance = kOdd + K / 2 - kRow;
    if constexpr (kDistance % 2 == 0) {
      const std::int64_t at = y / 2 + kDistance / 2;
      at >= 0 && at < p.oh ? row.read(grad + at * p.ow, x, p.ow) : row.clear();
      for_each<K>([&](auto j) __attribute__((always_inline)) {
        constexpr int kColumn = K - 1 - decltype(j)::value, kPixel = (kColumn + K / 2) % 2;
        const __m512 factor = _mm512_set1_ps(weights[kRow * K + kColumn]);
        for_each<V>([&](auto v) __attribute__((always_inline)) {
          const __m512 seen = row.template at<(kPixel + K / 2 - kColumn) / 2>(v.value);
          sum[kPixel][v.value] = _mm512_fmadd_ps(factor, seen, sum[kPixel][v.value]);
        });
      });
    }
  });
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  for (int v = 0; v < V; ++v) {
    const std::int64_t column = 2 * (x + v * kWide), left = p.w - column;
    float* const to = x_grad + y * p.w + column;
    const __m512 even = finished(sum[0][v], 0.0f, false), odd = finished(sum[1][v], 0.0f, false);
    if (left > 0) _mm512_mask_storeu_ps(to, first(left), _mm512_permutex2var_ps(even, low, odd));
    if (left > kWide) _mm512_mask_storeu_ps(to + kWide, first(left - kWide), _mm512_permutex2var_ps(even, high, odd));
  }
}

template <int K, int V>
void gradients(const WidePlane& p, const float* grad, const float* weights, std::int64_t x, float* x_grad) {
  for (std::int64_t y = 0; y < p.h; y += 2) {
    gradients<K, 0, V>(p, grad, weights, y, x, x_grad);
    if (y + 1 < p.h) gradients<K, 1, V>(p, grad, weights, y + 1, x, x_grad);
  }
}

template <int K>
void gradients(const WidePlane& p, const float* grad, const float* weights, float* x_grad) {
  std::int64_t x = 0;
  for (; x + kWide < p.ow; x += 2 * kWide) gradients<K, 2>(p, grad, weights, x, x_grad);
  if (x < p.ow) gradients<K, 1>(p, grad, weights, x, x_grad);
}

// Of one row of the kernel's taps, V vectors of a row of gradients.
template <int K, int kStep, int V>
[[gnu::always_inline]] inline void add_to_chains(const WidePlane& p, const float* image, const float* grad,
                                                 std::int64_t tap_row, std::int64_t y, std::int64_t x,
                                                 __m512 (&sum)[K]) {
  __m512 g[V];
  __mmask16 used[V];
  for (int v = 0; v < V; ++v) {
    const std::int64_t left = p.ow - x - v * kWide;
    g[v] = _mm512_maskz_loadu_ps(first(left), grad + y * p.ow + x + v * kWide);
    // Halves without a column keep their sums, -0 too.
    used[v] = left > kWide / 2 ? __mmask16{0xffff} : __mmask16{0x00ff};
  }
  Row<kStep, V> row;
  const std::int64_t at = kStep * y + tap_row - K / 2;
  at >= 0 && at < p.h ? row.read(image + at * p.w, x, p.w) : row.clear();
  for_each<V>([&](auto v) __attribute__((always_inline)) {
    for_each<K>([&](auto kx) __attribute__((always_inline)) {
      // Behind the last column a gradient is 0; what it meets there may be no number.
      const __m512 seen =
          _mm512_maskz_mov_ps(first(p.ow - x - v.value * kWide), row.template at<kx.value - K / 2>(v.value));
      sum[kx.value] = _mm512_mask3_fmadd_ps(g[v.value], seen, sum[kx.value], used[v.value]);
    });
  });
}

template <int K, int kStep>
void weight_chains(const WidePlane& p, const float* image, const float* grad, float* chains) {
  for (std::int64_t row = 0; row < K; ++row, chains += K * kWide) {
    __m512 sum[K];
    for (int k = 0; k < K; ++k) sum[k] = _mm512_loadu_ps(chains + kWide * k);
    for (std::int64_t y = 0; y < p.oh; ++y) {
      std::int64_t x = 0;
      for (; x + kWide < p.ow; x += 2 * kWide) add_to_chains<K, kStep, 2>(p, image, grad, row, y, x, sum);
      if (x < p.ow) add_to_chains<K, kStep, 1>(p, image, grad, row, y, x, sum);
    }
    for (int k = 0; k < K; ++k) _mm512_storeu_ps(chains + kWide * k, sum[k]);
  }
}

// Adds to rows First ... Last of the sums what they see of one row of the plane. `weights` are those of row 0; the ones
// of the rows below it lie above them.
template <int First, int Last, int R, int V>
[[gnu::always_inline]] inline void add_seen(const TapRows& taps, const float* from, const float* weights,
                                            __m512 (&sum)[R][V]) {
  for (std::int64_t k = 0; k < taps.columns; ++k, from += taps.dilation, ++weights) {
    __m512 seen[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) seen[v] = _mm512_loadu_ps(from + v * kWide);
#pragma GCC unroll 8
    for (int r = First; r <= Last; ++r) {
      const __m512 factor = _mm512_set1_ps(weights[-r * taps.columns]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = _mm512_fmadd_ps(factor, seen[v], sum[r][v]);
    }
  }
}

// V vectors of each of R rows, of no more than the kernel has.
template <int R, int V>
void results_of_rows(const TapRows& taps, const float* from, const float* weights, float term, bool relu, float* out,
                     std::int64_t columns) {
  __m512 sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = _mm512_setzero_ps();
  const auto next = [&]() __attribute__((always_inline)) {
    from += taps.pitch, weights += taps.columns;
  };
  for_each<R - 1>([&](auto i) __attribute__((always_inline)) {
    add_seen<0, decltype(i)::value>(taps, from, weights, sum);
    next();
  });
  for (std::int64_t i = R - 1; i < taps.rows; ++i, next()) add_seen<0, R - 1>(taps, from, weights, sum);
  for_each<R - 1>([&](auto i) __attribute__((always_inline)) {
    add_seen<decltype(i)::value + 1, R - 1>(taps, from, weights, sum);
    next();
  });
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      _mm512_mask_storeu_ps(out + r * taps.ow + v * kWide, first(columns - v * kWide), finished(sum[r][v], term, relu));
}

template <int V>
void results_of_columns(const TapRows& taps, const float* from, const float* weights, float term, bool relu, float* out,
                        std::int64_t columns) {
  std::int64_t y = 0;
  const auto rows = [&]<int R>(Constant<R>) __attribute__((always_inline)) {
    for (; y + R <= taps.oh && R <= taps.rows; y += R)
      results_of_rows<R, V>(taps, from + y * taps.pitch, weights, term, relu, out + y * taps.ow, columns);
  };
  if constexpr (V == 1) rows(Constant<8>());
  rows(Constant<4>());
  rows(Constant<2>());
  rows(Constant<1>());
}

}  // namespace

void wide_results(const TapRows& taps, const float* from, const float* weights, float term, bool relu, float* out) {
  std::int64_t x = 0;
  for (; x + kWide < taps.ow; x += 2 * kWide)
    results_of_columns<2>(taps, from + x, weights, term, relu, out + x, taps.ow - x);
  if (x < taps.ow) results_of_columns<1>(taps, from + x, weights, term, relu, out + x, taps.ow - x);
}

void wide_results(const WidePlane& p, const float* image, const float* weights, float term, bool relu, float* out) {
  if (p.side == 3)
    return p.step == 1 ? results<3, 1>(p, image, weights, term, relu, out)
                       : results<3, 2>(p, image, weights, term, relu, out);
  if (p.side == 5)
    return p.step == 1 ? results<5, 1>(p, image, weights, term, relu, out)
                       : results<5, 2>(p, image, weights, term, relu, out);
  return p.step == 1 ? results<7, 1>(p, image, weights, term, relu, out)
                     : results<7, 2>(p, image, weights, term, relu, out);
}

void wide_image_gradient_of_step_2(const WidePlane& p, const float* grad, const float* weights, float* x_grad) {
  if (p.side == 3) return gradients<3>(p, grad, weights, x_grad);
  if (p.side == 5) return gradients<5>(p, grad, weights, x_grad);
  gradients<7>(p, grad, weights, x_grad);
}

void wide_weight_chains(const WidePlane& p, const float* image, const float* grad, float* chains) {
  if (p.side == 5)
    return p.step == 1 ? weight_chains<5, 1>(p, image, grad, chains) : weight_chains<5, 2>(p, image, grad, chains);
  return p.step == 1 ? weight_chains<7, 1>(p, image, grad, chains) : weight_chains<7, 2>(p, image, grad, chains);
}

}  // namespace lockstep::cpu::conv_detail
