// Products by our own kernels. The structure is that of Goto, van de Geijn: Anatomy of High-Performance Matrix
// Multiplication, 2008, and of Van Zee, van de Geijn: BLIS, 2015: panels are packed, a micro-kernel computes tiles.

#include "lockstep/core/cpu/gemm/own.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/cpu/gemm/micro_kernels.h"
#include "lockstep/core/cpu/gemm/pack.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::gemm_detail {
namespace {

constexpr double kTaskFlops = 4e6;        // of a task of parallel_for, at least
constexpr double kLargeTaskFlops = 16e6;  // where there is a task for each thread: tasks pack what others have packed
constexpr std::int64_t kTasksPerThread = 3;    // so that threads which are held up do not hold up the others
constexpr std::int64_t kGroupBytes = 1 << 20;  // of b packed at a time: a second-level cache
constexpr std::int64_t kGroupColumns = 2048;
constexpr std::int64_t kGroupRows = 56;        // rows of a transposed a packed at a time
constexpr std::int64_t kStep = 128;            // along k, of a panel of b that a single panel of rows uses
constexpr std::int64_t kShort = 48;            // k for which nothing is packed
constexpr std::int64_t kWays = 8;              // places of a cache for what lies a power of two apart
constexpr std::int64_t kFewPanels = 6;         // of rows, for which b is not packed
constexpr std::int64_t kGap = 16;              // elements between rows that are copied, to part them in a cache
constexpr std::int64_t kPanelColumns = 64;     // the widest panel of b
constexpr std::int64_t kLocalElements = 4096;  // of work space on the stack

std::int64_t divide_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

// `rows` if so many rows of memory that lie `stride` elements apart have places of their own in a cache, else 0.
template <typename T>
std::int64_t keep_places(std::int64_t rows, std::int64_t stride) {
  constexpr std::int64_t kWay = 4096;  // bytes
  const std::int64_t bytes = stride * static_cast<std::int64_t>(sizeof(T)), apart = std::min(bytes & -bytes, kWay);
  return rows * apart <= kWays * kWay ? rows : 0;
}

// Element (i, j) is at data[i * row + j * column]; row or column is 1.
template <typename T>
struct Strided {
  const T* data;
  std::int64_t row, column;
  const T* at(std::int64_t i, std::int64_t j) const { return data + i * row + j * column; }
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
  std::int64_t size(std::int64_t i) const { return length_ + (i < longer_ ? 1 : 0); }

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
        out_(problem.out + index * problem.out_batch_stride),
        inner_(inner_block(problem.k)) {
    // Wide tiles for few rows, so that there are enough independent chains, unless b must be transposed: narrow panels
    // are done faster.
    vectors_ = (g_.m <= kernels.rows[4] || (g_.k <= kShort && kernels.rows[4] > 4)) && b_.column == 1 ? 4 : 2;
    vectors_ = static_cast<int>(std::min<std::int64_t>(vectors_, divide_up(g_.n, kernels.lanes)));
    tile_rows_ = kernels.rows[vectors_];
    tile_columns_ = std::int64_t{vectors_} * kernels.lanes;
    // A panel of b is read once for each panel of rows: packing has to pay. For a few of them it does not if the rows
    // of b, as they lie, have places of their own in a cache.
    const std::int64_t row_panels = divide_up(g_.m, tile_rows_);
    const bool crowded = b_.row * static_cast<std::int64_t>(sizeof(T)) % 2048 == 0;
    const bool short_chains = row_panels <= 2 || (g_.k <= kShort && (!crowded || g_.k <= kWays));
    once_ = b_.column == 1 && !short_chains && row_panels <= kFewPanels && !crowded;
    pack_b_ = b_.column != 1 || (!short_chains && !once_);
    // Rows of a are read as they lie, unless they would fall on the same places of a cache.
    const std::int64_t stride = (a_.row == 1 ? a_.column : a_.row) * static_cast<std::int64_t>(sizeof(T));
    pack_a_ = pack_b_ && stride % 2048 == 0 && g_.n > 2 * tile_columns_ && g_.m > 4;
  }

  // On the threads of parallel_for: a grid of independent tasks. What it depends on does not matter to the bits.
  void run() const {
    const std::int64_t row_panels = divide_up(g_.m, tile_rows_), column_panels = divide_up(g_.n, tile_columns_);
    const double flops = 2.0 * static_cast<double>(g_.m) * static_cast<double>(g_.n) * static_cast<double>(g_.k);
    const int threads = flops < 2 * kTaskFlops ? 1 : num_threads();
    if (threads == 1) return task(0, g_.m, 0, g_.n);
    const auto wanted = static_cast<std::int64_t>(
        std::min({flops / kTaskFlops, std::max(flops / kLargeTaskFlops, static_cast<double>(threads)),
                  static_cast<double>(threads * kTasksPerThread)}));
    // Each task packs what it reads: columns are cut first, as rows of a often are not packed.
    std::int64_t row_tasks = 1, column_tasks = 1;
    while (row_tasks * column_tasks < wanted) {
      const std::int64_t rows = g_.m / row_tasks, columns = g_.n / column_tasks;
      if (2 * column_tasks <= column_panels && (rows <= 2 * columns || 2 * row_tasks > row_panels))
        column_tasks *= 2;
      else if (2 * row_tasks <= row_panels)
        row_tasks *= 2;
      else
        break;
    }
    const Parts rows(row_panels, row_tasks), columns(column_panels, column_tasks);
    parallel_for(row_tasks * column_tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t row = i % row_tasks, column = i / row_tasks;
        const std::int64_t m0 = rows.begin(row) * tile_rows_, n0 = columns.begin(column) * tile_columns_;
        task(m0, std::min(g_.m, rows.begin(row + 1) * tile_rows_) - m0, n0,
             std::min(g_.n, columns.begin(column + 1) * tile_columns_) - n0);
      }
    });
  }

 private:
  struct Range {
    std::int64_t begin, end;
    std::int64_t size() const { return end - begin; }
  };

  std::int64_t padded(std::int64_t columns) const { return divide_up(columns, kernels_.lanes) * kernels_.lanes; }

  // Work space, on the stack if it is small.
  struct Space {
    explicit Space(std::int64_t size) {
      if (size <= kLocalElements) return;
      large = empty({size}, {.dtype = dtype_of<T>});
      data = large.data<T>();
    }
    alignas(64) T local[kLocalElements];
    Tensor large;
    T* data = local;
  };

  bool whole_vectors(std::int64_t columns) const { return columns % kernels_.lanes == 0; }

  [[gnu::noinline]] void task(std::int64_t m0, std::int64_t m, std::int64_t n0, std::int64_t n) const {
    const std::int64_t row_panels = divide_up(m, tile_rows_);
    if (row_panels == 1 && (pack_b_ || n < kernels_.lanes))
      single_panel_of_rows(m0, m, n0, n);
    else
      panels_of_rows(m0, Parts(m, row_panels), n0, n);
    if (g_.activation == Activation::gelu)
      for (std::int64_t i = m0; i < m0 + m; ++i) gelu(out_ + i * g_.out_stride + n0, n);
  }

  void panels_of_rows(std::int64_t m0, const Parts& row_panels, std::int64_t n0, std::int64_t n) const {
    const std::int64_t m = row_panels.begin(row_panels.count), inner = std::min(inner_, g_.k);
    const std::int64_t panel_bytes = tile_columns_ * inner * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t group = std::min({n, kGroupColumns / tile_columns_ * tile_columns_,
                                         std::max<std::int64_t>(1, kGroupBytes / panel_bytes) * tile_columns_});
    const std::int64_t packed_columns = pack_b_ ? padded(group) : whole_vectors(n) ? 0 : tile_columns_;
    const std::int64_t packed_rows = !pack_a_ ? 0 : a_.row == 1 ? std::min(m, kGroupRows + tile_rows_) : tile_rows_;
    Space space(packed_columns * inner + packed_rows * (inner + kGap));
    T* const packed_b = space.data;
    T* const packed_a = space.data + packed_columns * inner;
    for (std::int64_t column = n0; column < n0 + n; column += group)
      for (std::int64_t k0 = 0; k0 < g_.k; k0 += inner_) {
        const Range columns{column, std::min(column + group, n0 + n)}, steps{k0, std::min(k0 + inner_, g_.k)};
        if (pack_b_)
          pack_columns_of_b(columns, steps, packed_b);
        else if (!whole_vectors(columns.size()))
          pack_columns_of_b({columns.begin + columns.size() / tile_columns_ * tile_columns_, columns.end}, steps,
                            packed_b);
        // Packed, b is in the second-level cache and a panel of a in the first. As it lies, b is read once.
        if (once_) {
          for (std::int64_t j = columns.begin; j < columns.end; j += tile_columns_)
            for (std::int64_t i = 0; i < row_panels.count; ++i) {
              const Range rows{m0 + row_panels.begin(i), m0 + row_panels.begin(i + 1)};
              Tile<T> tile = tile_of(rows, steps);
              compute_tile(tile, rows, columns, j, steps, packed_b);
            }
          continue;
        }
        std::int64_t first = 0, end = 0;  // row panels that are packed
        for (std::int64_t i = 0; i < row_panels.count; ++i) {
          const Range rows{m0 + row_panels.begin(i), m0 + row_panels.begin(i + 1)};
          Tile<T> tile = tile_of(rows, steps);
          if (pack_a_ && a_.row != 1) {
            copy_rows(a_.at(rows.begin, k0), a_.row, rows.size(), steps.size(), packed_a);
            tile.a = packed_a;
            tile.a_row = steps.size() + kGap;
          } else if (pack_a_) {
            if (i == end) {
              for (first = i; end < row_panels.count && row_panels.begin(end) < row_panels.begin(i) + kGroupRows;)
                ++end;
              pack_panels_of_a(m0, row_panels, first, end, steps, packed_a);
            }
            tile.a = packed_a + (row_panels.begin(i) - row_panels.begin(first)) * steps.size();
            tile.a_step = rows.size();
          }
          for (std::int64_t j = columns.begin; j < columns.end; j += tile_columns_)
            compute_tile(tile, rows, columns, j, steps, packed_b);
        }
      }
  }

  [[gnu::always_inline]] void compute_tile(Tile<T>& tile, Range rows, Range columns, std::int64_t j, Range steps,
                                           const T* packed_b) const {
    const std::int64_t width = std::min(tile_columns_, columns.end - j);
    const std::int64_t vectors = width == tile_columns_ ? vectors_ : divide_up(width, kernels_.lanes);
    if (pack_b_ || width % kernels_.lanes != 0) {
      tile.b = pack_b_ ? packed_b + (j - columns.begin) * steps.size() : packed_b;
      tile.b_step = vectors * kernels_.lanes;
    } else {
      tile.b = b_.at(steps.begin, j);
      tile.b_step = b_.row;
    }
    set_columns(tile, rows, {j, j + width}, steps);
    kernels_.table[tile.a_step == 1][vectors][rows.size()](tile);
  }

  // b is used once, so it is packed in small pieces, which do not leave the first-level cache.
  [[gnu::noinline]] void single_panel_of_rows(std::int64_t m0, std::int64_t m, std::int64_t n0, std::int64_t n) const {
    alignas(64) T packed[kStep * kPanelColumns];
    alignas(64) T sums[kMaxRows * kPanelColumns];
    const Range rows{m0, m0 + m};
    const std::int64_t turning =
        b_.column == 1 ? 0 : keep_places<T>(kernels_.turning_vectors[m] * kernels_.lanes, b_.column);
    std::int64_t width = 0;
    for (std::int64_t j = n0; j < n0 + n; j += width) {
      const bool turns = turning > 0 && j + turning <= n0 + n;
      width = std::min(turns ? turning : tile_columns_, n0 + n - j);
      for (std::int64_t k0 = 0; k0 < g_.k; k0 += inner_) {
        const Range columns{j, j + width}, steps{k0, std::min(k0 + inner_, g_.k)};
        const std::int64_t vectors = divide_up(columns.size(), kernels_.lanes);
        Tile<T> tile = tile_of(rows, steps);
        tile.b = packed;
        tile.b_step = vectors * kernels_.lanes;
        set_columns(tile, rows, columns, steps);
        if (turns) {
          tile.b = b_.at(k0, j);
          tile.b_step = b_.column;
          kernels_.turning[a_.column == 1][m](tile);
          continue;
        }
        tile.sums = sums;
        for (std::int64_t k = steps.begin; k < steps.end; k += kStep) {
          const Range part{k, std::min(k + kStep, steps.end)};
          pack_columns_of_b(columns, part, packed);
          tile.a = a_.at(m0, k);
          tile.k = part.size();
          tile.resumes = k != steps.begin;
          tile.pauses = part.end != steps.end;
          kernels_.table[a_.column == 1][vectors][m](tile);
        }
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

  // Of a transposed a; a line of the cache holds elements of several panels.
  void pack_panels_of_a(std::int64_t m0, const Parts& panels, std::int64_t first, std::int64_t end, Range steps,
                        T* to) const {
    constexpr std::int64_t kTurn = 16;
    for (std::int64_t k = steps.begin; k < steps.end; k += kTurn) {
      const std::int64_t count = std::min(kTurn, steps.end - k);
      for (std::int64_t i = first; i < end; ++i) {
        const std::int64_t row = panels.begin(i), rows = panels.begin(i + 1) - row;
        pack_rows(a_.at(m0 + row, k), a_.column, count, rows, rows,
                  to + (row - panels.begin(first)) * steps.size() + (k - steps.begin) * rows);
      }
    }
  }

  void copy_rows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t k, T* to) const {
    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(from + i * stride, k, to + i * (k + kGap));
  }

  Tile<T> tile_of(Range rows, Range steps) const {
    Tile<T> tile{};
    tile.a = a_.at(rows.begin, steps.begin);
    tile.a_row = a_.row;
    tile.a_step = a_.column;
    tile.k = steps.size();
    tile.out_stride = g_.out_stride;
    tile.alpha = g_.alpha;
    tile.beta = steps.begin == 0 ? g_.beta : T(1);
    if (steps.end == g_.k) {
      tile.row_bias = g_.row_bias ? g_.row_bias + rows.begin : nullptr;
      tile.relu = g_.activation == Activation::relu;
    }
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
  int vectors_;
  std::int64_t tile_rows_, tile_columns_;
  bool pack_a_, pack_b_;
  bool once_;  // b is read panel by panel of columns, not of rows
};

// to[j][i] = from[i][j]
template <typename T>
void transpose(const MicroKernels<T>& kernels, const T* from, std::int64_t rows, std::int64_t columns,
               std::int64_t stride, T* to, std::int64_t to_stride) {
  const std::int64_t whole = rows / kernels.lanes * kernels.lanes;
  if (whole > 0) kernels.pack_columns(from, stride, columns, whole, to, to_stride);
  for (std::int64_t i = whole; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) to[j * to_stride + i] = from[i * stride + j];
}

// Some results are computed as their transpose, b^T a^T, by the same sums: narrow ones, so that vectors are full, and
// those where a is smaller to transpose than b.
template <typename T>
bool is_turned(const Gemm<T>& g, int lanes) {
  if (g.m < 2 * lanes || (g.bias && g.row_bias) || g.activation == Activation::gelu) return false;
  return g.n < lanes || (g.b.transposed && !g.a.transposed && (g.m * g.k + 2 * g.m * g.n) < g.n * g.k);
}

template <typename T>
void multiply_turned(const MicroKernels<T>& kernels, const Gemm<T>& g, std::int64_t index) {
  constexpr std::int64_t kLocal = 2048;
  alignas(64) T local[kLocal];
  const Tensor space = empty({g.m * g.n > kLocal ? g.m * g.n : 0}, {.dtype = dtype_of<T>});
  T* const turned = g.m * g.n > kLocal ? space.data<T>() : local;
  T* const out = g.out + index * g.out_batch_stride;
  if (g.beta != T(0)) transpose(kernels, out, g.m, g.n, g.out_stride, turned, g.m);
  Gemm<T> t = g;
  std::swap(t.m, t.n);
  std::swap(t.a, t.b);
  std::swap(t.bias, t.row_bias);
  t.a.transposed = !t.a.transposed;
  t.b.transposed = !t.b.transposed;
  t.a.data += index * t.a.batch_stride;
  t.b.data += index * t.b.batch_stride;
  t.out = turned;
  t.out_stride = t.n;
  Product<T>(kernels, t, 0).run();
  transpose(kernels, turned, g.n, g.m, g.m, out, g.out_stride);
}

template <typename T>
void multiply(const Gemm<T>& problem, InstructionSet set) {
  const MicroKernels<T>& kernels = micro_kernels<T>(set);
  const auto one = [&](std::int64_t index) {
    if (is_turned(problem, kernels.lanes))
      multiply_turned(kernels, problem, index);
    else
      Product<T>(kernels, problem, index).run();
  };
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
