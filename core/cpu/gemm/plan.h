#pragma once

// How one product is computed: tiles, what is packed, what is asked for early. None of it matters to the bits. For .cpp
// files only.

#include <algorithm>
#include <cstdint>

#include "lockstep/core/cpu/gemm/blocking.h"
#include "lockstep/core/cpu/gemm/micro_kernel.h"
#include "lockstep/core/cpu/gemm/operand.h"
#include "lockstep/core/cpu/gemm/own.h"

namespace lockstep::cpu::gemm_detail {

template <typename T>
struct Plan {
  std::int64_t inner;         // steps of a block of k
  Parts row_panels;           // of the result's rows
  int vectors;                // of a tile
  std::int64_t tile_columns;  // those that whole vectors hold
  bool pack_a, pack_b;        // in panels; else it is read as it lies
  bool b_comes_late;          // in small groups, each of which is asked for while the one before is used
  bool a_stays;               // packed whole for a block of k
  bool a_comes_late;          // in groups of panels, each of which is asked for while the one before is used
  bool a_is_far;              // the next panel of rows is asked for
  bool short_chains;          // panels of rows go through all tiles
  bool overlaps;              // the last vector of a row may lie over its neighbours
  bool streams;               // along the rows of b
  bool b_is_slow;             // it comes from a slow cache

  Plan(const MicroKernels<T>& kernels, const Gemm<T>& g, const Strided<T>& a, const Strided<T>& b)
      : inner(inner_block(g.k)), row_panels(1, 1) {
    const std::int64_t needed = divide_up(g.n, kernels.lanes);
    vectors =
        needed == 3 ? 3 : static_cast<int>(std::min<std::int64_t>(vectors_of_tile(kernels, g, b, needed), needed));
    // What completes the last vector of a row may lie over its neighbours, and be stored twice, if that is all that is
    // done to the result.
    overlaps = b.column == 1 && g.beta == T(0) && g.k <= inner && g.n > kernels.lanes && g.n % kernels.lanes != 0;
    if (overlaps && needed <= vectors && (g.m <= 2 * kernels.rows[1] || g.k <= kShort))
      vectors = static_cast<int>(needed / 2);
    tile_columns = std::int64_t{vectors} * kernels.lanes;
    row_panels = Parts(g.m, divide_up(g.m, kernels.rows[vectors]));
    // A panel of b is read once for each panel of rows: packing has to pay. For a few of them it does not if the rows
    // of b, as they lie, have places of their own in a cache.
    const std::int64_t b_row_bytes = b.row * static_cast<std::int64_t>(sizeof(T));
    const bool crowded = b_row_bytes % 2048 == 0, doubly = b_row_bytes % 4096 == 0,
               wide = kernels.lanes * sizeof(T) == 64;
    // Of rows 2 KiB apart, every other one has the same places in a cache.
    short_chains = row_panels.count <= 2 || (g.k <= kShort && (!crowded || g.k <= (doubly ? kWays : 2 * kWays)));
    const bool aligned = (b_row_bytes | reinterpret_cast<std::intptr_t>(b.data)) % 64 == 0;
    // Crowded rows keep their places in the second level; of narrow tiles each panel of rows waits for it more often.
    const bool keeps = !crowded || (far_is_slow() && (wide || !doubly) && keep_second_places(inner, b_row_bytes));
    const bool near = far_is_slow() && !is_far(b_row_bytes * g.k);
    const std::int64_t few = !aligned || !near ? kFewPanels : g.k > inner ? kFewAlignedPanels / 2 : kFewAlignedPanels;
    const bool once = g.k > (wide ? 2 * kWays : kShort) && keeps && row_panels.count <= few;
    // What comes slowly is packed in small groups, each asked for while the one before is used by several panels.
    constexpr std::int64_t kBytes = sizeof(T);
    const std::int64_t a_bytes = g.m * g.k * kBytes, b_bytes = g.n * g.k * kBytes;
    const bool spreads =
        wide && far_is_slow() && row_panels.count > 3 && g.m / row_panels.count * vectors >= kLeastSpread;
    b_is_slow = far_is_slow() && is_far(b_bytes);
    b_comes_late = spreads && is_far(b_bytes) && g.k > 2 * kShort && g.k <= inner && a_bytes <= kLateGroup;
    pack_b = b.column != 1 || b_comes_late || (!short_chains && !once);
    // Rows of a are read as they lie, unless they would fall on the same places of a cache. Of a transposed a, each
    // step needs a line or two for a few elements.
    const std::int64_t stride = (a.row == 1 ? a.column : a.row) * static_cast<std::int64_t>(sizeof(T));
    const bool often = g.n > (stride % 2048 == 0 ? 2 * tile_columns : kManyColumns);
    const bool loses_places = a.row == 1 ? loses_places_of_steps(stride) : stride % 4096 == 0;
    pack_a = pack_b && loses_places && often && g.m > 4;
    // A transposed a is packed a block of k at a time if that leaves the second level room for small groups of a far b;
    // else in groups of panels, which are asked for early if they come slowly too.
    const bool packs_steps = spreads && pack_a && a.row == 1;
    a_stays = packs_steps && b_bytes >= kFarBytes && g.m * inner * kBytes <= group_bytes();
    a_comes_late = packs_steps && !a_stays && a_bytes >= kFarBytes / 2;
    b_comes_late |= a_stays;
    a_is_far = g.k > kShort && g.m * g.k * static_cast<std::int64_t>(sizeof(T)) >= kFarBytes / 2;
    streams = b.column == 1 && g.n >= kManyColumns && is_far(b_row_bytes * g.k) &&
              tiles_read_slowly(g.m, b_row_bytes * g.k, b_row_bytes, kernels.lanes, kernels.streaming_rows);
    if (streams) row_panels = Parts(g.m, divide_up(g.m, kernels.streaming_rows));
  }

 private:
  // Wide tiles for few rows, so that there are enough independent chains, unless b must be transposed: narrow panels
  // are done faster.
  static int vectors_of_tile(const MicroKernels<T>& kernels, const Gemm<T>& g, const Strided<T>& b,
                             std::int64_t needed) {
    // A few rows too many for two vectors are one panel of one vector if b can be transposed in registers on the way.
    if (b.column != 1) return g.m > kernels.rows[2] && g.m <= kMaxRows && kernels.turning_vectors[g.m] > 0 ? 1 : 2;
    if (g.m <= kernels.rows[4]) return 4;
    if (kernels.rows[4] <= 4) return 2;  // few registers
    return g.m <= kernels.rows[3] && needed > 4 ? 3 : 2;
  }
};

}  // namespace lockstep::cpu::gemm_detail
