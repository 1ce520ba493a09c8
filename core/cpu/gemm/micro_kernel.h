#pragma once

// The innermost loops of a product, as a table of functions for each instruction set. For .cpp files only.

#include <cstdint>

namespace lockstep::cpu::gemm_detail {

/// A part of a chain.
struct Run {
  std::int64_t k, skip;  // k steps, then a is moved on by `skip` elements
};

/// What one call computes: a tile of `rows` x `columns` elements of out, rows and vectors per row being the kernel's
/// own.
///   sum[i][j] = a[i][0] * b[0][j], then fused with a[i][p] * b[p][j] for p = 1 ... k - 1, in this order
///   out[i][j] = (beta * out[i][j]) + alpha * sum[i][j], then + bias[j], + row_bias[i], max(0, .) where asked for
template <typename T>
struct Tile {
  const T* a;  // a[i][p] is at a[i * a_row + p * a_step], where a_row or a_step is 1
  std::int64_t a_row, a_step;
  const T* next;  // where the panel behind this one lies, which is asked for meanwhile; may be null
  // What is needed after this and comes from far, which is asked for meanwhile: later_rows rows of later_lines lines of
  // the cache, later_row elements apart. Null: nothing.
  const T* later;
  std::int64_t later_row, later_lines, later_rows;
  const T* b;  // b[p][j] is at b[p * b_step + j], readable for whole vectors
  std::int64_t b_step;
  bool b_is_slow;  // kernels that transpose b ask for its lines early
  std::int64_t k;  // at least 1
  // Kernels by rows go through a in pieces, in one chain: k steps, then a is moved on by a_segment more, `segments`
  // times, then by a_repeat more, `repeats` times. b goes on. 0 times is once.
  std::int64_t segments, repeats, a_segment, a_repeat;
  // Kernels by columns may leave out steps of a: these runs, one after the other, instead of k steps, in one chain. b
  // goes on. Null: k steps. With plus_zero 0 is added to what a chain gives, so that none gives -0.
  const Run* runs;
  std::int64_t run_count;
  bool plus_zero;
  // Tiles side by side, of whole vectors all: b of the next one is b_tile behind the last step's end. 0 is one.
  std::int64_t tiles, b_tile;
  std::int64_t panels;  // of rows, one below the other, of kernels for several
  T* out;
  std::int64_t out_stride;
  std::int64_t columns;  // those of out that exist; fewer than the kernel's by less than one vector
  T alpha, beta;         // beta == 0 does not read out
  const T* bias;         // columns + what completes the last vector need not be readable; may be null
  const T* row_bias;     // may be null
  bool relu;
  T* sums;       // rows x whole vectors; used by `resumes` and `pauses` alone
  bool resumes;  // the chains go on from sums, instead of starting
  bool pauses;   // they are left in sums, and out is not touched
};

template <typename T>
using MicroKernel = void (*)(const Tile<T>&);

/// One row and one or more blocks of k: blocks[0], blocks[1] ... are tiles of the same columns, each with its own part
/// of k. b is asked for ahead of time; after these blocks it is read from `next` on. A null `next` with one block: rows
/// of b share places in a cache, so that what comes early would be lost.
template <typename T>
using OneRowKernel = void (*)(const Tile<T>* blocks, const T* next);

/// to[p * to_stride + j] = from[j * stride + p] for p < k and j < width, with zeros up to whole vectors: rows of memory
/// become the columns of a panel.
template <typename T>
using PackColumns = void (*)(const T* from, std::int64_t stride, std::int64_t k, std::int64_t width, T* to,
                             std::int64_t to_stride);

/// to[p * to_stride + j] = from[j * stride + p] for p < k and j < width, and no other element, where width does not
/// fill a vector but from has as many rows as that.
template <typename T>
using TurnNarrow = void (*)(const T* from, std::int64_t stride, std::int64_t k, std::int64_t width, T* to,
                            std::int64_t to_stride);

inline constexpr int kMaxVectors = 4;  // of one row of a tile
/// Tiles of 64-byte vectors with so many sums ask for what they need next in the course of a chain, Tile::later
/// among it. Narrow ones have fewer lines to ask for, and shorter steps, which an interruption costs more than a wait.
inline constexpr int kLeastSpread = 24;
inline constexpr int kMaxRows = 14;
inline constexpr int kMaxStreamingRows = 8;
inline constexpr int kPairedRows = 4;  // from so many on, kernels that transpose take one vector's rows at a time
/// Kernels of one row differ in how many rows of a b stored by columns they read at a time, and blocks of k: one vector
/// of one block, and some; one vector or more with two blocks side by side, which are as many chains from fewer rows of
/// b; and more vectors. The last block may be the shortest.
enum OneRowKind { kOneVector, kSomeVectors, kTwoBlocks, kManyVectors, kOneRowKinds };

/// The kernels of one instruction set and element type.
template <typename T>
struct MicroKernels {
  int lanes;                  // elements of a vector
  int rows[kMaxVectors + 1];  // rows[v]: the most rows of a tile that is v vectors wide; 0: there is none
  /// table[by_rows][v][r]: for tiles of r rows and v vectors; by_rows: a_step is 1, else a_row is.
  MicroKernel<T> table[2][kMaxVectors + 1][kMaxRows + 1];
  /// panels[by_rows][v][r]: for several panels of rows[v] - r rows, r being 0 or 1, and chains of kShort steps at most:
  /// a call for each panel would take as long as its sums. No segments, runs, resumes, pauses.
  MicroKernel<T> panels[2][kMaxVectors + 1][2];
  /// turning[by_rows][v][r]: for tiles of r > 1 rows and v vectors where b is stored by columns: b[p][j] is at
  /// b[j * b_step + p]. It is transposed on its way through the registers. No resumes, no pauses. Of two vectors and
  /// kPairedRows rows, k has to fill a line of the cache. Null: there is none.
  MicroKernel<T> turning[2][3][kMaxRows + 1];
  int turning_vectors[kMaxRows + 1];  // the most; 0: none
  int turning_lines;                  // up to so many rows they do not mind that rows of b share places in a cache
  /// one_row[by_rows][kind]: the same for one row and one_row_vectors[kind] vectors.
  OneRowKernel<T> one_row[2][kOneRowKinds];
  int one_row_vectors[kOneRowKinds];
  /// streaming[by_rows][r]: for r rows and any number of columns, of which b has no more; sums are needed. No resumes,
  /// no pauses.
  MicroKernel<T> streaming[2][kMaxStreamingRows + 1];
  int streaming_rows;  // the most
  PackColumns<T> pack_columns;
  TurnNarrow<T> turn_narrow;
};

// Each in a file of its own, compiled for its instruction set.
extern const MicroKernels<float> kAvx2Float, kAvx512Float, kNeonFloat;
extern const MicroKernels<double> kAvx2Double, kAvx512Double, kNeonDouble;

}  // namespace lockstep::cpu::gemm_detail
