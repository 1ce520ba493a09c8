#pragma once

// One product by the kernels of an instruction set, in tasks for threads. The structure is that of Goto, van de Geijn:
// Anatomy of High-Performance Matrix Multiplication, 2008, and of Van Zee, van de Geijn: BLIS, 2015: panels are packed,
// a micro-kernel computes tiles. For .cpp files only.

#include <algorithm>
#include <cstdint>

#include "lockstep/core/cpu/gemm/blocking.h"
#include "lockstep/core/cpu/gemm/micro_kernel.h"
#include "lockstep/core/cpu/gemm/one_row.h"
#include "lockstep/core/cpu/gemm/operand.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/cpu/gemm/pack.h"
#include "lockstep/core/cpu/gemm/work_space.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::gemm_detail {

// One matrix of a batch.
template <typename T>
class Product {
 public:
  Product(const MicroKernels<T>& kernels, const Gemm<T>& problem, std::int64_t index)
      : kernels_(kernels),
        g_(problem),
        a_(strided(problem.a, index)),
        b_(strided(problem.b, index)),
        out_(problem.out + index * problem.out_batch_stride),
        inner_(inner_block(problem.k)),
        row_panels_(1, 1) {
    const std::int64_t needed = divide_up(g_.n, kernels.lanes);
    vectors_ = needed == 3 ? 3 : static_cast<int>(std::min<std::int64_t>(vectors_of_tile(needed), needed));
    // What completes the last vector of a row may lie over its neighbours, and be stored twice, if that is all that is
    // done to the result.
    overlaps_ =
        b_.column == 1 && g_.beta == T(0) && g_.k <= inner_ && g_.n > kernels.lanes && g_.n % kernels.lanes != 0;
    if (overlaps_ && needed <= vectors_ && (g_.m <= 2 * kernels.rows[1] || g_.k <= kShort))
      vectors_ = static_cast<int>(needed / 2);
    tile_columns_ = std::int64_t{vectors_} * kernels.lanes;
    row_panels_ = Parts(g_.m, divide_up(g_.m, kernels.rows[vectors_]));
    // A panel of b is read once for each panel of rows: packing has to pay. For a few of them it does not if the rows
    // of b, as they lie, have places of their own in a cache.
    const std::int64_t b_bytes = b_.row * static_cast<std::int64_t>(sizeof(T));
    const bool crowded = b_bytes % 2048 == 0, doubly = b_bytes % 4096 == 0, wide = kernels.lanes * sizeof(T) == 64;
    // Of rows 2 KiB apart, every other one has the same places in a cache.
    short_chains_ = row_panels_.count <= 2 || (g_.k <= kShort && (!crowded || g_.k <= (doubly ? kWays : 2 * kWays)));
    const bool aligned = (b_bytes | reinterpret_cast<std::intptr_t>(b_.data)) % 64 == 0;
    // Crowded rows keep their places in the second level; of narrow tiles each panel of rows waits for it more often.
    const bool keeps = !crowded || (far_is_slow() && (wide || !doubly) && keep_second_places(inner_, b_bytes));
    const bool near = far_is_slow() && !is_far(b_bytes * g_.k);
    const std::int64_t few = !aligned || !near ? kFewPanels : g_.k > inner_ ? kFewAlignedPanels / 2 : kFewAlignedPanels;
    const bool once = g_.k > (wide ? 2 * kWays : kShort) && keeps && row_panels_.count <= few;
    pack_b_ = b_.column != 1 || (!short_chains_ && !once);
    // Rows of a are read as they lie, unless they would fall on the same places of a cache. Of a transposed a, each
    // step needs a line or two for a few elements.
    const std::int64_t stride = (a_.row == 1 ? a_.column : a_.row) * static_cast<std::int64_t>(sizeof(T));
    const bool often = g_.n > (stride % 2048 == 0 ? 2 * tile_columns_ : kManyColumns);
    const bool loses_places = a_.row == 1 ? loses_places_of_steps(stride) : stride % 4096 == 0;
    pack_a_ = pack_b_ && loses_places && often && g_.m > 4;
    a_is_far_ = g_.k > kShort && g_.m * g_.k * static_cast<std::int64_t>(sizeof(T)) >= kFarBytes / 2;
    streams_ = b_.column == 1 && g_.n >= kManyColumns && is_far(b_bytes * g_.k) &&
               tiles_read_slowly(g_.m, b_bytes, kernels.lanes, kernels.streaming_rows);
    if (streams_) row_panels_ = Parts(g_.m, divide_up(g_.m, kernels.streaming_rows));
  }

  // On the threads of parallel_for: a grid of independent tasks. What it depends on does not matter to the bits.
  void run() const {
    const std::int64_t column_panels = divide_up(g_.n, tile_columns_);
    const auto m = static_cast<double>(g_.m), n = static_cast<double>(g_.n), k = static_cast<double>(g_.k);
    // Of few rows, what takes the time is to read.
    const double flops = std::max(2 * m * n * k, kFlopsOfByte * sizeof(T) * (m * k + k * n + m * n));
    const int threads = flops < 2 * kTaskFlops ? 1 : num_threads();
    if (threads == 1) return task({0, row_panels_.count}, {0, g_.n}, {});
    const auto wanted = static_cast<std::int64_t>(
        std::min({flops / kTaskFlops, std::max(flops / kLargeTaskFlops, static_cast<double>(threads)),
                  static_cast<double>(threads * kTasksPerThread)}));
    std::int64_t row_tasks = 1, column_tasks = 1;
    // Of a result larger than its operands, as a weight's gradient is, each thread writes rows that lie together: those
    // whose weights it changes afterwards.
    if (b_.column == 1 && 2 * g_.k <= g_.m) row_tasks = std::min<std::int64_t>(threads, row_panels_.count);
    while (row_tasks * column_tasks < wanted) {
      const std::int64_t rows = g_.m / row_tasks, columns = g_.n / column_tasks;
      if (2 * column_tasks <= column_panels && (rows <= 2 * columns || 2 * row_tasks > row_panels_.count))
        column_tasks *= 2;
      else if (2 * row_tasks <= row_panels_.count)
        row_tasks *= 2;
      else
        break;
    }
    // What several tasks read is packed before, if that is worth a wait for all.
    const std::int64_t blocks = divide_up(g_.k, inner_);
    const std::int64_t b_elements = pack_b_ && row_tasks > 1 ? padded(g_.n) * g_.k : 0;
    const std::int64_t a_elements = pack_a_ && column_tasks > 1 ? g_.m * (g_.k + blocks * kGap) : 0;
    const std::int64_t elements = a_elements + b_elements;
    const bool shares = elements >= kLeastShared && elements <= kSharedElements;
    const Tensor space = empty({shares ? elements : 0}, {.dtype = dtype_of<T>});
    Packed packed;
    if (shares) {
      if (b_elements > 0) packed.b = space.data<T>();
      if (a_elements > 0) packed.a = space.data<T>() + b_elements;
      pack(packed);
    }
    const Parts rows(row_panels_.count, row_tasks), columns(column_panels, column_tasks);
    parallel_for(row_tasks * column_tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i / column_tasks, column = i % column_tasks;
        task({rows.begin(row), rows.begin(row + 1)},
             {columns.begin(column) * tile_columns_, std::min(g_.n, columns.begin(column + 1) * tile_columns_)},
             packed);
      }
    });
  }

 private:
  // Whole operands, packed; null: not. One block of k lies behind the other.
  struct Packed {
    T *a = nullptr, *b = nullptr;
  };
  T* packed_b_at(T* b, Range columns, Range steps) const {
    return b + padded(g_.n) * steps.begin + columns.begin * steps.size();
  }
  T* packed_a_at(T* a, std::int64_t panel, Range steps) const {
    return a + g_.m * (steps.begin + steps.begin / inner_ * kGap) +
           row_panels_.begin(panel) * (steps.size() + (a_.row == 1 ? 0 : kGap));
  }

  void pack(const Packed& packed) const {
    const std::int64_t blocks = divide_up(g_.k, inner_);
    const std::int64_t columns = std::max<std::int64_t>(1, kPackElements / (inner_ * tile_columns_)) * tile_columns_;
    const std::int64_t panels = std::max<std::int64_t>(1, kPackElements / (inner_ * rows_of(0).size()));
    const std::int64_t b_parts = packed.b ? divide_up(g_.n, columns) : 0;
    const std::int64_t a_parts = packed.a ? divide_up(row_panels_.count, panels) : 0;
    parallel_for(blocks * (b_parts + a_parts), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t k0 = i / (b_parts + a_parts) * inner_, part = i % (b_parts + a_parts);
        const Range steps{k0, std::min(k0 + inner_, g_.k)};
        if (part < b_parts) {
          const Range range{part * columns, std::min((part + 1) * columns, g_.n)};
          pack_columns_of_b(range, steps, packed_b_at(packed.b, range, steps));
        } else {
          const Range range{(part - b_parts) * panels, std::min((part - b_parts + 1) * panels, row_panels_.count)};
          pack_panels_of_a(range, steps, packed_a_at(packed.a, range.begin, steps));
        }
      }
    });
  }

  // Wide tiles for few rows, so that there are enough independent chains, unless b must be transposed: narrow panels
  // are done faster.
  int vectors_of_tile(std::int64_t needed) const {
    // A few rows too many for two vectors are one panel of one vector if b can be transposed in registers on the way.
    if (b_.column != 1)
      return g_.m > kernels_.rows[2] && g_.m <= kMaxRows && kernels_.turning_vectors[g_.m] > 0 ? 1 : 2;
    if (g_.m <= kernels_.rows[4]) return 4;
    if (kernels_.rows[4] <= 4) return 2;  // few registers
    return g_.m <= kernels_.rows[3] && needed > 4 ? 3 : 2;
  }

  std::int64_t padded(std::int64_t columns) const { return divide_up(columns, kernels_.lanes) * kernels_.lanes; }
  Range rows_of(std::int64_t panel) const { return {row_panels_.begin(panel), row_panels_.begin(panel + 1)}; }

  [[gnu::noinline]] void task(Range panels, Range columns, const Packed& packed) const {
    if (streams_)
      streaming_rows(panels, columns);
    else if (panels.size() == 1 && !packed.b && (pack_b_ || columns.size() < kernels_.lanes))
      single_panel_of_rows(rows_of(panels.begin), columns);
    else
      panels_of_rows(panels, columns, packed);
    if (g_.activation == Activation::gelu)
      for (std::int64_t i = row_panels_.begin(panels.begin); i < row_panels_.begin(panels.end); ++i)
        gelu(out_ + i * g_.out_stride + columns.begin, columns.size());
  }

  void panels_of_rows(Range panels, Range all, const Packed& packed) const {
    const std::int64_t inner = std::min(inner_, g_.k), tile_rows = rows_of(0).size();
    const std::int64_t panel_bytes = tile_columns_ * inner * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t group = std::min({all.size(), kGroupColumns / tile_columns_ * tile_columns_,
                                         std::max<std::int64_t>(1, group_bytes() / panel_bytes) * tile_columns_});
    const bool partial = all.size() % kernels_.lanes != 0 && (all.size() > group || !has_overlap(all));
    const std::int64_t columns_here = packed.b ? 0 : pack_b_ ? padded(group) : partial ? tile_columns_ : 0;
    const std::int64_t rows_here = !pack_a_ || packed.a ? 0 : a_.row == 1 ? kGroupRows + tile_rows : tile_rows;
    Space<T> space(columns_here * inner + rows_here * (inner + kGap));
    T* const packed_a = space.data + columns_here * inner;
    for (std::int64_t column = all.begin; column < all.end; column += group)
      for (std::int64_t k0 = 0; k0 < g_.k; k0 += inner_) {
        const Range columns{column, std::min(column + group, all.end)}, steps{k0, std::min(k0 + inner_, g_.k)};
        const Panels b{columns, steps, packed.b ? packed_b_at(packed.b, columns, steps) : space.data};
        if (pack_b_ && !packed.b)
          pack_columns_of_b(columns, steps, b.packed);
        else if (!pack_b_ && columns.size() % kernels_.lanes != 0 && !has_overlap(columns))
          pack_columns_of_b({columns.begin + columns.size() / tile_columns_ * tile_columns_, columns.end}, steps,
                            b.packed);
        for (std::int64_t first = panels.begin, end = first; first < panels.end; first = end) {
          do ++end;
          while (end < panels.end &&
                 (!pack_a_ || (a_.row == 1 && row_panels_.begin(end) < row_panels_.begin(first) + kGroupRows)));
          T* const a = packed.a ? packed_a_at(packed.a, first, steps) : packed_a;
          if (pack_a_ && !packed.a) pack_panels_of_a({first, end}, steps, a);
          const auto compute = [&](std::int64_t i, Range range) __attribute__((always_inline)) {
            Tile<T> tile = tile_of(rows_of(i), steps);
            if (pack_a_) {
              const std::int64_t step = steps.size() + (a_.row == 1 ? 0 : kGap);
              tile.a = a + (row_panels_.begin(i) - row_panels_.begin(first)) * step;
              (a_.row == 1 ? tile.a_step : tile.a_row) = a_.row == 1 ? rows_of(i).size() : step;
            } else if (i + 1 < end && a_is_far_ && columns.size() > 2 * tile_columns_) {
              tile.next = a_.new_lines(row_panels_.begin(i + 1), row_panels_.begin(i + 2), steps.begin);
            }
            compute_tiles(tile, rows_of(i), range, b);
          };
          // Packed, b is in a cache of the second level and a panel of a in one of the first. As it lies, b is read
          // once.
          if (pack_b_ || short_chains_)
            for (std::int64_t i = first; i < end; ++i) compute(i, columns);
          else
            for (std::int64_t j = columns.begin; j < columns.end; j += tile_columns_)
              for (std::int64_t i = first; i < end; ++i) compute(i, {j, std::min(j + tile_columns_, columns.end)});
        }
      }
  }

  // Whether vectors that lie over their neighbours stay among these columns.
  bool has_overlap(Range columns) const {
    const std::int64_t rest = columns.size() % tile_columns_;
    return overlaps_ && divide_up(rest, kernels_.lanes) * kernels_.lanes <= columns.size();
  }

  // Columns of b during some steps, and where they are packed if they are.
  struct Panels {
    Range columns, steps;
    T* packed;
  };

  // A row of tiles over `columns`, which begin with a tile.
  [[gnu::always_inline]] void compute_tiles(Tile<T>& tile, Range rows, Range columns, const Panels& b) const {
    const std::int64_t whole = columns.size() / tile_columns_;
    if (whole > 0) {
      const T* const packed = b.packed + (columns.begin - b.columns.begin) * b.steps.size();
      tile.tiles = whole;
      tile.b = pack_b_ ? packed : b_.at(b.steps.begin, columns.begin);
      tile.b_step = pack_b_ ? tile_columns_ : b_.row;
      tile.b_tile = pack_b_ ? 0 : tile_columns_ - b.steps.size() * b_.row;
      set_columns(tile, rows, {columns.begin, columns.begin + tile_columns_}, b.steps);
      kernels_.table[tile.a_step == 1][vectors_][rows.size()](tile);
      tile.next = nullptr;
    }
    Range rest{columns.begin + whole * tile_columns_, columns.end};
    if (rest.size() == 0) return;
    const std::int64_t vectors = divide_up(rest.size(), kernels_.lanes);
    const bool over = !pack_b_ && has_overlap(b.columns);
    if (over) rest.begin = rest.end - vectors * kernels_.lanes;
    const bool in_place = !pack_b_ && rest.size() % kernels_.lanes == 0;
    tile.tiles = 1;
    tile.b = in_place  ? b_.at(b.steps.begin, rest.begin)
             : pack_b_ ? b.packed + (rest.begin - b.columns.begin) * b.steps.size()
                       : b.packed;
    tile.b_step = in_place ? b_.row : vectors * kernels_.lanes;
    set_columns(tile, rows, rest, b.steps);
    kernels_.table[tile.a_step == 1][vectors][rows.size()](tile);
  }

  // b is used once, so it is packed in small pieces, which do not leave the first-level cache.
  [[gnu::noinline]] void single_panel_of_rows(Range rows, Range all) const {
    alignas(64) T packed[std::max(kStep * kPanelColumns, kMaxLanes * (kInner + kGap))];
    alignas(64) T sums[kMaxRows * kPanelColumns];
    const std::int64_t m = rows.size();
    if (m == 1 && b_.column != 1)
      all.begin = multiply_one_row(kernels_, a_.column == 1, b_, g_.k, all.begin, all.end,
                                   [&](std::int64_t j, std::int64_t width, std::int64_t k0, std::int64_t k1) {
                                     Tile<T> tile = tile_of(rows, {k0, k1});
                                     set_columns(tile, rows, {j, j + width}, {k0, k1});
                                     return tile;
                                   });
    const std::int64_t turning = b_.column == 1 ? 0 : kernels_.turning_vectors[m] * kernels_.lanes;
    const bool places = m <= kernels_.turning_lines || keep_places<T>(turning, b_.column);  // else rows are copied
    std::int64_t width = 0;
    for (std::int64_t j = all.begin; j < all.end; j += width) {
      const bool turns = turning > 0 && (places || turning <= kMaxLanes) && j + turning <= all.end;
      width = std::min(turns ? turning : tile_columns_, all.end - j);
      for (std::int64_t k0 = 0; k0 < g_.k; k0 += inner_) {
        const Range columns{j, j + width}, steps{k0, std::min(k0 + inner_, g_.k)};
        const std::int64_t vectors = divide_up(columns.size(), kernels_.lanes);
        Tile<T> tile = tile_of(rows, steps);
        tile.b = packed;
        tile.b_step = vectors * kernels_.lanes;
        set_columns(tile, rows, columns, steps);
        if (turns) {
          tile.b_step = places ? b_.column : steps.size() + kGap;
          if (places)
            tile.b = b_.at(k0, j);
          else
            copy_rows(b_.at(k0, j), b_.column, width, steps.size(), packed);
          kernels_.turning[a_.column == 1][m](tile);
          continue;
        }
        tile.sums = sums;
        for (std::int64_t k = steps.begin; k < steps.end; k += kStep) {
          const Range part{k, std::min(k + kStep, steps.end)};
          pack_columns_of_b(columns, part, packed);
          tile.a = a_.at(rows.begin, k);
          tile.k = part.size();
          tile.resumes = k != steps.begin;
          tile.pauses = part.end != steps.end;
          kernels_.table[a_.column == 1][vectors][m](tile);
        }
      }
    }
  }

  [[gnu::noinline]] void streaming_rows(Range panels, Range all) const {
    alignas(64) T sums[kStreamedElements];
    const std::int64_t most = kStreamedElements / rows_of(0).size() / kernels_.lanes * kernels_.lanes;
    for (std::int64_t j = all.begin; j < all.end; j += most)
      for (std::int64_t k0 = 0; k0 < g_.k; k0 += inner_) {
        const Range columns{j, std::min(j + most, all.end)}, steps{k0, std::min(k0 + inner_, g_.k)};
        for (std::int64_t i = panels.begin; i < panels.end; ++i) {
          const Range rows = rows_of(i);
          Tile<T> tile = tile_of(rows, steps);
          tile.b = b_.at(k0, j);
          tile.b_step = b_.row;
          tile.sums = sums;
          set_columns(tile, rows, columns, steps);
          kernels_.streaming[a_.column == 1][rows.size()](tile);
        }
      }
  }

  void pack_columns_of_b(Range columns, Range steps, T* to) const {
    const T* from = b_.at(steps.begin, columns.begin);
    if (b_.column == 1)
      return pack_row_panels(from, b_.row, steps.size(), columns.size(), tile_columns_, kernels_.lanes, to);
    for (std::int64_t j = 0; j < columns.size(); j += tile_columns_) {
      const std::int64_t width = std::min(tile_columns_, columns.size() - j);
      kernels_.pack_columns(from + j * b_.column, b_.column, steps.size(), width, to + j * steps.size(), padded(width));
    }
  }

  // Rows are copied as they are. Of a transposed a, a line of the cache holds elements of several panels.
  void pack_panels_of_a(Range panels, Range steps, T* to) const {
    const std::int64_t first = row_panels_.begin(panels.begin), end = row_panels_.begin(panels.end);
    if (a_.row != 1) {
      return copy_rows(a_.at(first, steps.begin), a_.row, end - first, steps.size(), to);
    }
    constexpr std::int64_t kTurn = 16;
    for (std::int64_t k = steps.begin; k < steps.end; k += kTurn) {
      const std::int64_t count = std::min(kTurn, steps.end - k);
      for (std::int64_t i = panels.begin; i < panels.end; ++i) {
        const Range rows = rows_of(i);
        pack_rows(a_.at(rows.begin, k), a_.column, count, rows.size(), rows.size(),
                  to + (rows.begin - first) * steps.size() + (k - steps.begin) * rows.size());
      }
    }
  }

  Tile<T> tile_of(Range rows, Range steps) const {
    Tile<T> tile;  // member by member: filling it with zeros first takes longer than a short chain
    tile.a = a_.at(rows.begin, steps.begin);
    tile.a_row = a_.row;
    tile.a_step = a_.column;
    tile.next = tile.b = nullptr;
    tile.b_step = tile.b_tile = tile.columns = 0;
    tile.k = steps.size();
    tile.segments = tile.repeats = tile.a_segment = tile.a_repeat = tile.tiles = 0;
    tile.runs = nullptr;
    tile.run_count = 0;
    tile.plus_zero = false;
    tile.out = nullptr;
    tile.bias = nullptr;
    tile.sums = nullptr;
    tile.resumes = tile.pauses = false;
    tile.out_stride = g_.out_stride;
    tile.alpha = g_.alpha;
    tile.beta = steps.begin == 0 ? g_.beta : T(1);
    const bool last = steps.end == g_.k;
    tile.row_bias = last && g_.row_bias ? g_.row_bias + rows.begin : nullptr;
    tile.relu = last && g_.activation == Activation::relu;
    return tile;
  }

  void set_columns(Tile<T>& tile, Range rows, Range columns, Range steps) const {
    tile.columns = columns.size();
    tile.bias = steps.end == g_.k && g_.bias ? g_.bias + columns.begin : nullptr;
    tile.out = out_ + rows.begin * g_.out_stride + columns.begin;
  }

  const MicroKernels<T>& kernels_;
  const Gemm<T>& g_;
  const Strided<T> a_, b_;
  T* const out_;
  const std::int64_t inner_;
  Parts row_panels_;
  int vectors_;
  std::int64_t tile_columns_;
  bool pack_a_, pack_b_, a_is_far_, short_chains_, overlaps_, streams_;
};

}  // namespace lockstep::cpu::gemm_detail
