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
//   turn_square(from, stride, x)   optional: the same for all kLanes columns, each row read once

#include "lockstep/core/cpu/gemm/asks_body.h"
#include "lockstep/core/cpu/gemm/few_rows_body.h"
#include "lockstep/core/cpu/gemm/finish_body.h"
#include "lockstep/core/cpu/gemm/micro_kernel.h"
#include "lockstep/core/cpu/gemm/one_row_body.h"
#include "lockstep/core/cpu/gemm/turning_body.h"

namespace lockstep::cpu::gemm_detail {
namespace {

constexpr int kAhead = 12;         // steps between what is in use and what is prefetched
constexpr int kSpreadSteps = 320;  // a chain so long that what comes next is asked for in its course, not at its start
constexpr int kLaterSteps = 64;    // the same where something comes from far
template <typename V, int kRows, int kVectors>
constexpr bool kSpreads = sizeof(typename V::Vector) == 64 && kRows* kVectors >= kLeastSpread;

// Many rows of a, one step of them after the other. Five are addressed from one pointer, so that pointers and strides
// stay in registers.
template <typename T, int kRows>
class ManyRows {
 public:
  [[gnu::always_inline]] ManyRows(const T* a, std::int64_t a_row)
      : row_(a_row * static_cast<std::int64_t>(sizeof(T))), rows3_(3 * row_) {
#pragma GCC unroll 4
    for (int g = 0; g < kPointers; ++g) a_[g] = apart(a + g * kRowsOfPointer * a_row);
  }
  [[gnu::always_inline]] const T* at(int i) const {
    const int row = i % kRowsOfPointer;
    const std::int64_t offset = row == 3 ? rows3_ : row * row_;
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(a_[i / kRowsOfPointer]) + offset);
  }
  // The compiler forgets the multiples of strides, for which it would need registers.
  [[gnu::always_inline]] void advance(int steps) {
    asm("" : "+r"(row_), "+r"(rows3_));
#pragma GCC unroll 4
    for (int g = 0; g < kPointers; ++g) a_[g] += steps;
  }

 private:
  static constexpr int kRowsOfPointer = 5, kPointers = (kRows + kRowsOfPointer - 1) / kRowsOfPointer;
  const T* a_[kPointers];
  std::int64_t row_, rows3_;
};

// k steps along a and b, which are moved on; a_ahead and b_ahead elements behind them are prefetched, and every
// kAskSteps steps some of what asks names.
template <typename V, int kRows, int kVectors, bool kByRows, typename Asks = AsksNothing>
[[gnu::always_inline]] inline void add_steps(std::int64_t k, const typename V::T*& a, std::int64_t a_row,
                                             std::int64_t a_step, const typename V::T*& b, std::int64_t b_step,
                                             std::int64_t a_ahead, std::int64_t b_ahead,
                                             typename V::Vector (&sum)[kRows][kVectors], Asks* asks = nullptr) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  constexpr int kLanes = V::kLanes;
  // One step, of which row i of a is at at(i).
  const auto add_step = [&](const auto& at) __attribute__((always_inline)) {
    Vector x[kVectors];
    if constexpr (!kByRows) __builtin_prefetch(a + a_ahead);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      x[v] = V::load(b + v * kLanes);
      if (v * sizeof(Vector) % 64 == 0) __builtin_prefetch(b + b_ahead + v * kLanes);  // once a line
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vector y = V::broadcast(at(i));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = V::fused(y, x[v], sum[i][v]);
    }
  };
  if constexpr (!__is_same(Asks, AsksNothing)) {
    for (; k > kAskSteps; k -= kAskSteps) {
      asks->some();
      add_steps<V, kRows, kVectors, kByRows>(kAskSteps, a, a_row, a_step, b, b_step, a_ahead, b_ahead, sum);
    }
  }
  if constexpr (kByRows && kRows > 9) {
    ManyRows<T, kRows> rows(a, a_row);
    a += k;
#pragma GCC unroll 1
    for (std::int64_t p = k / 2; p > 0; --p) {
      add_step([&](int i) __attribute__((always_inline)) { return rows.at(i); });
      b = apart(b + b_step);
      add_step([&](int i) __attribute__((always_inline)) { return rows.at(i) + 1; });
      b = apart(b + b_step);
      rows.advance(2);
    }
    if (k % 2 == 1) {
      add_step([&](int i) __attribute__((always_inline)) { return rows.at(i); });
      b += b_step;
    }
  } else {
#pragma GCC unroll 2
    for (std::int64_t p = k; p > 0; --p) {
      add_step([&](int i) __attribute__((always_inline)) { return a + i * a_row; });
      a += a_step;
      b += b_step;
    }
  }
}

// A row of tiles of one chain of many steps each.
template <typename V, int kRows, int kVectors, bool kByRows>
[[gnu::noinline]] void long_kernel(const Tile<typename V::T>& tile) {
  using T = typename V::T;
  constexpr int kLanes = V::kLanes;
  const T* b = tile.b;
  const std::int64_t a_row = kByRows ? tile.a_row : 1, a_step = kByRows ? 1 : tile.a_step;
  const bool plain = is_plain(tile);
  std::int64_t tiles = tile.tiles, column = 0;
  SpreadAsks<T, kRows, kByRows> asks(tile);
  do {
    const T* a = tile.a;
    asks.begin(tile.out + column, tile.columns - 1);
    typename V::Vector sum[kRows][kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = V::zero();
    add_steps<V, kRows, kVectors, kByRows>(tile.k, a, a_row, a_step, b, tile.b_step, kAhead * a_step,
                                           kAhead * tile.b_step, sum, &asks);
    if (plain)
      store_sums<V>(tile, column, sum);
    else
      finish_in_registers<V>(tile, column, sum);
    b += tile.b_tile;
    column += kVectors * kLanes;
  } while (--tiles > 0);
}

template <typename V, int kRows, int kVectors, bool kByRows>
void micro_kernel(const Tile<typename V::T>& tile) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  constexpr int kLanes = V::kLanes, kLine = 64 / sizeof(T);
  if constexpr (kSpreads<V, kRows, kVectors>) {
    const bool one = !tile.runs && tile.segments <= 1 && tile.repeats <= 1 && !tile.resumes && !tile.pauses;
    if ((tile.k >= kSpreadSteps || (tile.later && tile.k > kLaterSteps)) && one && !tile.plus_zero)
      return long_kernel<V, kRows, kVectors, kByRows>(tile);
  }
  const T* b = tile.b;
  const std::int64_t b_step = tile.b_step;
  const std::int64_t a_row = kByRows ? tile.a_row : 1, a_step = kByRows ? 1 : tile.a_step;
  const bool plain = is_plain(tile);
  // Behind a short chain lies nothing that is needed soon.
  const bool goes_on = tile.k > 48 || tile.segments > 1 || tile.run_count > 1;
  const std::int64_t a_ahead = goes_on ? kAhead * a_step : 0, b_ahead = goes_on ? kAhead * b_step : 0;
  std::int64_t tiles = tile.tiles, column = 0;
  // Of the next panel, lines of each row, or steps of one by columns: all, and those to ask for with each tile.
  const std::int64_t lines = !tile.next ? 0 : kByRows ? (tile.k + kLine - 1) / kLine : tile.k;
  const std::int64_t asks = lines == 0 ? 0 : lines / (tiles > 0 ? tiles : 1) + 1;
  std::int64_t asked = 0;
  do {
    const T* a = tile.a;
    if (asked < lines) {
      ask_for_panel<T, kRows, kByRows>(tile.next, a_row, a_step, asked, asks);
      asked += asks;
    }
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
    if (plain)
      store_sums<V>(tile, column, sum);
    else
      finish_in_registers<V>(tile, column, sum);
    b += tile.b_tile;
    column += kVectors * kLanes;
  } while (--tiles > 0);
}

// Several panels of rows.
template <typename V, int kRows, int kVectors, bool kByRows>
void panels_kernel(const Tile<typename V::T>& all) {
  using T = typename V::T;
  const std::int64_t a_row = kByRows ? all.a_row : 1, a_step = kByRows ? 1 : all.a_step;
  const bool plain = is_plain(all);
  Tile<T> tile = all;  // that of one panel
  std::int64_t panels = all.panels;
  do {
    const T* b = tile.b;
    std::int64_t tiles = tile.tiles, column = 0;
    do {
      asm("" : "+m"(tile));  // else the compiler works out the places of all rows beforehand, and keeps them in memory
      const T* a = tile.a;
      typename V::Vector sum[kRows][kVectors];
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[i][v] = V::zero();
      add_steps<V, kRows, kVectors, kByRows>(tile.k, a, a_row, a_step, b, tile.b_step, 0, 0, sum);
      if (plain)
        store_sums<V>(tile, column, sum);
      else
        finish_in_registers<V>(tile, column, sum);
      b += tile.b_tile;
      column += kVectors * V::kLanes;
    } while (--tiles > 0);
    tile.a += kRows * a_row;
    tile.out += kRows * tile.out_stride;
    if (tile.row_bias) tile.row_bias += kRows;
  } while (--panels > 0);
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

template <typename V>
void turn_narrow(const typename V::T* from, std::int64_t stride, std::int64_t k, std::int64_t width, typename V::T* to,
                 std::int64_t to_stride) {
  constexpr int kTurn = V::kTurn, kGroups = V::kLanes / kTurn;
  const typename V::T* groups[kGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) groups[g] = from + g * kTurn * stride;
  std::int64_t p = 0;
#pragma GCC unroll 1
  for (; p + kTurn <= k; p += kTurn) {
    typename V::Vector x[kTurn];
    V::turn(groups, stride, x);
#pragma GCC unroll 4
    for (int q = 0; q < kTurn; ++q, to += to_stride) V::store_first(to, x[q], width);
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) groups[g] += kTurn;
  }
  for (; p < k; ++p, to += to_stride)
    for (std::int64_t j = 0; j < width; ++j) to[j] = from[j * stride + p];
}

template <typename V, int kVectors, int kRows>
constexpr void fill(MicroKernels<typename V::T>& kernels) {
  kernels.table[0][kVectors][kRows] = micro_kernel<V, kRows, kVectors, false>;
  kernels.table[1][kVectors][kRows] = micro_kernel<V, kRows, kVectors, true>;
  if constexpr (kRows > 1) fill<V, kVectors, kRows - 1>(kernels);
}
template <typename V, int kVectors, int kMost>
constexpr void fill_panels(MicroKernels<typename V::T>& kernels) {
  kernels.panels[0][kVectors][0] = panels_kernel<V, kMost, kVectors, false>;
  kernels.panels[1][kVectors][0] = panels_kernel<V, kMost, kVectors, true>;
  kernels.panels[0][kVectors][1] = panels_kernel<V, kMost - 1, kVectors, false>;
  kernels.panels[1][kVectors][1] = panels_kernel<V, kMost - 1, kVectors, true>;
}

// kRows1 ... kRows4: the most rows of a tile that is 1 ... 4 vectors wide. Registers hold its sums, the vectors of one
// row of b, and an element of a.
template <typename V, int kRows1, int kRows2, int kRows3, int kRows4, int kTurningRows, int kStreamingRows>
constexpr MicroKernels<typename V::T> make_micro_kernels() {
  MicroKernels<typename V::T> kernels{.lanes = V::kLanes,
                                      .rows = {0, kRows1, kRows2, kRows3, kRows4},
                                      .table = {},
                                      .panels = {},
                                      .turning = {},
                                      .turning_vectors = {},
                                      .turning_lines = turning_lines<V>(),
                                      .one_row = {},
                                      .one_row_vectors = {},
                                      .streaming = {},
                                      .streaming_rows = kStreamingRows,
                                      .pack_columns = pack_columns<V>,
                                      .turn_narrow = turn_narrow<V>};
  fill<V, 1, kRows1>(kernels);
  fill<V, 2, kRows2>(kernels);
  fill<V, 3, kRows3>(kernels);
  fill<V, 4, kRows4>(kernels);
  fill_panels<V, 1, kRows1>(kernels);
  fill_panels<V, 2, kRows2>(kernels);
  fill_panels<V, 3, kRows3>(kernels);
  fill_panels<V, 4, kRows4>(kernels);
  fill_turning<V, kTurningRows>(kernels);
  fill_one_row<V>(kernels);
  fill_streaming<V, kStreamingRows>(kernels);
  return kernels;
}

}  // namespace
}  // namespace lockstep::cpu::gemm_detail
