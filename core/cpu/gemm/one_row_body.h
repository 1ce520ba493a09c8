#pragma once

// The kernels of products of one row; see micro_kernel_body.h, which includes this after the description of a vector.

#include "lockstep/core/cpu/gemm/few_rows_body.h"
#include "lockstep/core/cpu/gemm/finish_body.h"
#include "lockstep/core/cpu/gemm/micro_kernel.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// lane j of x[p] is column p of the row j: kApart rows from b[0] on, then as many from b[1] on, for p below
// columns_at_once<V>().
template <typename V>
constexpr int columns_at_once() {
  if constexpr (requires { V::turn_half; })
    return V::kLanes / 2;
  else
    return V::kTurn;
}
template <typename V, int kApart>
[[gnu::always_inline]] inline void turn_columns(const typename V::T* const* b, std::int64_t stride,
                                                typename V::Vector* x) {
  if constexpr (requires { V::turn_half; }) {
    V::turn_half(b[0], b[1], stride, x);
  } else {
    const typename V::T* group[V::kLanes / V::kTurn];
#pragma GCC unroll 4
    for (int g = 0; g < V::kLanes / V::kTurn; ++g) group[g] = b[g * V::kTurn / kApart] + g * V::kTurn % kApart * stride;
    V::turn(group, stride, x);
  }
}

// One row and b stored by columns. Processors foresee few rows of memory at a time and nothing behind their ends, so
// lines of the cache are asked for as they will be read, kAhead lines of each row before, over the end of the rows too.
template <typename V, int kVectors, int kBlocks, bool kByRows>
class OneRow {
  using T = typename V::T;
  using Vector = typename V::Vector;
  static constexpr int kLanes = V::kLanes, kTurn = V::kTurn, kLine = 64 / sizeof(T), kRows = kVectors * kLanes;
  static constexpr int kAhead = kBlocks > 1 ? 3 : 4;

 public:
  [[gnu::always_inline]] OneRow(const Tile<T>* blocks, const T* next)
      : blocks_(blocks),
        next_(next),
        b_step_(blocks->b_step),
        a_step_(kByRows ? 1 : blocks->a_step),
        whole_(blocks[kBlocks - 1].k / kLine * kLine) {}

  [[gnu::always_inline]] void run() {
    if (kBlocks > 1 || !next_)
      lines();
    else
      turns();
#pragma GCC unroll 2
    for (int c = 0; c < kBlocks; ++c) {
      const Tile<T>& tile = blocks_[c];
      if (whole_ < tile.k) rest(tile, sum_[c][0]);
      finish_in_registers<V>(tile, 0, sum_[c]);
    }
  }

 private:
  // Lines of a vector's rows in all blocks, then of the next one's: each line is used up before it can be lost.
  [[gnu::always_inline]] void lines() {
    const T *a[kBlocks], *b[kBlocks];
    Vector sum[kBlocks][kVectors];  // in registers
#pragma GCC unroll 2
    for (int c = 0; c < kBlocks; ++c) {
      a[c] = blocks_[c].a;
      b[c] = blocks_[c].b;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[c][v] = V::zero();
    }
#pragma GCC unroll 1
    for (std::int64_t p = 0; p < whole_; p += kLine) {
      const T* asked = next_ ? ahead_of(p) : b[0];
      std::int64_t row = 0;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v, row += kLanes * b_step_, asked += kLanes * b_step_)
#pragma GCC unroll 2
        for (int c = 0; c < kBlocks; ++c) {
          if (kBlocks > 1) ask<kLanes>(asked + (b[c] - b[0]));
          columns(a[c], apart(b[c] + row), sum[c][v]);
        }
#pragma GCC unroll 2
      for (int c = 0; c < kBlocks; ++c) {
        a[c] += kLine * a_step_;
        b[c] += kLine;
      }
    }
#pragma GCC unroll 2
    for (int c = 0; c < kBlocks; ++c)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum_[c][0][v] = sum[c][v];
  }

  // Some columns of all rows, of one block, then the next ones: a short loop, in which each place that loads goes along
  // one row, as processors expect.
  [[gnu::always_inline]] void turns() {
    constexpr int kColumns = columns_at_once<V>(), kAsked = kRows * kColumns / kLine;
    constexpr int kApart = kLanes < 8 ? kLanes : 8;  // rows that are addressed from the same pointer
    const T *a = blocks_->a, *b[kRows / kApart], *asked = nullptr;
#pragma GCC unroll 8
    for (int g = 0; g < kRows / kApart; ++g) b[g] = apart(blocks_->b + g * kApart * b_step_);
    Vector sum[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[v] = V::zero();
#pragma GCC unroll 1
    for (std::int64_t p = 0; p < whole_; p += kColumns) {
      if (p % kLine == 0) asked = ahead_of(p);
      ask<kAsked>(asked);
      asked += kAsked * b_step_;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        Vector x[kColumns];
        turn_columns<V, kApart>(b + v * (kLanes / kApart), b_step_, x);
#pragma GCC unroll 8
        for (int r = 0; r < kColumns; ++r) sum[v] = V::fused(V::broadcast(a + r * a_step_), x[r], sum[v]);
      }
      a += kColumns * a_step_;
#pragma GCC unroll 8
      for (int g = 0; g < kRows / kApart; ++g) b[g] += kColumns;
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum_[0][0][v] = sum[v];
  }

  // Where the first block is read kAhead lines after column p.
  [[gnu::always_inline]] const T* ahead_of(std::int64_t p) const {
    const std::int64_t ahead = p + kAhead * kLine;
    return ahead < whole_ ? blocks_->b + ahead : next_ + (ahead - whole_);
  }
  // A line of each of so many rows.
  template <int kCount>
  [[gnu::always_inline]] void ask(const T* at) const {
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) __builtin_prefetch(at + i * b_step_);
  }

  // A line of each row of a vector.
  [[gnu::always_inline]] void columns(const T* a, const T* b, Vector& sum) const {
    constexpr int kPiece = piece<V>();
#pragma GCC unroll 4
    for (int t = 0; t < kLine; t += kPiece) {
      Vector x[kPiece];
      turn_piece<V>(b + t, b_step_, x);
#pragma GCC unroll 16
      for (int r = 0; r < kPiece; ++r) sum = V::fused(V::broadcast(a + (t + r) * a_step_), x[r], sum);
    }
  }

  // What is left of a block, less than a line of the shortest one.
  [[gnu::always_inline]] void rest(const Tile<T>& tile, Vector* sums) const {
    constexpr int kGroups = kLanes / kTurn;
    Vector sum[kVectors];  // in registers
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[v] = sums[v];
    std::int64_t p = whole_;
#pragma GCC unroll 1
    for (; p + kTurn <= tile.k; p += kTurn)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const T* group[kGroups];
#pragma GCC unroll 4
        for (int g = 0; g < kGroups; ++g) group[g] = tile.b + (v * kLanes + g * kTurn) * b_step_ + p;
        Vector x[kTurn];
        V::turn(group, b_step_, x);
#pragma GCC unroll 4
        for (int r = 0; r < kTurn; ++r) sum[v] = V::fused(V::broadcast(tile.a + (p + r) * a_step_), x[r], sum[v]);
      }
#pragma GCC unroll 1
    for (; p < tile.k; ++p)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        T lines[kLanes];
        for (int j = 0; j < kLanes; ++j) lines[j] = tile.b[(v * kLanes + j) * b_step_ + p];
        sum[v] = V::fused(V::broadcast(tile.a + p * a_step_), V::load(lines), sum[v]);
      }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[v] = sum[v];
  }

  const Tile<T>* const blocks_;
  const T* const next_;
  const std::int64_t b_step_, a_step_, whole_;
  Vector sum_[kBlocks][1][kVectors];
};

template <typename V, int kVectors, int kBlocks, bool kByRows>
void one_row_kernel(const Tile<typename V::T>* blocks, const typename V::T* next) {
  OneRow<V, kVectors, kBlocks, kByRows>(blocks, next).run();
}

template <typename V, int kVectors, int kBlocks>
constexpr void set_one_row(MicroKernels<typename V::T>& kernels, OneRowKind kind) {
  kernels.one_row[0][kind] = one_row_kernel<V, kVectors, kBlocks, false>;
  kernels.one_row[1][kind] = one_row_kernel<V, kVectors, kBlocks, true>;
  kernels.one_row_vectors[kind] = kVectors;
}

// Many vectors are as many chains as hide the latency of one, of which two do where the vectors are so wide that
// turning them takes as long. Few rows come faster from memory than many.
template <typename V>
constexpr void fill_one_row(MicroKernels<typename V::T>& kernels) {
  constexpr int kSome = V::kLanes < 8 ? 4 : 2, kMany = V::kLanes > 8 ? 2 : 4;
  set_one_row<V, 1, 1>(kernels, kOneVector);
  set_one_row<V, kSome, 1>(kernels, kSomeVectors);
  set_one_row<V, kSome / 2, 2>(kernels, kTwoBlocks);
  set_one_row<V, kMany, 1>(kernels, kManyVectors);
}

}  // namespace
}  // namespace lockstep::cpu::gemm_detail
