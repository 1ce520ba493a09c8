#pragma once

// The innermost sums of a convolution's backward pass under a pool (Note [Sparse gradients]), compiled for several
// instruction sets. For .cpp files only.

#include <cstdint>

#include "lockstep/autograd/ops/conv2d/conv2d_pool_kernels.h"

namespace lockstep::conv2d_pool {

/// `count` elements of a gradient that are not zero, and where begins what each is multiplied with.
struct Entries {
  const float* values;
  const std::int32_t* places;
  std::int64_t count;
};

/// sums[r * sums_pitch + i] += the sum over entries of value * image[place + r * pitch + i], for some rows of some
/// runs of kSumLanes elements.
using AddPatches = void (*)(const Entries& entries, const float* image, std::int64_t pitch, float* sums,
                            std::int64_t sums_pitch);

/// to[r * pitch + i] += the sum over entries of value * weights[r * weights_pitch + place + i].
struct WeightArguments {
  Entries entries;
  const float* weights;
  std::int64_t weights_pitch;
  float* to;
  std::int64_t pitch;
  std::int64_t rows;
};
using AddWeights = void (*)(const WeightArguments&);

/// The sums of one instruction set. All give the same bits: each element is a chain of fused multiply-adds over the
/// entries, or two of them that take entries by turns where kMostByTurns says so.
struct SparseSums {
  int lanes;                                 ///< of a vector
  int rows[kTile] = {};                      ///< of a patch, added at once, at most; by runs of kSumLanes in a row - 1
  AddPatches patches[kTile][kMaxRows] = {};  ///< by runs - 1, rows - 1
  AddWeights weights[kTile] = {};            ///< by runs - 1
};

/// For the build's own instruction set, and for AVX-512 (x86-64 alone).
extern const SparseSums kSparseSums, kSparseSumsAvx512;

/// Those to use here.
const SparseSums& sparse_sums_in_use();

/// How many rows of so many runs a tile of kTile takes, which decides whether a sum is one chain or two.
constexpr int rows_of_tile(int runs) {
  return kTile / runs < kMaxRows ? kTile / runs : kMaxRows;
}

/// The table of Kernels, which has add_patches<rows, runs>(), add_weights<runs>(), and rows(runs) as SparseSums wants.
template <typename Kernels, int kRuns = kTile, int kRows = Kernels::rows(kRuns)>
constexpr void fill(SparseSums& sums) {
  sums.patches[kRuns - 1][kRows - 1] = Kernels::template add_patches<kRows, kRuns>;
  if constexpr (kRows > 1) {
    fill<Kernels, kRuns, kRows - 1>(sums);
  } else {
    sums.rows[kRuns - 1] = Kernels::rows(kRuns);
    sums.weights[kRuns - 1] = Kernels::template add_weights<kRuns>;
    if constexpr (kRuns > 1) fill<Kernels, kRuns - 1>(sums);
  }
}
template <typename Kernels>
constexpr SparseSums make_sparse_sums(int lanes) {
  SparseSums sums{.lanes = lanes};
  fill<Kernels>(sums);
  return sums;
}

}  // namespace lockstep::conv2d_pool
