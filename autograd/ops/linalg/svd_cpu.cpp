// One-sided rotations (Hestenes: Inversion of matrices by biorthogonalization, 1958; Demmel, Veselic: Jacobi's method
// is more accurate than QR, 1992): pairs of columns are rotated until all are orthogonal. Their lengths are the
// singular values.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops/linalg/linalg_kernels.h"
#include "lockstep/autograd/ops/linalg/linalg_loops.h"

namespace lockstep::detail {
namespace {

/// Rows of doubles, one behind the other.
struct Rows {
  std::int64_t count, length;
  std::vector<double> values;

  Rows(std::int64_t rows, std::int64_t columns)
      : count(rows), length(columns), values(static_cast<std::size_t>(rows * columns), 0.0) {}
  double* row(std::int64_t i) { return values.data() + i * length; }
};

/// In a fixed number of lanes, which the compiler may keep in a vector.
double dot(const double* a, const double* b, std::int64_t count) {
  constexpr std::int64_t kLanes = 8;
  double sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  double sum = 0.0;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (const double part : sums) sum += part;
  return sum;
}

void rotate(double* a, double* b, double cosine, double sine, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = a[i], y = b[i];
    a[i] = cosine * x - sine * y;
    b[i] = sine * x + cosine * y;
  }
}

/// Makes the rows of `left` orthogonal, and does the same to those of `right`.
void make_orthogonal(Rows& left, Rows& right) {
  constexpr int kMaxSweeps = 60;  // about eight are needed
  const double enough = std::numeric_limits<double>::epsilon();
  bool rotated = true;
  for (int sweep = 0; rotated && sweep < kMaxSweeps; ++sweep) {
    rotated = false;
    for (std::int64_t p = 0; p < left.count; ++p)
      for (std::int64_t q = p + 1; q < left.count; ++q) {
        const double product = dot(left.row(p), left.row(q), left.length);
        const double of_p = dot(left.row(p), left.row(p), left.length);
        const double of_q = dot(left.row(q), left.row(q), left.length);
        if (!(std::abs(product) > enough * std::sqrt(of_p) * std::sqrt(of_q))) continue;
        rotated = true;
        const double half = (of_q - of_p) / (2.0 * product);
        const double tangent = std::copysign(1.0, half) / (std::abs(half) + std::sqrt(1.0 + half * half));
        const double cosine = 1.0 / std::sqrt(1.0 + tangent * tangent), sine = cosine * tangent;
        rotate(left.row(p), left.row(q), cosine, sine, left.length);
        rotate(right.row(p), right.row(q), cosine, sine, right.length);
      }
  }
}

/// x - scale (v x) v.
void reflect(double* x, const double* v, double scale, std::int64_t count) {
  const double along = scale * dot(x, v, count);
  for (std::int64_t i = 0; i < count; ++i) x[i] -= along * v[i];
}

/// Fills the rows behind the first `known`, which are orthonormal, so that all are: Householder's reflections that take
/// the known rows to the first axes take the other axes to them (Golub, Van Loan: Matrix Computations, section 5.2).
void complete(Rows& rows, std::int64_t known) {
  if (known == rows.count) return;
  Rows turned(known, rows.length);  // row i, once it is reflected, from element i
  std::copy_n(rows.row(0), known * rows.length, turned.row(0));
  std::vector<double> scales;
  for (std::int64_t i = 0; i < known; ++i) {
    double* const v = turned.row(i) + i;
    const std::int64_t count = rows.length - i;
    v[0] += std::copysign(std::sqrt(dot(v, v, count)), v[0]);
    scales.push_back(2.0 / dot(v, v, count));
    for (std::int64_t j = i + 1; j < known; ++j) reflect(turned.row(j) + i, v, scales.back(), count);
  }
  for (std::int64_t axis = known; axis < rows.count; ++axis) {
    double* const row = rows.row(axis);
    row[axis] = 1.0;
    for (std::int64_t i = known - 1; i >= 0; --i)
      reflect(row + i, turned.row(i) + i, scales[static_cast<std::size_t>(i)], rows.length - i);
  }
}

struct Factors {
  Rows left, right;            ///< rows: the singular vectors, of length 1
  std::vector<double> values;  ///< falling
};

/// Of the matrix whose columns are the rows of `columns`, which are no longer than many. Numbers near 1.
Factors factors_of(Rows columns) {
  const std::int64_t count = columns.count;
  Rows right(count, count);
  for (std::int64_t i = 0; i < count; ++i) right.row(i)[i] = 1.0;
  make_orthogonal(columns, right);
  std::vector<double> lengths;
  for (std::int64_t i = 0; i < count; ++i)
    lengths.push_back(std::sqrt(dot(columns.row(i), columns.row(i), columns.length)));
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return lengths[static_cast<std::size_t>(a)] > lengths[static_cast<std::size_t>(b)];
  });
  Factors out{Rows(count, columns.length), Rows(count, count), {}};
  // What is below is rounding: its direction says nothing, and need not be orthogonal to the others. So is, beside
  // numbers near 1, what is so short that squares and products vanish.
  using Limits = std::numeric_limits<double>;
  const double most = count == 0 ? 0.0 : lengths[static_cast<std::size_t>(order[0])];
  const double least = std::max(most * Limits::min(), std::sqrt(Limits::min())) / Limits::epsilon();
  std::int64_t known = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t from = order[static_cast<std::size_t>(i)];
    const double size = lengths[static_cast<std::size_t>(from)];
    out.values.push_back(size);
    std::copy_n(right.row(from), count, out.right.row(i));
    if (!(size > least)) continue;
    std::transform(columns.row(from), columns.row(from) + columns.length, out.left.row(i),
                   [size](double value) { return value / size; });
    ++known;  // sizes fall, so these are the first
  }
  complete(out.left, known);
  return out;
}

}  // namespace

void linalg_svd_cpu(const Tensor& a, const Tensor& u, const Tensor& s, const Tensor& vh, std::int64_t& first_failed) {
  const std::int64_t m = a.size(1), n = a.size(2), k = std::min(m, n);
  const bool wide = n > m;  // then the transpose is computed
  std::atomic<std::int64_t> failed = -1;
  by_dtype(a, [&]<typename T>() {
    for_each_matrix(a.size(0), 4 * std::max(m, n), [&](std::int64_t i) {
      const T* from = a.data<T>() + i * m * n;
      double largest = 0.0;
      for (std::int64_t j = 0; j < m * n; ++j) {
        if (!std::isfinite(from[j])) return note_failure(failed, i);
        largest = std::max(largest, std::abs(static_cast<double>(from[j])));
      }
      const int exponent = largest == 0.0 ? 0 : std::ilogb(largest);
      Rows columns(k, std::max(m, n));
      for (std::int64_t r = 0; r < m; ++r)
        for (std::int64_t c = 0; c < n; ++c)
          columns.row(wide ? r : c)[wide ? c : r] = std::ldexp(static_cast<double>(from[r * n + c]), -exponent);
      Factors factors = factors_of(std::move(columns));
      Rows& of_rows = wide ? factors.right : factors.left;     // [k, m]
      Rows& of_columns = wide ? factors.left : factors.right;  // [k, n]
      for (std::int64_t j = 0; j < k; ++j) {
        s.data<T>()[i * k + j] = static_cast<T>(std::ldexp(factors.values[static_cast<std::size_t>(j)], exponent));
        for (std::int64_t r = 0; r < m; ++r) u.data<T>()[(i * m + r) * k + j] = static_cast<T>(of_rows.row(j)[r]);
        for (std::int64_t c = 0; c < n; ++c) vh.data<T>()[(i * k + j) * n + c] = static_cast<T>(of_columns.row(j)[c]);
      }
    });
  });
  first_failed = failed;
}

}  // namespace lockstep::detail
