#pragma once

// What a product of bfloat16 is computed by: see Note [Products of bfloat16] in bfloat16_product.h. For .cpp files
// only.

#include <algorithm>
#include <cstdint>

#include "lockstep/core/dtype.h"

namespace lockstep::cpu::gemm_detail {

inline constexpr std::int64_t kBfloat16Rows = 12, kBfloat16Columns = 32;  // of a tile
inline constexpr std::int64_t kBfloat16Few = 4;                           // rows for which b is not packed

/// The exponents, as stored, of what a panel holds; zeros do not count.
struct Bfloat16Range {
  int least = 255, most = 0;
  void add(const Bfloat16Range& other) {
    least = std::min(least, other.least);
    most = std::max(most, other.most);
  }
};

/// `lanes` rows of a (or columns of b) during the steps [0, steps): element (lane, step) is at
/// data[lane * lane_stride + step * step_stride], one of the strides being 1.
struct Bfloat16Lines {
  const BFloat16* data;
  std::int64_t lanes, steps, lane_stride, step_stride;
};

/// Where results go whose lanes are sixteen positions: `mask` of these to out + at + lane * step.
struct Bfloat16Run {
  std::uint16_t mask;
  std::int64_t at;
};

/// The sums of a tile, [rows][kBfloat16Columns], as results: bias is added, relu applied, each rounded once. Row r goes
/// to out[v] + r * out_row by the runs [first[v], end[v]) of each half of its lanes, in the order of pack_positions().
struct Bfloat16Results {
  const float* sums;
  std::int64_t rows;
  const float* bias;  ///< of each row, or null
  bool relu;
  BFloat16* out[2];
  std::int64_t out_row, step;
  const Bfloat16Run *first[2], *end[2];
};

/// Rows of an operand that are read where they lie: of row r at the pair p of steps, of segment s and repetition i, the
/// second step is at data[r * row + i * repeat + s * segment + 2 * p], the first behind it: as swap_pairs() has them.
struct Bfloat16Rows {
  const BFloat16* data;
  std::int64_t row, repeat, repeats, segment, segments, pairs;
};

/// Where kBfloat16Columns lanes are read, in two halves of sixteen: lane l of half v, at step k, is
/// data[v][offsets[k] + lanes[v][l]], with lanes below kReadLanes, or if `lanes` are null data[v][offsets[k] + l].
struct Bfloat16Positions {
  const BFloat16* data[2];
  const std::uint16_t* lanes[2];  ///< kReadLanes of each, of which the first half count
  const BFloat16* end;            ///< of what may be read; there are zeros from there on
};
inline constexpr std::int64_t kReadLanes = 32;

struct Bfloat16Kernels {
  /// to[p * width + lane] = the steps 2 p (in the upper half) and 2 p + 1 of a lane, for `width` kBfloat16Rows or
  /// kBfloat16Columns; zeros complete lanes and steps.
  Bfloat16Range (*pack)(const Bfloat16Lines& lines, std::int64_t width, std::uint32_t* to);
  /// out [rows, columns] = a b or, with `adds`, out + a b, for packed panels.
  using Tile = void (*)(const std::uint32_t* a, const std::uint32_t* b, std::int64_t steps, float* out,
                        std::int64_t out_stride, std::int64_t columns, bool adds);
  /// The same of positions. Of each eight lanes four are among the first sixteen, the other four among the last: the
  /// order in which vectors interleave and pack.
  void (*pack_positions)(const Bfloat16Positions& positions, const std::int32_t* offsets, std::int64_t steps,
                         std::uint32_t* to);
  Bfloat16Range (*range)(const BFloat16* data, std::int64_t count);
  void (*finish)(const Bfloat16Results& results);
  /// to[i] = from[i + 1], to[i + 1] = from[i] for even i < count; an odd one's other is 0.
  void (*swap_pairs)(const BFloat16* from, std::int64_t count, BFloat16* to);
  /// out [rows, kBfloat16Columns] = a b or, with `adds`, out + a b, for an a that is not packed, by pairs.
  using Chain = void (*)(const Bfloat16Rows& a, const std::uint32_t* b, float* out, std::int64_t out_stride, bool adds);
  Chain chains[kBfloat16Rows + 1];  ///< by rows
  /// out [rows, kBfloat16Columns] = a b, by pairs, for a packed a and up to kBfloat16Columns lanes of b whose steps lie
  /// side by side. Right where the range of these, which is the result, fits() that of a.
  using Lines = Bfloat16Range (*)(const std::uint32_t* a, const Bfloat16Lines& b, float* out);
  Lines lines[kBfloat16Few + 1];   ///< by rows
  Tile paired[kBfloat16Rows + 1];  ///< by rows; two products an instruction, for panels whose ranges fit()
  Tile fused[kBfloat16Rows + 1];   ///< for all
};

/// Null if this build or processor has none, or if the processor's pairs add otherwise.
const Bfloat16Kernels* bfloat16_kernels();

/// Whether sums of products of these are normal numbers or 0. A bfloat16 of the stored exponent e is a multiple of
/// 2^(e - 134), and so are sums of products, rounded or not, of the product of two such: a sum that is not 0 is at
/// least as large. And at the upper end 2^12 products do not overflow, and nothing is infinite or NaN.
inline bool fits(const Bfloat16Range& a, const Bfloat16Range& b) {
  return a.most < 255 && b.most < 255 && a.least >= 1 && b.least >= 1 && a.least + b.least >= 2 * 134 - 126 &&
         a.most + b.most <= 2 * 127 + 114;
}

}  // namespace lockstep::cpu::gemm_detail
