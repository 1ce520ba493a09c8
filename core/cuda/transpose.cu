#include <type_traits>

#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/transpose.h"
#include "lockstep/core/cuda/words.cuh"
#include "lockstep/core/elementwise.h"

namespace lockstep::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kRows = kThreads / kTile;

/// Matrices [rows, columns], one after the other; in source, columns lie `source_column` elements apart.
struct Matrices {
  std::int64_t rows, columns, row_tiles, column_tiles, tiles;
  std::int64_t source_matrix, source_column, target_matrix;
};

/// Words of one size are moved as they are.
template <typename T, typename S>
__device__ T converted(S value) {
  if constexpr (std::is_same_v<S, T>) {
    return value;
  } else {
    return to_element<T>(from_element<float>(value));
  }
}

/// Calls f.template operator()<S, T>() with what source is read as and target is written as. False: there is nothing.
template <typename F>
bool with_types(DType source, DType target, F&& f) {
  if (source == target) {
    with_word(element_size(target), [&]<typename Word>() { f.template operator()<Word, Word>(); });
  } else if (source == kFloat32 && target == kFloat16) {
    f.template operator()<float, Half>();
  } else if (source == kFloat32 && target == kBFloat16) {
    f.template operator()<float, BFloat16>();
  } else if (source == kFloat16 && target == kFloat32) {
    f.template operator()<Half, float>();
  } else if (source == kBFloat16 && target == kFloat32) {
    f.template operator()<BFloat16, float>();
  } else {
    return false;
  }
  return true;
}

/// A tile at a time, by way of shared memory, so that both sides are read and written along their rows.
template <typename S, typename Word>
__global__ void transpose_kernel(Matrices m, const S* source, Word* target) {
  __shared__ Word tile[kTile][kTile + 1];
  const int x = static_cast<int>(threadIdx.x % kTile), y = static_cast<int>(threadIdx.x / kTile);
  for (std::int64_t t = blockIdx.x; t < m.tiles; t += gridDim.x) {
    const std::int64_t of_rows = t / m.column_tiles, matrix = of_rows / m.row_tiles;
    const std::int64_t row = (of_rows - matrix * m.row_tiles) * kTile, column = t % m.column_tiles * kTile;
    const S* const from = source + matrix * m.source_matrix;
    Word* const to = target + matrix * m.target_matrix;
#pragma unroll
    for (int i = y; i < kTile; i += kRows)
      if (row + x < m.rows && column + i < m.columns)
        tile[i][x] = converted<Word>(from[(column + i) * m.source_column + row + x]);
    __syncthreads();
#pragma unroll
    for (int i = y; i < kTile; i += kRows)
      if (row + i < m.rows && column + x < m.columns) to[(row + i) * m.columns + column + x] = tile[x][i];
    __syncthreads();
  }
}

/// Bytes of a matrix that a block takes at once.
constexpr std::size_t kWhole = 24576;

/// Elements between columns in shared memory: those of a row lie in different banks.
__host__ __device__ unsigned padding_of(unsigned rows, std::size_t bytes) {
  return rows < kTile || bytes > 4 ? 0 : static_cast<unsigned>(4 / bytes);
}

/// Moves a place among lines of `length`, with a remainder below that.
__device__ inline void step(unsigned& line, unsigned& at, unsigned lines, unsigned rest, unsigned length) {
  line += lines, at += rest;
  if (at >= length) at -= length, ++line;
}

/// Whole matrices, each dense, as those of filters, one side of which is short: read and written in order, W elements
/// at a time, of which kAhead reads wait for memory together.
template <int W, typename S, typename Word>
__global__ void transpose_whole_kernel(Matrices m, std::int64_t matrices, const S* source, Word* target) {
  constexpr int kAhead = 4;
  __shared__ Word values[kWhole / sizeof(Word)];
  const unsigned rows = static_cast<unsigned>(m.rows), columns = static_cast<unsigned>(m.columns);
  const unsigned packs = rows * columns / W, pitch = rows + padding_of(rows, sizeof(Word));
  for (std::int64_t matrix = blockIdx.x; matrix < matrices; matrix += gridDim.x) {
    const auto* const from = reinterpret_cast<const Pack<S, W>*>(source + matrix * m.source_matrix);
    auto* const to = reinterpret_cast<Pack<Word, W>*>(target + matrix * m.target_matrix);
    // Places are counted along, since divisions take longer than the rest.
    unsigned column = threadIdx.x * W / rows, row = threadIdx.x * W % rows;
    for (unsigned first = threadIdx.x; first < packs; first += kThreads * kAhead) {
      Pack<S, W> read[kAhead] = {};
#pragma unroll
      for (int u = 0; u < kAhead; ++u)
        if (first + u * kThreads < packs) read[u] = from[first + u * kThreads];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (first + u * kThreads >= packs) break;
        unsigned c = column, r = row;
#pragma unroll
        for (int j = 0; j < W; ++j) {
          values[c * pitch + r] = converted<Word>(read[u].value[j]);
          step(c, r, 0, 1, rows);
        }
        step(column, row, kThreads * W / rows, kThreads * W % rows, rows);
      }
    }
    __syncthreads();
    row = threadIdx.x * W / columns, column = threadIdx.x * W % columns;
#pragma unroll 4
    for (unsigned p = threadIdx.x; p < packs; p += kThreads) {
      Pack<Word, W> found;
      unsigned r = row, c = column;
#pragma unroll
      for (int j = 0; j < W; ++j) {
        found.value[j] = values[c * pitch + r];
        step(r, c, 0, 1, columns);
      }
      to[p] = found;
      step(row, column, kThreads * W / columns, kThreads * W % columns, columns);
    }
    __syncthreads();
  }
}

}  // namespace

bool copy_transposed(const Tensor& source, const Tensor& target) {
  if (source.sizes() != target.sizes() || !target.is_contiguous()) return false;
  const auto loop = cpu::plan_loop<2>(target.sizes(), {&target, &source});
  const int last = loop.sizes.dim() - 1;
  if (last < 1 || last > 2 || loop.strides[1][last - 1] != 1) return false;
  Matrices m{};
  m.rows = loop.sizes[last - 1], m.columns = loop.sizes[last];
  m.row_tiles = (m.rows + kTile - 1) / kTile, m.column_tiles = (m.columns + kTile - 1) / kTile;
  m.source_column = loop.strides[1][last];
  m.source_matrix = last == 2 ? loop.strides[1][0] : 0;
  m.target_matrix = m.rows * m.columns;
  const std::size_t bytes = element_size(target.dtype());
  const std::int64_t matrices = last == 2 ? loop.sizes[0] : 1;
  m.tiles = matrices * m.row_tiles * m.column_tiles;
  const bool whole = m.source_column == m.rows && std::min(m.rows, m.columns) < kTile &&
                     static_cast<std::size_t>(m.rows + padding_of(static_cast<unsigned>(m.rows), bytes)) *
                             static_cast<std::size_t>(m.columns) * bytes <=
                         kWhole;
  const Launch launch(target);
  return with_types(source.dtype(), target.dtype(), [&]<typename S, typename T>() {
    const auto* const from = static_cast<const S*>(source.raw_data());
    auto* const to = static_cast<T*>(target.raw_data());
    constexpr int kWide = 4;
    const bool wide = m.rows * m.columns % kWide == 0 && m.source_matrix % kWide == 0 &&
                      aligned(from, kWide * sizeof(S)) && aligned(to, kWide * sizeof(T));
    if (whole && wide)
      launch(transpose_whole_kernel<kWide, S, T>, blocks_for(matrices, 1), kThreads, m, matrices, from, to);
    else if (whole)
      launch(transpose_whole_kernel<1, S, T>, blocks_for(matrices, 1), kThreads, m, matrices, from, to);
    else
      launch(transpose_kernel<S, T>, blocks_for(m.tiles, 1), kThreads, m, from, to);
  });
}

}  // namespace lockstep::cuda
