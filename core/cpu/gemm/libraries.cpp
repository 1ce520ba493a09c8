#include "lockstep/core/cpu/gemm/libraries.h"

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "lockstep/core/cpu/gemm/library_onednn.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// Note [GEMM blocks]
// The product is cut into a grid of blocks by m, n and k alone: at most kMaxBlocks, each worth at least kBlockFlops
// (smaller ones lose some 10 % to packing). Cutting rows or columns makes each block read a whole
// operand again, so the longer side of the result is cut first. A long inner dimension over a small result (the weight
// gradient of a wide layer) is cut too: each part writes its own partial result, and the parts are added in order.
constexpr std::int64_t kMaxBlocks = 32;
constexpr double kBlockFlops = 16e6;
constexpr std::int64_t kMinSide = 32;    // rows or columns of a block; the libraries' tiles are 6 to 32 wide
constexpr std::int64_t kMinInner = 512;  // inner length of a block

struct Grid {
  std::int64_t m_blocks = 1, n_blocks = 1, k_blocks = 1;
};

Grid plan(std::int64_t m, std::int64_t n, std::int64_t k) {
  Grid grid;
  double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  std::int64_t blocks = 1;
  while (blocks < kMaxBlocks && flops >= 2 * kBlockFlops) {
    const std::int64_t side_m = m / grid.m_blocks, side_n = n / grid.n_blocks, inner = k / grid.k_blocks;
    const std::int64_t longest = std::max(side_m, side_n);
    if (inner >= 2 * kMinInner && inner > 8 * longest) {
      grid.k_blocks *= 2;
    } else if (longest < 2 * kMinSide) {
      break;
    } else if (side_m >= side_n) {
      grid.m_blocks *= 2;
    } else {
      grid.n_blocks *= 2;
    }
    blocks *= 2;
    flops /= 2;
  }
  return grid;
}

// Start of part i of `parts` of [0, size), on a multiple of 16 where the parts are long enough.
std::int64_t cut(std::int64_t size, std::int64_t parts, std::int64_t i) {
  if (i >= parts) return size;
  const std::int64_t start = size * i / parts;
  return size / parts >= 32 ? start / 16 * 16 : start;
}

// c = sum of `parts` m x n matrices that lie one after the other, plus beta * c.
template <typename T>
void add_parts(const T* partial, std::int64_t parts, std::int64_t m, std::int64_t n, T beta, T* c, std::int64_t ldc) {
  const std::int64_t rows = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(n, 1));
  parallel_for(m, rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const T* first = partial + i * n;
      T* out = c + i * ldc;
      if (beta == T(0)) {
        for (std::int64_t j = 0; j < n; ++j) out[j] = first[j];
      } else {
        for (std::int64_t j = 0; j < n; ++j) out[j] = beta * out[j] + first[j];
      }
      for (std::int64_t p = 1; p < parts; ++p) {
        const T* next = first + p * m * n;
        for (std::int64_t j = 0; j < n; ++j) out[j] += next[j];
      }
    }
  });
}

// One block by the library that is best for it.
template <typename T>
void multiply_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
                    const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  if constexpr (std::is_same_v<T, float>)
    if (onednn_block(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)) return;
  library_block(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template <typename T>
void multiply_matrix(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha,
                     const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  const Grid grid = plan(m, n, k);
  const std::int64_t tiles = grid.m_blocks * grid.n_blocks;
  if (tiles * grid.k_blocks == 1)
    return multiply_block(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);

  const Tensor space = empty({grid.k_blocks > 1 ? grid.k_blocks * m * n : 0}, {.dtype = dtype_of<T>});
  T* const partial = space.data<T>();
  parallel_for(tiles * grid.k_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t part = block / tiles;
      const std::int64_t row = block % tiles / grid.n_blocks, column = block % grid.n_blocks;
      const std::int64_t m0 = cut(m, grid.m_blocks, row), m1 = cut(m, grid.m_blocks, row + 1);
      const std::int64_t n0 = cut(n, grid.n_blocks, column), n1 = cut(n, grid.n_blocks, column + 1);
      const std::int64_t k0 = cut(k, grid.k_blocks, part), k1 = cut(k, grid.k_blocks, part + 1);
      const T* block_a = transpose_a ? a + k0 * lda + m0 : a + m0 * lda + k0;
      const T* block_b = transpose_b ? b + n0 * ldb + k0 : b + k0 * ldb + n0;
      if (grid.k_blocks > 1) {
        T* out = partial + part * m * n + m0 * n + n0;
        multiply_block(transpose_a, transpose_b, m1 - m0, n1 - n0, k1 - k0, alpha, block_a, lda, block_b, ldb, T(0),
                       out, n);
      } else {
        multiply_block(transpose_a, transpose_b, m1 - m0, n1 - n0, k1 - k0, alpha, block_a, lda, block_b, ldb, beta,
                       c + m0 * ldc + n0, ldc);
      }
    }
  });
  if (grid.k_blocks > 1) add_parts(partial, grid.k_blocks, m, n, beta, c, ldc);
}

template <typename T>
void multiply(const Gemm<T>& g) {
  const bool finishes = g.bias || g.row_bias || g.activation != Activation::none;
  for (std::int64_t i = 0; i < g.batch; ++i) {
    T* const out = g.out + i * g.out_batch_stride;
    multiply_matrix(g.a.transposed, g.b.transposed, g.m, g.n, g.k, g.alpha, g.a.data + i * g.a.batch_stride, g.a.stride,
                    g.b.data + i * g.b.batch_stride, g.b.stride, g.beta, out, g.out_stride);
    if (!finishes) continue;
    const std::int64_t rows = std::max<std::int64_t>(1, 32768 / g.n);
    parallel_for(g.m, rows, [&](std::int64_t begin, std::int64_t end) { finish_rows(g, out, begin, end, T(1)); });
  }
}

}  // namespace

void multiply_libraries(const Gemm<float>& problem) {
  multiply(problem);
}
void multiply_libraries(const Gemm<double>& problem) {
  multiply(problem);
}

}  // namespace lockstep::cpu::gemm_detail
