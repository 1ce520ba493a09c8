#pragma once

// One row times a matrix stored by columns. For .cpp files only.

#include <algorithm>
#include <cstdint>

#include "lockstep/core/cpu/gemm/blocking.h"
#include "lockstep/core/cpu/gemm/micro_kernel.h"
#include "lockstep/core/cpu/gemm/operand.h"
#include "lockstep/core/cpu/gemm/own.h"

namespace lockstep::cpu::gemm_detail {

// Columns [j, end), as far as they fill the vectors of a kernel; returns the first that is left. `shifts`: the last
// vectors may lie over those before, whose elements they compute again.
// tile_of(j, width, k0, k1) describes columns [j, j + width) and steps [k0, k1), apart from b.
template <typename T, typename TileOf>
std::int64_t multiply_one_row(const MicroKernels<T>& kernels, bool by_rows, const Strided<T>& b, std::int64_t k,
                              std::int64_t j, std::int64_t end, bool shifts, const TileOf& tile_of) {
  const auto& kernel = kernels.one_row[by_rows];
  const std::int64_t inner = inner_block(k);
  const std::int64_t narrow = kernels.one_row_vectors[kTwoBlocks] * kernels.lanes;
  // Every fourth row of b, every other or even each shares its places in a cache. Of fewer rows at a time, with both of
  // two blocks for as many chains, lines are still there when they are needed.
  const std::int64_t row_bytes = b.column * static_cast<std::int64_t>(sizeof(T));
  const bool crowded = share_places(row_bytes, 2048), from_memory = (end - j) * row_bytes >= kMemoryBytes;
  // From memory the rows of one vector are read at a time, as many streams as a processor prefetches: sixteen with
  // AVX-512; narrower vectors are as few only where rows share places.
  const bool one_vector = from_memory && (crowded || kernels.lanes > 8),
             joins = share_places(row_bytes, 4096) && !one_vector;
  const auto width_of = [&](OneRowKind kind) { return kernels.one_row_vectors[kind] * std::int64_t{kernels.lanes}; };
  const auto block_of = [&](std::int64_t at, std::int64_t columns, std::int64_t k0, std::int64_t k1) {
    Tile<T> tile = tile_of(at, columns, k0, k1);
    tile.b = b.at(k0, at);
    tile.b_step = b.column;
    return tile;
  };
  const auto columns = [&](OneRowKind kind, bool to_the_end) {
    const std::int64_t width = width_of(kind);
    for (; j + width <= end || (to_the_end && j < end); j += width) {
      j = std::min(j, end - width);
      for (std::int64_t k0 = 0, k1 = 0; k0 < k; k0 = k1) {
        const bool both = joins && k0 + inner < k;
        k1 = std::min(k, k0 + (both ? 2 : 1) * inner);
        // What is read next; behind the last columns, nothing that is known.
        const T* const next = k1 < k ? b.at(k1, j) : b.at(0, j + 2 * width <= end ? j + width : j);
        if (!both) {
          const Tile<T> block = block_of(j, width, k0, k1);
          kernel[kind](&block, crowded && !one_vector ? nullptr : next);
          continue;
        }
        for (std::int64_t i = j; i < j + width; i += narrow) {
          const Tile<T> blocks[] = {block_of(i, narrow, k0, k0 + inner), block_of(i, narrow, k0 + inner, k1)};
          kernel[kTwoBlocks](blocks, i + narrow < j + width ? b.at(k0, i + narrow) : next);
        }
      }
    }
  };
  const OneRowKind last = one_vector ? kOneVector : kSomeVectors;
  shifts &= j + width_of(last) <= end;
  if (!share_places(row_bytes, 1024) && !from_memory) columns(kManyVectors, false);
  columns(last, shifts);
  return j;
}

}  // namespace lockstep::cpu::gemm_detail
