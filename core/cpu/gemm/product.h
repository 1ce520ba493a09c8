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
#include "lockstep/core/cpu/gemm/packing.h"
#include "lockstep/core/cpu/gemm/plan.h"
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
        plan_(kernels, problem, a_, b_),
        packing_(kernels, problem, a_, b_, plan_) {}

  Product(const Product&) = delete;  // packing_ refers to the others
  Product& operator=(const Product&) = delete;

  // On the threads of parallel_for: a grid of independent tasks. What it depends on does not matter to the bits.
  void run() const {
    const std::int64_t column_panels = divide_up(g_.n, plan_.tile_columns);
    const auto m = static_cast<double>(g_.m), n = static_cast<double>(g_.n), k = static_cast<double>(g_.k);
    // Of few rows, what takes the time is to read.
    const double flops = std::max(2 * m * n * k, kFlopsOfByte * sizeof(T) * (m * k + k * n + m * n));
    const int threads = flops < 2 * kTaskFlops ? 1 : num_threads();
    if (threads == 1) return task({0, plan_.row_panels.count}, {0, g_.n}, {});
    const auto wanted = static_cast<std::int64_t>(
        std::min({flops / kTaskFlops, std::max(flops / kLargeTaskFlops, static_cast<double>(threads)),
                  static_cast<double>(threads * kTasksPerThread)}));
    std::int64_t row_tasks = 1, column_tasks = 1;
    // Of a result larger than its operands, as a weight's gradient is, each thread writes rows that lie together: those
    // whose weights it changes afterwards.
    if (b_.column == 1 && 2 * g_.k <= g_.m) row_tasks = std::min<std::int64_t>(threads, plan_.row_panels.count);
    while (row_tasks * column_tasks < wanted) {
      const std::int64_t rows = g_.m / row_tasks, columns = g_.n / column_tasks;
      if (2 * column_tasks <= column_panels && (rows <= 2 * columns || 2 * row_tasks > plan_.row_panels.count))
        column_tasks *= 2;
      else if (2 * row_tasks <= plan_.row_panels.count)
        row_tasks *= 2;
      else
        break;
    }
    // What several tasks read is packed before, if that is worth a wait for all.
    const std::int64_t blocks = divide_up(g_.k, plan_.inner);
    const std::int64_t b_elements =
        plan_.pack_b && !plan_.b_comes_late && row_tasks > 1 ? packing_.padded(g_.n) * g_.k : 0;
    const std::int64_t a_elements = plan_.pack_a && column_tasks > 1 ? g_.m * (g_.k + blocks * kGap) : 0;
    const std::int64_t elements = a_elements + b_elements;
    const bool shares = elements >= kLeastShared && elements <= kSharedElements;
    const Tensor space = empty({shares ? elements : 0}, {.dtype = dtype_of<T>});
    Packed packed;
    if (shares) {
      if (b_elements > 0) packed.b = space.data<T>();
      if (a_elements > 0) packed.a = space.data<T>() + b_elements;
      pack(packed);
    }
    const Parts rows(plan_.row_panels.count, row_tasks), columns(column_panels, column_tasks);
    parallel_for(row_tasks * column_tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i / column_tasks, column = i % column_tasks;
        task({rows.begin(row), rows.begin(row + 1)},
             {columns.begin(column) * plan_.tile_columns,
              std::min(g_.n, columns.begin(column + 1) * plan_.tile_columns)},
             packed);
      }
    });
  }

 private:
  // Whole operands, packed; null: not.
  struct Packed {
    T *a = nullptr, *b = nullptr;
  };
  void pack(const Packed& packed) const {
    const std::int64_t blocks = divide_up(g_.k, plan_.inner);
    const std::int64_t columns =
        std::max<std::int64_t>(1, kPackElements / (plan_.inner * plan_.tile_columns)) * plan_.tile_columns;
    const std::int64_t panels = std::max<std::int64_t>(1, kPackElements / (plan_.inner * packing_.rows_of(0).size()));
    const std::int64_t b_parts = packed.b ? divide_up(g_.n, columns) : 0;
    const std::int64_t a_parts = packed.a ? divide_up(plan_.row_panels.count, panels) : 0;
    parallel_for(blocks * (b_parts + a_parts), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t k0 = i / (b_parts + a_parts) * plan_.inner, part = i % (b_parts + a_parts);
        const Range steps{k0, std::min(k0 + plan_.inner, g_.k)};
        if (part < b_parts) {
          const Range range{part * columns, std::min((part + 1) * columns, g_.n)};
          packing_.columns_of_b(range, steps, packing_.place_of_b(packed.b, range, steps));
        } else {
          const Range range{(part - b_parts) * panels, std::min((part - b_parts + 1) * panels, plan_.row_panels.count)};
          packing_.panels_of_a(range, steps, packing_.place_of_a(packed.a, range.begin, steps));
        }
      }
    });
  }

  [[gnu::noinline]] void task(Range panels, Range columns, const Packed& packed) const {
    if (plan_.streams)
      streaming_rows(panels, columns);
    else if (panels.size() == 1 && !packed.b && (plan_.pack_b || columns.size() < kernels_.lanes))
      single_panel_of_rows(packing_.rows_of(panels.begin), columns);
    else
      panels_of_rows(panels, columns, packed);
    if (g_.activation == Activation::gelu)
      for (std::int64_t i = plan_.row_panels.begin(panels.begin); i < plan_.row_panels.begin(panels.end); ++i)
        gelu(out_ + i * g_.out_stride + columns.begin, columns.size());
  }

  void panels_of_rows(Range panels, Range all, const Packed& packed) const {
    const std::int64_t inner = std::min(plan_.inner, g_.k), tile_rows = packing_.rows_of(0).size();
    const std::int64_t panel_bytes = plan_.tile_columns * inner * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t group =
        std::min({all.size(), kGroupColumns / plan_.tile_columns * plan_.tile_columns,
                  std::max<std::int64_t>(1, (plan_.b_comes_late ? kLateGroup : group_bytes()) / panel_bytes) *
                      plan_.tile_columns});
    const bool partial = all.size() % kernels_.lanes != 0 && (all.size() > group || !has_overlap(all));
    const std::int64_t columns_here = packed.b       ? 0
                                      : plan_.pack_b ? packing_.padded(group)
                                      : partial      ? plan_.tile_columns
                                                     : 0;
    const std::int64_t all_rows = plan_.row_panels.begin(panels.end) - plan_.row_panels.begin(panels.begin);
    const std::int64_t rows_here = !plan_.pack_a || packed.a ? 0
                                   : plan_.a_stays           ? all_rows
                                   : a_.row == 1             ? kGroupRows + tile_rows
                                                             : tile_rows;
    Space<T> space(columns_here * inner + rows_here * (inner + kGap));
    T* const packed_a = packed.a || rows_here == 0 ? packed.a : space.data + columns_here * inner;
    const auto columns_of = [&](std::int64_t column) { return Range{column, std::min(column + group, all.end)}; };
    const auto steps_of = [&](std::int64_t k0) { return Range{k0, std::min(k0 + plan_.inner, g_.k)}; };
    if (plan_.a_stays) {
      for (std::int64_t k0 = 0; k0 < g_.k; k0 += plan_.inner) {
        if (!packed.a) packing_.panels_of_a(panels, steps_of(k0), packed_a);
        for (std::int64_t column = all.begin; column < all.end; column += group)
          block(panels, columns_of(column), steps_of(k0), all, packed, space.data, packed_a);
      }
    } else {
      for (std::int64_t column = all.begin; column < all.end; column += group)
        for (std::int64_t k0 = 0; k0 < g_.k; k0 += plan_.inner)
          block(panels, columns_of(column), steps_of(k0), all, packed, space.data, packed_a);
    }
  }

  // Panels of rows times a group of columns of `all` during some steps.
  void block(Range panels, Range columns, Range steps, Range all, const Packed& packed, T* space, T* packed_a) const {
    const Panels b{columns, steps, packed.b ? packing_.place_of_b(packed.b, columns, steps) : space};
    if (plan_.pack_b && !packed.b)
      packing_.columns_of_b(columns, steps, b.packed);
    else if (!plan_.pack_b && columns.size() % kernels_.lanes != 0 && !has_overlap(columns))
      packing_.columns_of_b({columns.begin + columns.size() / plan_.tile_columns * plan_.tile_columns, columns.end},
                            steps, b.packed);
    const Later<T> later_b = plan_.b_comes_late && !packed.b ? packing_.columns_after(columns, steps, all) : Later<T>{};
    for (std::int64_t first = panels.begin, end = first; first < panels.end; first = end) {
      end = packing_.end_of_group(first, panels.end);
      const std::int64_t base = plan_.a_stays && !packed.a ? panels.begin : first;
      T* const a = packed.a ? packing_.place_of_a(packed.a, first, steps) : packed_a;
      if (plan_.pack_a && !packed.a && !plan_.a_stays) packing_.panels_of_a({first, end}, steps, a);
      const Later<T> later_a =
          plan_.a_comes_late && !packed.a ? packing_.rows_after(end, panels.end, steps) : Later<T>{};
      const auto compute = [&](std::int64_t i, Range range, std::int64_t count) __attribute__((always_inline)) {
        Tile<T> tile = tile_of(packing_.rows_of(i), steps);
        tile.panels = count;
        if (later_b.from) later_b.ask(tile, Parts(later_b.rows, panels.size()), i - panels.begin);
        if (later_a.from) later_a.ask(tile, Parts(later_a.rows, end - first), i - first);
        if (plan_.pack_a) {
          const std::int64_t step = steps.size() + (a_.row == 1 ? 0 : kGap);
          tile.a = a + (plan_.row_panels.begin(i) - plan_.row_panels.begin(base)) * step;
          (a_.row == 1 ? tile.a_step : tile.a_row) = a_.row == 1 ? packing_.rows_of(i).size() : step;
        } else if (i + 1 < end && plan_.a_is_far && columns.size() > 2 * plan_.tile_columns) {
          tile.next = a_.new_lines(plan_.row_panels.begin(i + 1), plan_.row_panels.begin(i + 2), steps.begin);
        }
        compute_tiles(tile, packing_.rows_of(i), range, b);
      };
      // Packed, b is in a cache of the second level and a panel of a in one of the first. As it lies, b is read
      // once.
      if (plan_.pack_b || plan_.short_chains)
        for (std::int64_t i = first, count = 1; i < end; i += count) {
          count = panels_at_once(i, end, columns);
          compute(i, columns, count);
        }
      else
        for (std::int64_t j = columns.begin; j < columns.end; j += plan_.tile_columns)
          for (std::int64_t i = first; i < end; ++i) compute(i, {j, std::min(j + plan_.tile_columns, columns.end)}, 1);
    }
  }

  // How many panels from i on are computed by one call: those of a few results that stay in a cache, of one size.
  std::int64_t panels_at_once(std::int64_t i, std::int64_t end, Range columns) const {
    const std::int64_t rows = packing_.rows_of(i).size();
    if (g_.k > kShort || plan_.pack_a || rows + 1 < kernels_.rows[plan_.vectors]) return 1;
    const std::int64_t most = std::max<std::int64_t>(1, kPanelsAtOnce / (rows * columns.size()));
    std::int64_t count = 1;
    while (count < most && i + count < end && packing_.rows_of(i + count).size() == rows) ++count;
    return count;
  }

  // Whether vectors that lie over their neighbours stay among these columns.
  bool has_overlap(Range columns) const {
    const std::int64_t rest = columns.size() % plan_.tile_columns;
    return plan_.overlaps && divide_up(rest, kernels_.lanes) * kernels_.lanes <= columns.size();
  }

  // Columns of b during some steps, and where they are packed if they are.
  struct Panels {
    Range columns, steps;
    T* packed;
  };

  // A row of tiles over `columns`, which begin with a tile.
  [[gnu::always_inline]] void compute_tiles(Tile<T>& tile, Range rows, Range columns, const Panels& b) const {
    const std::int64_t whole = columns.size() / plan_.tile_columns;
    if (whole > 0) {
      const T* const packed = b.packed + (columns.begin - b.columns.begin) * b.steps.size();
      tile.tiles = whole;
      tile.b = plan_.pack_b ? packed : b_.at(b.steps.begin, columns.begin);
      tile.b_step = plan_.pack_b ? plan_.tile_columns : b_.row;
      tile.b_tile = plan_.pack_b ? 0 : plan_.tile_columns - b.steps.size() * b_.row;
      set_columns(tile, rows, {columns.begin, columns.begin + plan_.tile_columns}, b.steps);
      run(tile, plan_.vectors, rows.size());
      tile.next = tile.later = nullptr;
    }
    Range rest{columns.begin + whole * plan_.tile_columns, columns.end};
    if (rest.size() == 0) return;
    const std::int64_t vectors = divide_up(rest.size(), kernels_.lanes);
    const bool over = !plan_.pack_b && has_overlap(b.columns);
    if (over) rest.begin = rest.end - vectors * kernels_.lanes;
    const bool in_place = !plan_.pack_b && rest.size() % kernels_.lanes == 0;
    tile.tiles = 1;
    tile.b = in_place       ? b_.at(b.steps.begin, rest.begin)
             : plan_.pack_b ? b.packed + (rest.begin - b.columns.begin) * b.steps.size()
                            : b.packed;
    tile.b_step = in_place ? b_.row : vectors * kernels_.lanes;
    set_columns(tile, rows, rest, b.steps);
    run(tile, vectors, rows.size());
  }

  // All panels of a row of tiles, of which `tile` is the first.
  [[gnu::always_inline]] void run(Tile<T>& tile, std::int64_t vectors, std::int64_t rows) const {
    const bool by_rows = tile.a_step == 1;
    if (tile.panels == 1) return kernels_.table[by_rows][vectors][rows](tile);
    if (vectors == plan_.vectors) return kernels_.panels[by_rows][vectors][kernels_.rows[vectors] - rows](tile);
    for (std::int64_t i = 0; i < tile.panels; ++i) {
      kernels_.table[by_rows][vectors][rows](tile);
      tile.a += rows * tile.a_row;
      tile.out += rows * tile.out_stride;
      if (tile.row_bias) tile.row_bias += rows;
    }
  }

  // b is used once, so it is packed in small pieces, which do not leave the first-level cache.
  [[gnu::noinline]] void single_panel_of_rows(Range rows, Range all) const {
    alignas(64) T packed[std::max(kStep * kPanelColumns, kMaxLanes * (kInner + kGap))];
    alignas(64) T sums[kMaxRows * kPanelColumns];
    const std::int64_t m = rows.size();
    // The last tile may lie over the one before: its elements are then computed twice, if they do not add to what was.
    const bool shifts = g_.beta == T(0);
    if (m == 1 && b_.column != 1)
      all.begin = multiply_one_row(kernels_, a_.column == 1, b_, g_.k, all.begin, all.end, shifts,
                                   [&](std::int64_t j, std::int64_t width, std::int64_t k0, std::int64_t k1) {
                                     Tile<T> tile = tile_of(rows, {k0, k1});
                                     set_columns(tile, rows, {j, j + width}, {k0, k1});
                                     return tile;
                                   });
    // Vectors of columns that kernels transpose on the way; of rows without places of their own a few are copied first.
    const int most = b_.column == 1 ? 0 : kernels_.turning_vectors[m];
    const int at_once = m < kPairedRows ? most : std::min(most, 1);  // whose rows in memory a kernel goes through
    const bool places = m <= kernels_.turning_lines || keep_places<T>(at_once * kernels_.lanes, b_.column);
    const std::int64_t shortest = g_.k - (g_.k - 1) / plan_.inner * plan_.inner;  // block of k
    const int several = places && shortest * static_cast<std::int64_t>(sizeof(T)) >= 64 ? most : at_once;
    std::int64_t width = 0;
    for (std::int64_t j = all.begin; j < all.end; j += width) {
      const auto fit = [&](int vectors) {
        const std::int64_t columns = vectors * kernels_.lanes;
        return columns > 0 && (places || columns <= kMaxLanes) && columns <= (shifts ? all.size() : all.end - j);
      };
      const bool many = all.end - j > at_once * kernels_.lanes;
      const int turning = many && fit(several) ? several : fit(at_once) ? at_once : 0;
      j = std::min(j, all.end - turning * kernels_.lanes);
      width = std::min(turning > 0 ? turning * kernels_.lanes : plan_.tile_columns, all.end - j);
      for (std::int64_t k0 = 0; k0 < g_.k; k0 += plan_.inner) {
        const Range columns{j, j + width}, steps{k0, std::min(k0 + plan_.inner, g_.k)};
        const std::int64_t vectors = divide_up(columns.size(), kernels_.lanes);
        Tile<T> tile = tile_of(rows, steps);
        tile.b = packed;
        tile.b_step = vectors * kernels_.lanes;
        set_columns(tile, rows, columns, steps);
        if (turning > 0) {
          tile.b_step = places ? b_.column : steps.size() + kGap;
          if (places)
            tile.b = b_.at(k0, j);
          else
            copy_rows(b_.at(k0, j), b_.column, width, steps.size(), packed);
          kernels_.turning[a_.column == 1][turning][m](tile);
          continue;
        }
        tile.sums = sums;
        for (std::int64_t k = steps.begin; k < steps.end; k += kStep) {
          const Range part{k, std::min(k + kStep, steps.end)};
          packing_.columns_of_b(columns, part, packed);
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
    const std::int64_t elements = kernels_.streaming_rows > 4 ? kStreamedElements : kStreamedElements / 2;
    const std::int64_t most = elements / packing_.rows_of(0).size() / kernels_.lanes * kernels_.lanes;
    for (std::int64_t j = all.begin; j < all.end; j += most)
      for (std::int64_t k0 = 0; k0 < g_.k; k0 += plan_.inner) {
        const Range columns{j, std::min(j + most, all.end)}, steps{k0, std::min(k0 + plan_.inner, g_.k)};
        for (std::int64_t i = panels.begin; i < panels.end; ++i) {
          const Range rows = packing_.rows_of(i);
          Tile<T> tile = tile_of(rows, steps);
          tile.b = b_.at(k0, j);
          tile.b_step = b_.row;
          tile.sums = sums;
          set_columns(tile, rows, columns, steps);
          kernels_.streaming[a_.column == 1][rows.size()](tile);
        }
      }
  }

  Tile<T> tile_of(Range rows, Range steps) const {
    Tile<T> tile;  // member by member: filling it with zeros first takes longer than a short chain
    tile.a = a_.at(rows.begin, steps.begin);
    tile.a_row = a_.row;
    tile.a_step = a_.column;
    tile.next = tile.b = tile.later = nullptr;
    tile.b_step = tile.b_tile = tile.columns = 0;
    tile.b_is_slow = plan_.b_is_slow;
    tile.k = steps.size();
    tile.panels = 1;
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
  const Plan<T> plan_;
  const Packing<T> packing_;
};

}  // namespace lockstep::cpu::gemm_detail
