#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/autograd/ops/linalg/linalg_kernels.h"
#include "lockstep/autograd/ops/linalg/linalg_loops.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/factories.h"

namespace lockstep::detail {
namespace {

// Note [Blocks of matrices]
/// Large matrices are factored and solved by kBlock rows or columns at a time: what those do to the rest is a product,
/// which is computed by gemm() and takes most of the time. Its bits follow from the sizes (Note [Order of a product]).
constexpr std::int64_t kBlock = 32;

struct Matrix {
  double* data;
  std::int64_t stride;  ///< between rows

  double* row(std::int64_t r) const { return data + r * stride; }
  Matrix at(std::int64_t r, std::int64_t c) const { return {row(r) + c, stride}; }
};

/// out [m, n] -= a [m, k] b [k, n], of which no two share memory; `transposed`: a is the transpose of what is stored.
void subtract_product(Matrix out, Matrix a, Matrix b, std::int64_t m, std::int64_t n, std::int64_t k,
                      bool transposed = false) {
  cpu::gemm({.m = m,
             .n = n,
             .k = k,
             .a = {a.data, a.stride, transposed},
             .b = {b.data, b.stride},
             .out = out.data,
             .out_stride = out.stride,
             .alpha = -1.0,
             .beta = 1.0});
}

/// Memory for rows x columns doubles. A thread takes it once for all its matrices, which may be of four elements.
Tensor make_space(std::int64_t rows, std::int64_t columns) {
  return empty({rows, columns}, {.dtype = kFloat64});
}

/// to[j] -= factor * from[j].
void subtract_multiple(double* to, const double* from, double factor, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) to[j] -= factor * from[j];
}
/// row[j] /= divisor.
void divide(double* row, double divisor, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) row[j] /= divisor;
}

/// The X of a X = b in the place of b [n, k], for the upper triangle of a. Row by row, so that neighbours of a row are
/// computed side by side.
void substitute_backwards(Matrix a, std::int64_t n, Matrix b, std::int64_t k) {
  for (std::int64_t end = n; end > 0;) {
    const std::int64_t begin = (end - 1) / kBlock * kBlock;
    if (end < n) subtract_product(b.at(begin, 0), a.at(begin, end), b.at(end, 0), end - begin, k, n - end);
    for (std::int64_t r = end - 1; r >= begin; --r) {
      for (std::int64_t c = r + 1; c < end; ++c) subtract_multiple(b.row(r), b.row(c), a.row(r)[c], k);
      divide(b.row(r), a.row(r)[r], k);
    }
    end = begin;
  }
}

/// The same for the lower triangle; kUnit: with ones on its diagonal.
template <bool kUnit>
void substitute_forwards(Matrix a, std::int64_t n, Matrix b, std::int64_t k) {
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, n);
    if (begin > 0) subtract_product(b.at(begin, 0), a.at(begin, 0), b, end - begin, k, begin);
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = begin; c < r; ++c) subtract_multiple(b.row(r), b.row(c), a.row(r)[c], k);
      if (!kUnit) divide(b.row(r), a.row(r)[r], k);
    }
  }
}

/// Eliminates below the diagonal of a [rows, width] by rows, the largest element of a column first; the factors are
/// left there. exchanged[c] is the row that was exchanged with row c. Returns the sign of the permutation, 0 if a
/// column has nothing.
double eliminate_columns(Matrix a, std::int64_t rows, std::int64_t width, std::int64_t* exchanged) {
  double sign = 1.0;
  for (std::int64_t c = 0; c < width; ++c) {
    std::int64_t pivot = c;
    for (std::int64_t r = c + 1; r < rows; ++r)
      if (std::abs(a.row(r)[c]) > std::abs(a.row(pivot)[c])) pivot = r;
    if (a.row(pivot)[c] == 0.0) return 0.0;
    exchanged[c] = pivot;
    if (pivot != c) {
      std::swap_ranges(a.row(c), a.row(c) + width, a.row(pivot));
      sign = -sign;
    }
    for (std::int64_t r = c + 1; r < rows; ++r) {
      double* const row = a.row(r);
      if (row[c] == 0.0) continue;
      row[c] /= a.row(c)[c];
      subtract_multiple(row + c + 1, a.row(c) + c + 1, row[c], width - c - 1);
    }
  }
  return sign;
}

void copy(Matrix from, Matrix to, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) std::copy_n(from.row(r), columns, to.row(r));
}

/// eliminate() of a matrix that is one block.
double eliminate_small(Matrix a, std::int64_t n, Matrix b, std::int64_t k) {
  std::int64_t exchanged[kBlock];
  const double sign = eliminate_columns(a, n, n, exchanged);
  if (sign == 0.0) return 0.0;
  for (std::int64_t c = 0; k > 0 && c < n; ++c)
    if (exchanged[c] != c) std::swap_ranges(b.row(c), b.row(c) + k, b.row(exchanged[c]));
  substitute_forwards<true>(a, n, b, k);
  return sign;
}

/// Makes a [n, n] upper triangular by eliminate_columns(), and does the same to the rows of b [n, k]. Below the
/// diagonal anything is left. Returns the sign of the permutation, 0 for a singular matrix.
double eliminate(Matrix a, std::int64_t n, Matrix b, std::int64_t k) {
  if (n <= kBlock) return eliminate_small(a, n, b, k);
  double sign = 1.0;
  const Tensor panel_space = make_space(n, std::min(n, kBlock)), right_space = make_space(std::min(n, kBlock), n);
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t width = std::min(kBlock, n - begin), below = n - begin - width;
    const Matrix panel{panel_space.data<double>(), width}, right{right_space.data<double>(), below};
    std::int64_t exchanged[kBlock];
    copy(a.at(begin, begin), panel, n - begin, width);
    sign *= eliminate_columns(panel, n - begin, width, exchanged);
    if (sign == 0.0) return 0.0;
    copy(panel, a.at(begin, begin), width, width);
    for (std::int64_t c = 0; c < width; ++c) {
      if (exchanged[c] == c) continue;
      const Matrix behind = a.at(begin, begin + width);
      std::swap_ranges(behind.row(c), behind.row(c) + below, behind.row(exchanged[c]));
      std::swap_ranges(b.row(begin + c), b.row(begin + c) + k, b.row(begin + exchanged[c]));
    }
    if (k > 0) {
      substitute_forwards<true>(panel, width, b.at(begin, 0), k);
      subtract_product(b.at(begin + width, 0), panel.at(width, 0), b.at(begin, 0), below, k, width);
    }
    if (below == 0) break;
    copy(a.at(begin, begin + width), right, width, below);
    substitute_forwards<true>(panel, width, right, below);
    copy(right, a.at(begin, begin + width), width, below);
    subtract_product(a.at(begin + width, begin + width), panel.at(width, 0), right, below, below, width);
  }
  return sign;
}

/// The transposed factor L^T of a positive definite matrix in the upper triangle of a [n, n], in its place: rows of it
/// are columns of L, side by side. False if the matrix is not positive definite.
bool factor_positive(Matrix a, std::int64_t n) {
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, n);
    for (std::int64_t c = begin; c < end; ++c) {
      double* const row = a.row(c);
      if (!(row[c] > 0.0)) return false;
      row[c] = std::sqrt(row[c]);
      divide(row + c + 1, row[c], n - c - 1);
      for (std::int64_t r = c + 1; r < end; ++r) subtract_multiple(a.row(r) + r, row + r, row[r], n - r);
    }
    constexpr std::int64_t kRows = 2 * kBlock;  // of the rest, whose lower triangle is of no use
    for (std::int64_t r = end; r < n; r += kRows)
      subtract_product(a.at(r, r), a.at(begin, r), a.at(begin, r), std::min(kRows, n - r), n - r, end - begin, true);
  }
  return true;
}

/// to [n, n] = the transpose of `from`, tile by tile.
template <typename From, typename To>
void copy_transposed(const From* from, std::int64_t n, To* to) {
  for (std::int64_t top = 0; top < n; top += kBlock)
    for (std::int64_t left = 0; left < n; left += kBlock)
      for (std::int64_t r = top; r < std::min(top + kBlock, n); ++r)
        for (std::int64_t c = left; c < std::min(left + kBlock, n); ++c)
          to[r * n + c] = static_cast<To>(from[c * n + r]);
}

bool is_lower_triangular(const double* a, std::int64_t n) {
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t c = r + 1; c < n; ++c)
      if (a[r * n + c] != 0.0) return false;
  return true;
}
bool is_upper_triangular(const double* a, std::int64_t n) {
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t c = 0; c < r; ++c)
      if (a[r * n + c] != 0.0) return false;
  return true;
}
bool has_zero_on_diagonal(const double* a, std::int64_t n) {
  for (std::int64_t r = 0; r < n; ++r)
    if (a[r * n + r] == 0.0) return true;
  return false;
}

/// The X of a X = b in the place of b [n, k]; a [n, n] is used up. False if a is singular.
bool solve(double* a, std::int64_t n, double* b, std::int64_t k) {
  const Matrix left{a, n}, right{b, k};
  const bool lower = is_lower_triangular(a, n), upper = !lower && is_upper_triangular(a, n);
  if (lower || upper ? has_zero_on_diagonal(a, n) : eliminate(left, n, right, k) == 0.0) return false;
  if (lower)
    substitute_forwards<false>(left, n, right, k);
  else
    substitute_backwards(left, n, right, k);
  return true;
}

}  // namespace

void linalg_solve_cpu(const Tensor& a, const Tensor& b, const Tensor& x, std::int64_t& first_failed) {
  const std::int64_t count = a.size(0), n = a.size(1), k = b.size(2);
  std::atomic<std::int64_t> failed = -1;
  by_dtype(a, [&]<typename T>() {
    const T *from = a.data<T>(), *right = b.data<T>();
    T* const to = x.data<T>();
    for_ranges_of_matrices(count, n, [&](std::int64_t begin, std::int64_t end) {
      const Tensor left_space = make_space(n, n), right_space = make_space(n, k);
      double *const m = left_space.data<double>(), *const v = right_space.data<double>();
      for (std::int64_t i = begin; i < end; ++i) {
        std::copy_n(from + i * n * n, n * n, m);
        std::copy_n(right + i * n * k, n * k, v);
        if (!solve(m, n, v, k)) return note_failure(failed, i);
        std::transform(v, v + n * k, to + i * n * k, [](double value) { return static_cast<T>(value); });
      }
    });
  });
  first_failed = failed;
}

void linalg_slogdet_cpu(const Tensor& a, const Tensor& sign, const Tensor& logabs) {
  const std::int64_t n = a.size(1);
  by_dtype(a, [&]<typename T>() {
    const T* const from = a.data<T>();
    T *const signs = sign.data<T>(), *const logs = logabs.data<T>();
    for_ranges_of_matrices(a.size(0), n, [&](std::int64_t begin, std::int64_t end) {
      const Tensor space = make_space(n, n);
      double* const m = space.data<double>();
      for (std::int64_t i = begin; i < end; ++i) {
        std::copy_n(from + i * n * n, n * n, m);
        double s = eliminate({m, n}, n, {nullptr, 0}, 0),
               log = s == 0.0 ? -std::numeric_limits<double>::infinity() : 0.0;
        for (std::int64_t d = 0; s != 0.0 && d < n; ++d) {
          const double value = m[d * n + d];
          log += math::portable_log(std::abs(value));
          if (value < 0.0) s = -s;
        }
        signs[i] = static_cast<T>(s);
        logs[i] = static_cast<T>(log);
      }
    });
  });
}

// The product of the pivots, whose powers of two are added up apart: it leaves the range of its parts only where the
// determinant does.
void linalg_det_cpu(const Tensor& a, const Tensor& det) {
  const std::int64_t n = a.size(1);
  by_dtype(a, [&]<typename T>() {
    for_ranges_of_matrices(a.size(0), n, [&](std::int64_t begin, std::int64_t end) {
      const Tensor space = make_space(n, n);
      double* const m = space.data<double>();
      for (std::int64_t i = begin; i < end; ++i) {
        std::copy_n(a.data<T>() + i * n * n, n * n, m);
        double product = eliminate({m, n}, n, {nullptr, 0}, 0);
        int exponent = 0;
        for (std::int64_t d = 0; product != 0.0 && d < n; ++d) {
          int of_pivot = 0, of_product = 0;
          const double pivot = std::frexp(m[d * n + d], &of_pivot);
          product = std::frexp(product * pivot, &of_product);
          exponent += of_pivot + of_product;
        }
        det.data<T>()[i] = static_cast<T>(std::ldexp(product, exponent));
      }
    });
  });
}

void linalg_cholesky_cpu(const Tensor& a, const Tensor& l, std::int64_t& first_failed) {
  const std::int64_t n = a.size(1);
  std::atomic<std::int64_t> failed = -1;
  by_dtype(a, [&]<typename T>() {
    const T* const from = a.data<T>();
    T* const to = l.data<T>();
    for_ranges_of_matrices(a.size(0), n, [&](std::int64_t begin, std::int64_t end) {
      const Tensor space = make_space(n, n);
      double* const m = space.data<double>();
      for (std::int64_t i = begin; i < end; ++i) {
        copy_transposed(from + i * n * n, n, m);
        if (!factor_positive({m, n}, n)) return note_failure(failed, i);
        copy_transposed(m, n, to + i * n * n);
        for (std::int64_t r = 0; r < n; ++r) {
          T* const row = to + (i * n + r) * n;
          std::fill(row + r + 1, row + n, T(0));
        }
      }
    });
  });
  first_failed = failed;
}

}  // namespace lockstep::detail
