#pragma once

// The micro-kernels, written once over a description of a vector: included by the file of each instruction set, after
// the description.
//
// Note [One instruction set a file]
// Code of these files must not be shared with others by the linker: a copy that was compiled for AVX-512 would be taken
// where AVX2 is all there is. So everything here is in an unnamed namespace, and nothing of the standard library is
// used but fixed-width integers. Every fused multiply-add is spelled out.
//
// A description V of vectors has
//   T, Vector, kLanes              element, vector, elements of a vector
//   zero(), broadcast(p)           all lanes 0, or *p
//   load(p), store(p, v)           from and to any address
//   load_first(p, n), store_first(p, v, n)   the first n lanes, 0 < n <= kLanes, touching no other memory
//   add(x, y), multiply(x, y)      rounded each by itself
//   fused(x, y, z)                 x * y + z, rounded once
//   positive(x)                    x < 0 ? 0 : x, so NaN and -0 stay
//   kTurn, turn(group, stride, x)  lane j of x[p] is group[j / kTurn][j % kTurn * stride + p], for p below kTurn, which
//                                  divides kLanes

#include "lockstep/core/cpu/gemm/micro_kernel.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// The end of a tile, from sums in memory: [rows][vectors][kLanes]. The tile is `column` columns behind tile.out.
template <typename V>
void finish(const Tile<typename V::T>& tile, const typename V::Vector* sums, int rows, int vectors,
            std::int64_t column) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  const Vector alpha = V::broadcast(&tile.alpha), beta = V::broadcast(&tile.beta);
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t at = v * V::kLanes;
    const std::int64_t lanes = tile.columns - at < V::kLanes ? tile.columns - at : V::kLanes;
    const Vector bias = tile.bias ? V::load_first(tile.bias + column + at, lanes) : V::zero();
    for (int i = 0; i < rows; ++i) {
      T* const out = tile.out + i * tile.out_stride + column + at;
      Vector value = sums[i * vectors + v];
      if (tile.alpha != T(1)) value = V::multiply(alpha, value);
      if (tile.beta != T(0)) {
        const Vector old = V::load_first(out, lanes);
        value = V::add(tile.beta == T(1) ? old : V::multiply(beta, old), value);
      }
      if (tile.bias) value = V::add(value, bias);
      if (tile.row_bias) value = V::add(value, V::broadcast(tile.row_bias + i));
      if (tile.relu) value = V::positive(value);
      V::store_first(out, value, lanes);
    }
  }
}

constexpr int kAhead = 12;  // steps between what is in use and what is prefetched

// k steps along a and b, which are moved on; a_ahead and b_ahead elements behind them are prefetched.
template <typename V, int kRows, int kVectors, bool kByRows>
[[gnu::always_inline]] inline void add_steps(std::int64_t k, const typename V::T*& a, std::int64_t a_row,
                                             std::int64_t a_step, const typename V::T*& b, std::int64_t b_step,
                                             std::int64_t a_ahead, std::int64_t b_ahead,
                                             typename V::Vector (&sum)[kRows][kVectors]) {
  using Vector = typename V::Vector;
  constexpr int kLanes = V::kLanes;
#pragma GCC unroll 2
  for (std::int64_t p = k; p > 0; --p) {
    Vector x[kVectors];
    if constexpr (!kByRows) __builtin_prefetch(a + a_ahead);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      x[v] = V::load(b + v * kLanes);
      if (v * sizeof(Vector) % 64 == 0) __builtin_prefetch(b + b_ahead + v * kLanes);  // once a line
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vector y = V::broadcast(a + i * a_row);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = V::fused(y, x[v], sum[i][v]);
    }
    a += a_step;
    b += b_step;
  }
}

// Stores or adds a tile; the last vector of its rows has `last` lanes.
template <typename V, int kRows, int kVectors>
[[gnu::always_inline]] inline void store_sums(typename V::T* to, std::int64_t stride, bool add, std::int64_t last,
                                              const typename V::Vector (&sum)[kRows][kVectors]) {
  using T = typename V::T;
  constexpr int kLanes = V::kLanes, kWhole = kVectors - 1;
  if (!add && last == kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) V::store(to + i * stride + v * kLanes, sum[i][v]);
    return;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) {
    T* const out = to + i * stride;
#pragma GCC unroll 4
    for (int v = 0; v < kWhole; ++v)
      V::store(out + v * kLanes, add ? V::add(V::load(out + v * kLanes), sum[i][v]) : sum[i][v]);
    T* const end = out + kWhole * kLanes;
    if (last == kLanes)
      V::store(end, add ? V::add(V::load(end), sum[i][kWhole]) : sum[i][kWhole]);
    else
      V::store_first(end, add ? V::add(V::load_first(end, last), sum[i][kWhole]) : sum[i][kWhole], last);
  }
}

template <typename V, int kRows, int kVectors, bool kByRows>
void micro_kernel(const Tile<typename V::T>& tile) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  constexpr int kLanes = V::kLanes;
  const T* b = tile.b;
  const std::int64_t b_step = tile.b_step;
  const std::int64_t a_row = kByRows ? tile.a_row : 1, a_step = kByRows ? 1 : tile.a_step;
  // Most tiles are only stored or added.
  const bool plain =
      tile.alpha == T(1) && (tile.beta == T(0) || tile.beta == T(1)) && !tile.bias && !tile.row_bias && !tile.relu;
  // Behind a short chain lies nothing that is needed soon.
  const bool goes_on = tile.k > 48 || tile.segments > 1 || tile.run_count > 1;
  const std::int64_t a_ahead = goes_on ? kAhead * a_step : 0, b_ahead = goes_on ? kAhead * b_step : 0;
  std::int64_t tiles = tile.tiles, column = 0;
  do {
    const T* a = tile.a;
    if (tile.k > 48)  // else there is no time for it
      for (int i = 0; i < kRows; ++i) {
        __builtin_prefetch(tile.out + i * tile.out_stride + column, 1);
        __builtin_prefetch(tile.out + i * tile.out_stride + column + tile.columns - 1, 1);
      }
    Vector sum[kRows][kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = V::zero();
    if (tile.resumes)
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[i][v] = V::load(tile.sums + (i * kVectors + v) * kLanes);
    if constexpr (kByRows) {
      std::int64_t repeats = tile.repeats;
      do {
        std::int64_t segments = tile.segments;
        do {
          add_steps<V, kRows, kVectors, kByRows>(tile.k, a, a_row, a_step, b, b_step, a_ahead, b_ahead, sum);
          a += tile.a_segment;
        } while (--segments > 0);
        a += tile.a_repeat;
      } while (--repeats > 0);
    } else {
      const Run all{tile.k, 0};
      const Run* run = tile.runs ? tile.runs : &all;
      std::int64_t runs = tile.run_count;
      do {
        add_steps<V, kRows, kVectors, kByRows>(run->k, a, a_row, a_step, b, b_step, a_ahead, b_ahead, sum);
        a += run++->skip;
      } while (--runs > 0);
      if (tile.plus_zero) [[unlikely]] {
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[i][v] = V::add(sum[i][v], V::zero());
      }
    }

    if (tile.pauses) [[unlikely]] {
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) V::store(tile.sums + (i * kVectors + v) * kLanes, sum[i][v]);
      return;
    }
    if (plain) {
      const std::int64_t last = tile.columns - (kVectors - 1) * kLanes;
      store_sums<V, kRows, kVectors>(tile.out + column, tile.out_stride, tile.beta != T(0), last, sum);
    } else {
      Vector sums[kRows * kVectors];
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[i * kVectors + v] = sum[i][v];
      finish<V>(tile, sums, kRows, kVectors, column);
    }
    b += tile.b_tile;
    column += kVectors * kLanes;
  } while (--tiles > 0);
}

// to[p * to_stride + j] = from[j * stride + p] for p and j below kLanes
template <typename V>
[[gnu::always_inline]] inline void transpose(const typename V::T* from, std::int64_t stride, typename V::T* to,
                                             std::int64_t to_stride) {
  constexpr int kGroups = V::kLanes / V::kTurn;
  const typename V::T* groups[kGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) groups[g] = from + g * V::kTurn * stride;
#pragma GCC unroll 1
  for (int p = 0; p < V::kLanes; p += V::kTurn, to += V::kTurn * to_stride) {
    typename V::Vector x[V::kTurn];
    V::turn(groups, stride, x);
#pragma GCC unroll 4
    for (int q = 0; q < V::kTurn; ++q) V::store(to + q * to_stride, x[q]);
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) groups[g] += V::kTurn;
  }
}

// A pointer of which the compiler does not know that it is another one plus an offset, so that it keeps no register for
// each sum of the two.
template <typename T>
[[gnu::always_inline]] inline const T* apart(const T* p) {
  asm("" : "+r"(p));
  return p;
}

// lane j of x[p] is from[j * stride + p], for p below piece<V>()
template <typename V>
constexpr int piece() {
  if constexpr (requires { V::turn_line; })
    return 64 / sizeof(typename V::T);
  else
    return V::kTurn;
}
template <typename V>
[[gnu::always_inline]] inline void turn_piece(const typename V::T* from, std::int64_t stride, typename V::Vector* x) {
  if constexpr (requires { V::turn_line; }) {
    V::turn_line(from, stride, x);
  } else {
    const typename V::T* group[V::kLanes / V::kTurn];
#pragma GCC unroll 4
    for (int g = 0; g < V::kLanes / V::kTurn; ++g) group[g] = from + g * V::kTurn * stride;
    V::turn(group, stride, x);
  }
}

// For few rows and b stored by columns: nothing is packed.
template <typename V, int kRows, int kVectors, bool kByRows>
void turning_kernel(const Tile<typename V::T>& tile) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  constexpr int kLanes = V::kLanes, kTurn = V::kTurn, kGroups = kVectors * kLanes / kTurn, kRowGroups = (kRows + 3) / 4;
  constexpr int kLine = 64 / sizeof(T), kFarAhead = 3 * kLine, kPiece = piece<V>();
  const std::int64_t b_step = tile.b_step, k = tile.k;
  const std::int64_t a_row = kByRows ? tile.a_row : 1, a_step = kByRows ? 1 : tile.a_step;
  Vector sum[kVectors][kRows];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) sum[v][i] = V::zero();
  const T* a[kRowGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kRowGroups; ++g) a[g] = apart(tile.a + 4 * g * a_row);
  const T* b[kGroups];
#pragma GCC unroll 16
  for (int g = 0; g < kGroups; ++g) b[g] = apart(tile.b + g * kTurn * b_step);
  std::int64_t p = 0;
  if constexpr (kRows == 1) {
    // Vector by vector a line of the cache of each row: few lines are in use at a time, which matters where rows of
    // memory share places of a cache.
    const bool crowded = b_step * static_cast<std::int64_t>(sizeof(T)) % 2048 == 0;
    const std::int64_t end = kPiece == kLine || crowded ? k : 0;
#pragma GCC unroll 1
    for (; p + kLine <= end; p += kLine) {
      const T* first = tile.b + p;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
        for (int t = 0; t < kLine; t += kPiece) {
          Vector x[kPiece];
          turn_piece<V>(first + t, b_step, x);
#pragma GCC unroll 16
          for (int r = 0; r < kPiece; ++r) sum[v][0] = V::fused(V::broadcast(a[0] + (t + r) * a_step), x[r], sum[v][0]);
        }
        first += kLanes * b_step;
        first = apart(first);
      }
      a[0] += kLine * a_step;
    }
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) b[g] += p;
  }
  std::int64_t row = 0;  // of each group, to prefetch
#pragma GCC unroll 1
  for (; p + kTurn <= k; p += kTurn, row = row == 3 * b_step ? 0 : row + b_step) {
#pragma GCC unroll 16
    for (int g = 0; g < kGroups; ++g) __builtin_prefetch(b[g] + kFarAhead + row);
    if constexpr (kRows == 1) {  // vector by vector, so that registers suffice
      Vector y[kTurn];
#pragma GCC unroll 4
      for (int r = 0; r < kTurn; ++r) y[r] = V::broadcast(a[0] + r * a_step);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        Vector x[kTurn];
        V::turn(b + v * (kLanes / kTurn), b_step, x);
#pragma GCC unroll 4
        for (int r = 0; r < kTurn; ++r) sum[v][0] = V::fused(y[r], x[r], sum[v][0]);
      }
      a[0] += kTurn * a_step;
#pragma GCC unroll 16
      for (int g = 0; g < kGroups; ++g) b[g] += kTurn;
    } else {
      Vector x[kVectors][kTurn];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) V::turn(b + v * (kLanes / kTurn), b_step, x[v]);
#pragma GCC unroll 16
      for (int g = 0; g < kGroups; ++g) b[g] += kTurn;
#pragma GCC unroll 4
      for (int r = 0; r < kTurn; ++r) {
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const Vector y = V::broadcast(a[i / 4] + i % 4 * a_row + (kByRows ? r : 0));
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[v][i] = V::fused(y, x[v][r], sum[v][i]);
        }
        if constexpr (!kByRows)
#pragma GCC unroll 4
          for (int g = 0; g < kRowGroups; ++g) a[g] += a_step;
      }
    }
    if constexpr (kByRows && kRows > 1)
#pragma GCC unroll 4
      for (int g = 0; g < kRowGroups; ++g) a[g] += kTurn;
  }
  Vector sums[kRows * kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i * kVectors + v] = sum[v][i];
  for (; p < k; ++p)  // fewer than kTurn
    for (int v = 0; v < kVectors; ++v) {
      T lines[kLanes];
      for (int j = 0; j < kLanes; ++j) lines[j] = tile.b[(v * kLanes + j) * b_step + p];
      const Vector x = V::load(lines);
      for (int i = 0; i < kRows; ++i) {
        Vector& s = sums[i * kVectors + v];
        s = V::fused(V::broadcast(tile.a + i * a_row + p * a_step), x, s);
      }
    }
  finish<V>(tile, sums, kRows, kVectors, 0);
}

// For few rows and many columns of b as it lies: some rows of b at a time, along which memory is read in order. The
// sums are in tile.sums, whole vectors of a row of the tile side by side.
template <typename V, int kRows, bool kByRows>
void streaming_kernel(const Tile<typename V::T>& tile) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  constexpr int kLanes = V::kLanes, kSteps = 8 / kRows;  // registers hold kRows * kSteps elements of a
  const std::int64_t a_row = kByRows ? tile.a_row : 1, a_step = kByRows ? 1 : tile.a_step;
  const std::int64_t vectors = (tile.columns + kLanes - 1) / kLanes, last = tile.columns - (vectors - 1) * kLanes;
  const std::int64_t width = vectors * kLanes;
  const auto steps = [&]<int kCount>(std::int64_t p) __attribute__((always_inline)) {
    Vector y[kCount][kRows];
#pragma GCC unroll 8
    for (int q = 0; q < kCount; ++q)
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) y[q][i] = V::broadcast(tile.a + i * a_row + (p + q) * a_step);
    const T* const b = tile.b + p * tile.b_step;
    const auto vector = [&](std::int64_t j, auto load) __attribute__((always_inline)) {
      Vector sum[kRows];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sum[i] = p == 0 ? V::zero() : V::load(tile.sums + i * width + j);
#pragma GCC unroll 8
      for (int q = 0; q < kCount; ++q) {
        const Vector x = load(b + q * tile.b_step + j);
#pragma GCC unroll 8
        for (int i = 0; i < kRows; ++i) sum[i] = V::fused(y[q][i], x, sum[i]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) V::store(tile.sums + i * width + j, sum[i]);
    };
#pragma GCC unroll 2
    for (std::int64_t j = 0; j < width - kLanes; j += kLanes)
      vector(
          j, [](const T* from) __attribute__((always_inline)) { return V::load(from); });
    vector(
        width - kLanes, [last](const T* from) __attribute__((always_inline)) { return V::load_first(from, last); });
  };
  std::int64_t p = 0;
#pragma GCC unroll 1
  for (; p + kSteps <= tile.k; p += kSteps) steps.template operator()<kSteps>(p);
#pragma GCC unroll 1
  for (; p < tile.k; ++p) steps.template operator()<1>(p);
  finish<V>(tile, reinterpret_cast<const Vector*>(tile.sums), kRows, static_cast<int>(vectors), 0);
}

// Squares of kLanes x kLanes; the last ones along k lie over their neighbours.
template <typename V>
void pack_columns(const typename V::T* from, std::int64_t stride, std::int64_t k, std::int64_t width, typename V::T* to,
                  std::int64_t to_stride) {
  using T = typename V::T;
  constexpr std::int64_t kLanes = V::kLanes;
  const std::int64_t padded = (width + kLanes - 1) / kLanes * kLanes;
  if (k < kLanes) {
    for (std::int64_t j = 0; j < padded; ++j) {
      for (std::int64_t p = 0; p < k; ++p) to[p * to_stride + j] = j < width ? from[j * stride + p] : T(0);
    }
    return;
  }
  // Two squares of a row of squares at a time: a line of the cache.
  constexpr std::int64_t kLine = 2 * kLanes;
  for (std::int64_t line = 0; line < k; line += kLine)
    for (std::int64_t first = 0; first < width; first += kLanes)
      for (std::int64_t next = line; next < line + kLine && next < k; next += kLanes) {
        const std::int64_t p = next + kLanes <= k ? next : k - kLanes;
        const T* const square = from + first * stride + p;
        T* const out = to + p * to_stride + first;
        if (first + kLanes <= width) {
          transpose<V>(square, stride, out, to_stride);
        } else {  // what is not there counts as 0
          T rows[kLanes * kLanes];
          for (std::int64_t j = 0; j < kLanes; ++j)
            V::store(rows + j * kLanes, first + j < width ? V::load(square + j * stride) : V::zero());
          transpose<V>(rows, kLanes, out, to_stride);
        }
      }
}

template <typename V, int kVectors, int kRows>
constexpr void fill(MicroKernels<typename V::T>& kernels) {
  kernels.table[0][kVectors][kRows] = micro_kernel<V, kRows, kVectors, false>;
  kernels.table[1][kVectors][kRows] = micro_kernel<V, kRows, kVectors, true>;
  if constexpr (kRows > 1) fill<V, kVectors, kRows - 1>(kernels);
}

// Enough chains to hide the latency of one.
constexpr int turning_vectors(int lanes, int rows) {
  return rows == 1 && lanes <= 8 ? 4 : rows < 4 ? 2 : 1;
}

template <typename V, int kRows>
constexpr void fill_turning(MicroKernels<typename V::T>& kernels) {
  constexpr int kVectors = turning_vectors(V::kLanes, kRows);
  kernels.turning[0][kRows] = turning_kernel<V, kRows, kVectors, false>;
  kernels.turning[1][kRows] = turning_kernel<V, kRows, kVectors, true>;
  kernels.turning_vectors[kRows] = kVectors;
  if constexpr (kRows > 1) fill_turning<V, kRows - 1>(kernels);
}

template <typename V, int kRows>
constexpr void fill_streaming(MicroKernels<typename V::T>& kernels) {
  kernels.streaming[0][kRows] = streaming_kernel<V, kRows, false>;
  kernels.streaming[1][kRows] = streaming_kernel<V, kRows, true>;
  if constexpr (kRows > 1) fill_streaming<V, kRows - 1>(kernels);
}

// kRows1 ... kRows4: the most rows of a tile that is 1 ... 4 vectors wide. Registers hold its sums, the vectors of one
// row of b, and an element of a.
template <typename V, int kRows1, int kRows2, int kRows3, int kRows4, int kTurningRows, int kStreamingRows>
constexpr MicroKernels<typename V::T> make_micro_kernels() {
  MicroKernels<typename V::T> kernels{.lanes = V::kLanes,
                                      .rows = {0, kRows1, kRows2, kRows3, kRows4},
                                      .table = {},
                                      .turning = {},
                                      .turning_vectors = {},
                                      .streaming = {},
                                      .streaming_rows = kStreamingRows,
                                      .pack_columns = pack_columns<V>};
  fill<V, 1, kRows1>(kernels);
  fill<V, 2, kRows2>(kernels);
  fill<V, 3, kRows3>(kernels);
  fill<V, 4, kRows4>(kernels);
  fill_turning<V, kTurningRows>(kernels);
  fill_streaming<V, kStreamingRows>(kernels);
  return kernels;
}

}  // namespace
}  // namespace lockstep::cpu::gemm_detail
