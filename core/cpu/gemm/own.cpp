// Products by our own kernels. The structure is that of Goto, van de Geijn: Anatomy of High-Performance Matrix
// Multiplication, 2008, and of Van Zee, van de Geijn: BLIS, 2015: panels are packed, a micro-kernel computes tiles.

#include "lockstep/core/cpu/gemm/own.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/core/cpu/gemm/micro_kernel.h"
#include "lockstep/core/cpu/gemm/pack.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::gemm_detail {
namespace {

constexpr std::int64_t kPackedElements = 1 << 20;  // of one operand at a time
constexpr std::int64_t kChunkSide = 4096;          // rows or columns of the result at a time
constexpr std::int64_t kPanelColumns = 64;         // the widest panel of b
constexpr std::int64_t kLocalElements = 2048;      // packed on the stack
constexpr double kTaskFlops = 8e6;                 // of a task of parallel_for, at least
constexpr std::int64_t kTaskRows = 192, kTaskColumns = 512, kTasks = 16;

std::int64_t divide_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

template <typename T>
const MicroKernels<T>& micro_kernels(InstructionSet set);
template <>
const MicroKernels<float>& micro_kernels<float>([[maybe_unused]] InstructionSet set) {
#if defined(__aarch64__)
  return kNeonFloat;
#else
  return set == InstructionSet::avx512 ? kAvx512Float : kAvx2Float;
#endif
}
template <>
const MicroKernels<double>& micro_kernels<double>([[maybe_unused]] InstructionSet set) {
#if defined(__aarch64__)
  return kNeonDouble;
#else
  return set == InstructionSet::avx512 ? kAvx512Double : kAvx2Double;
#endif
}

// Element (i, j) is at data[i * row + j * column]; row or column is 1.
template <typename T>
struct Strided {
  const T* data;
  std::int64_t row, column;
};

template <typename T>
Strided<T> strided(const GemmOperand<T>& operand, std::int64_t index) {
  const T* data = operand.data + index * operand.batch_stride;
  return operand.transposed ? Strided<T>{data, 1, operand.stride} : Strided<T>{data, operand.stride, 1};
}

// [0, size) in `count` parts whose lengths differ by one at most.
struct Parts {
  Parts(std::int64_t total, std::int64_t parts) : count(parts), length_(total / parts), longer_(total % parts) {}
  std::int64_t count;
  std::int64_t begin(std::int64_t i) const { return i * length_ + std::min(i, longer_); }

 private:
  std::int64_t length_, longer_;  // the first `longer_` have one more
};

// One matrix of a batch.
template <typename T>
class Product {
 public:
  Product(const MicroKernels<T>& kernels, const Gemm<T>& problem, std::int64_t index)
      : kernels_(kernels),
        g_(problem),
        a_(strided(problem.a, index)),
        b_(strided(problem.b, index)),
        out_(problem.out + index * problem.out_batch_stride) {
    // Wide tiles for few rows, so that there are enough independent chains.
    vectors_ = g_.m <= kernels.rows[4] ? 4 : 2;
    vectors_ = static_cast<int>(std::min<std::int64_t>(vectors_, divide_up(g_.n, kernels.lanes)));
    tile_rows_ = kernels.rows[vectors_];
    tile_columns_ = std::int64_t{vectors_} * kernels.lanes;
    // A panel of b is read once for each panel of rows: packing has to pay.
    const std::int64_t row_panels = divide_up(g_.m, tile_rows_);
    const bool packs = b_.column != 1 || (row_panels > 2 && g_.k > 48);
    packs_late_ = packs && g_.m <= kTaskRows;
    pack_b_ = packs && !packs_late_;
    // Rows of a are read as they lie, unless they would fall on the same places of a cache, or on many pages.
    const bool scattered = a_.column == 1 ? a_.row * static_cast<std::int64_t>(sizeof(T)) % 2048 == 0 : g_.k > 64;
    pack_a_ = scattered && g_.n > 2 * tile_columns_ && g_.m > 4;
  }

  void run() {
    for (std::int64_t n0 = 0; n0 < g_.n; n0 += kChunkSide)
      for (std::int64_t m0 = 0; m0 < g_.m; m0 += kChunkSide) {
        const std::int64_t m = std::min(kChunkSide, g_.m - m0), n = std::min(kChunkSide, g_.n - n0);
        const std::int64_t blocks = std::max<std::int64_t>(1, kPackedElements / std::max(m, n) / kInner);
        for (std::int64_t k0 = 0; k0 < g_.k; k0 += blocks * kInner)
          chunk(m0, n0, k0, m, n, std::min(blocks * kInner, g_.k - k0));
      }
  }

 private:
  // A part of the problem whose operands are packed at once.
  struct Chunk {
    std::int64_t m0, n0, k0, m, n, k;
    std::int64_t padded_n;  // columns in packed panels
    Parts row_panels;
    std::int64_t column_panels, inner_blocks;
    T *packed_a, *packed_b;

    std::int64_t inner(std::int64_t block) const { return std::min(kInner, k - block * kInner); }
  };

  // Panels of b that end in a part of a vector are always packed: kernels read whole vectors.
  bool packs_b_panel(const Chunk& c, std::int64_t panel) const {
    return pack_b_ ||
           (!packs_late_ && panel == c.column_panels - 1 && (c.n - panel * tile_columns_) % kernels_.lanes != 0);
  }
  // Packed panels follow each other block by block; a panel takes as much room as it has rows or columns.
  T* packed_a(const Chunk& c, std::int64_t block, std::int64_t row) const {
    return c.packed_a + block * kInner * c.m + row * c.inner(block);
  }
  T* packed_b(const Chunk& c, std::int64_t block, std::int64_t column) const {
    if (!pack_b_) return c.packed_b + block * kInner * tile_columns_;  // the last panel alone
    return c.packed_b + block * kInner * c.padded_n + column * c.inner(block);
  }

  void chunk(std::int64_t m0, std::int64_t n0, std::int64_t k0, std::int64_t m, std::int64_t n, std::int64_t k) {
    Chunk c{.m0 = m0,
            .n0 = n0,
            .k0 = k0,
            .m = m,
            .n = n,
            .k = k,
            .padded_n = divide_up(n, kernels_.lanes) * kernels_.lanes,
            .row_panels = Parts(m, divide_up(m, tile_rows_)),
            .column_panels = divide_up(n, tile_columns_),
            .inner_blocks = divide_up(k, kInner),
            .packed_a = nullptr,
            .packed_b = nullptr};
    const bool partial = n % kernels_.lanes != 0 && !packs_late_;
    const std::int64_t size_a = pack_a_ ? m * k : 0;
    const std::int64_t size_b = pack_b_ ? c.padded_n * k : partial ? tile_columns_ * k : 0;
    const std::int64_t room_a = divide_up(size_a, 16) * 16;
    alignas(64) T local[kLocalElements];
    Tensor space;
    T* packed = local;
    if (room_a + size_b > kLocalElements) {
      space = empty({room_a + size_b}, {.dtype = dtype_of<T>});
      packed = space.data<T>();
    }
    c.packed_a = packed;
    c.packed_b = packed + room_a;
    if (size_b > 0 || size_a > 0) pack(c);
    compute(c);
  }

  void pack(const Chunk& c) {
    const std::int64_t a_panels = pack_a_ ? c.row_panels.count : 0;
    const std::int64_t first_b = pack_b_ ? 0 : c.column_panels - 1;
    const std::int64_t b_panels = pack_b_ || packs_b_panel(c, first_b) ? c.column_panels - first_b : 0;
    const std::int64_t each =
        std::max<std::int64_t>(1, 40000 / (std::min(kInner, c.k) * std::max(tile_rows_, tile_columns_)));
    parallel_for((a_panels + b_panels) * c.inner_blocks, each, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t block = task / (a_panels + b_panels), panel = task % (a_panels + b_panels);
        if (panel < a_panels)
          pack_a_panel(c, block, panel);
        else
          pack_b_panel(c, block, first_b + panel - a_panels,
                       packed_b(c, block, (first_b + panel - a_panels) * tile_columns_));
      }
    });
  }

  void pack_a_panel(const Chunk& c, std::int64_t block, std::int64_t panel) const {
    const std::int64_t row = c.row_panels.begin(panel), rows = c.row_panels.begin(panel + 1) - row;
    const T* from = a_.data + (c.m0 + row) * a_.row + (c.k0 + block * kInner) * a_.column;
    if (a_.row == 1)
      pack_rows(from, a_.column, c.inner(block), rows, rows, packed_a(c, block, row));
    else
      pack_columns(from, a_.row, c.inner(block), rows, rows, packed_a(c, block, row));
  }

  void pack_b_panel(const Chunk& c, std::int64_t block, std::int64_t panel, T* to) const {
    const std::int64_t column = panel * tile_columns_, columns = std::min(tile_columns_, c.n - column);
    const std::int64_t padded = divide_up(columns, kernels_.lanes) * kernels_.lanes;
    const T* from = b_.data + (c.k0 + block * kInner) * b_.row + (c.n0 + column) * b_.column;
    if (b_.column == 1)
      pack_rows(from, b_.row, c.inner(block), columns, padded, to);
    else
      pack_columns(from, b_.column, c.inner(block), columns, padded, to);
  }

  // Cuts the chunk's result into tasks, by sizes alone.
  void compute(const Chunk& c) {
    std::int64_t row_tasks = divide_up(c.m, kTaskRows), column_tasks = divide_up(c.n, kTaskColumns);
    const double flops = 2.0 * static_cast<double>(c.m) * static_cast<double>(c.n) * static_cast<double>(c.k);
    while (row_tasks * column_tasks < kTasks &&
           flops / static_cast<double>(row_tasks * column_tasks) >= 2 * kTaskFlops) {
      if (!packs_late_ && c.m / row_tasks >= c.n / column_tasks && 2 * row_tasks <= c.row_panels.count)
        row_tasks *= 2;
      else if (2 * column_tasks <= c.column_panels)
        column_tasks *= 2;
      else if (!packs_late_ && 2 * row_tasks <= c.row_panels.count)
        row_tasks *= 2;
      else
        break;
    }
    row_tasks = std::min(row_tasks, c.row_panels.count);
    column_tasks = std::min(column_tasks, c.column_panels);
    const Parts rows(c.row_panels.count, row_tasks), columns(c.column_panels, column_tasks);
    // Several small tasks of one big matrix would cost more to hand out than they take.
    const std::int64_t each = flops < 2 * kTaskFlops ? row_tasks * column_tasks : 1;
    parallel_for(row_tasks * column_tasks, each, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t i = task % row_tasks, j = task / row_tasks;
        if (packs_late_)
          pack_and_compute_panels(c, rows.begin(i), rows.begin(i + 1), columns.begin(j), columns.begin(j + 1));
        else
          compute_panels(c, rows.begin(i), rows.begin(i + 1), columns.begin(j), columns.begin(j + 1), nullptr);
      }
    });
  }

  // For a single task of rows: each panel of b is packed just before it is used, and only once.
  [[gnu::noinline]] void pack_and_compute_panels(const Chunk& c, std::int64_t first_row, std::int64_t end_row,
                                                 std::int64_t first_column, std::int64_t end_column) const {
    alignas(64) T panel[kInner * kPanelColumns];
    compute_panels(c, first_row, end_row, first_column, end_column, panel);
  }

  void compute_panels(const Chunk& c, std::int64_t first_row, std::int64_t end_row, std::int64_t first_column,
                      std::int64_t end_column, T* late_panel) const {
    Tile<T> tile{};
    tile.out_stride = g_.out_stride;
    tile.alpha = g_.alpha;
    const bool by_rows = !pack_a_ && a_.row != 1;
    for (std::int64_t block = 0; block < c.inner_blocks; ++block) {
      const std::int64_t p = c.k0 + block * kInner;
      const bool last = p + c.inner(block) == g_.k;
      tile.k = c.inner(block);
      tile.beta = p == 0 ? g_.beta : T(1);
      tile.relu = last && g_.activation == Activation::relu;
      const auto compute_tile = [&](std::int64_t i, std::int64_t panel, const T* late) {
        const std::int64_t row = c.row_panels.begin(i), rows = c.row_panels.begin(i + 1) - row;
        const std::int64_t column = panel * tile_columns_;
        tile.a = pack_a_ ? packed_a(c, block, row) : a_.data + (c.m0 + row) * a_.row + p * a_.column;
        tile.a_row = pack_a_ ? 1 : a_.row;
        tile.a_step = pack_a_ ? rows : a_.column;
        tile.columns = std::min(tile_columns_, c.n - column);
        const std::int64_t vectors = tile.columns == tile_columns_ ? vectors_ : divide_up(tile.columns, kernels_.lanes);
        tile.b_step = vectors * kernels_.lanes;
        if (late) {
          tile.b = late;
        } else if (packs_b_panel(c, panel)) {
          tile.b = packed_b(c, block, column);
        } else {
          tile.b = b_.data + p * b_.row + c.n0 + column;
          tile.b_step = b_.row;
        }
        tile.bias = last && g_.bias ? g_.bias + c.n0 + column : nullptr;
        tile.row_bias = last && g_.row_bias ? g_.row_bias + c.m0 + row : nullptr;
        tile.out = out_ + (c.m0 + row) * g_.out_stride + c.n0 + column;
        kernels_.table[by_rows][vectors][rows](tile);
      };
      if (!pack_b_) {  // b is read once
        for (std::int64_t panel = first_column; panel < end_column; ++panel) {
          if (late_panel) pack_b_panel(c, block, panel, late_panel);
          for (std::int64_t i = first_row; i < end_row; ++i) compute_tile(i, panel, late_panel);
        }
      } else {
        for (std::int64_t i = first_row; i < end_row; ++i)
          for (std::int64_t panel = first_column; panel < end_column; ++panel) compute_tile(i, panel, nullptr);
      }
    }
    if (g_.activation == Activation::gelu && c.k0 + c.k == g_.k) {
      const std::int64_t begin = first_column * tile_columns_, end = std::min(end_column * tile_columns_, c.n);
      for (std::int64_t i = c.row_panels.begin(first_row); i < c.row_panels.begin(end_row); ++i)
        gelu(out_ + (c.m0 + i) * g_.out_stride + c.n0 + begin, end - begin);
    }
  }

  const MicroKernels<T>& kernels_;
  const Gemm<T>& g_;
  const Strided<T> a_, b_;
  T* const out_;
  int vectors_;
  std::int64_t tile_rows_, tile_columns_;
  bool pack_a_, pack_b_;
  bool packs_late_;  // panels of b, when they are used
};

template <typename T>
void multiply(const Gemm<T>& problem, InstructionSet set) {
  const MicroKernels<T>& kernels = micro_kernels<T>(set);
  const auto one = [&](std::int64_t index) { Product<T>(kernels, problem, index).run(); };
  if (problem.batch == 1) return one(0);
  // Few matrices: parallel inside each product. Many: parallel over them.
  const double macs = static_cast<double>(problem.m) * static_cast<double>(problem.n) * static_cast<double>(problem.k);
  const std::int64_t each =
      problem.batch < 8 ? problem.batch : static_cast<std::int64_t>(std::max(1.0, kTaskFlops / 2 / macs));
  parallel_for(problem.batch, each, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) one(i);
  });
}

}  // namespace

void multiply_own(const Gemm<float>& problem, InstructionSet set) {
  multiply(problem, set);
}
void multiply_own(const Gemm<double>& problem, InstructionSet set) {
  multiply(problem, set);
}

}  // namespace lockstep::cpu::gemm_detail
