#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops/linalg/linalg_kernels.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::detail {
namespace {

/// f(double or float) for the dtype of `x`.
template <typename F>
void by_dtype(const Tensor& x, F&& f) {
  if (x.dtype() == kFloat64)
    f.template operator()<double>();
  else
    f.template operator()<float>();
}

/// Calls f(i) for each of `count` matrices of n x n, whose blocks of work depend on the sizes alone.
template <typename F>
void for_each_matrix(std::int64_t count, std::int64_t n, F&& f) {
  lockstep::parallel_for(count, 65536 / (n * n * n + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i);
  });
}

/// Keeps the smallest number of a matrix that failed.
void note_failure(std::atomic<std::int64_t>& first, std::int64_t i) {
  std::int64_t seen = first.load();
  while ((seen < 0 || i < seen) && !first.compare_exchange_weak(seen, i)) {
  }
}

/// Eliminates below the diagonal of a [n, n] by rows, the largest element of a column first, and does the same to the
/// rows of b [n, k]. Returns the sign of the permutation, 0 for a singular matrix.
double eliminate(double* a, std::int64_t n, double* b, std::int64_t k) {
  double sign = 1.0;
  for (std::int64_t c = 0; c < n; ++c) {
    std::int64_t pivot = c;
    for (std::int64_t r = c + 1; r < n; ++r)
      if (std::abs(a[r * n + c]) > std::abs(a[pivot * n + c])) pivot = r;
    if (a[pivot * n + c] == 0.0) return 0.0;
    if (pivot != c) {
      std::swap_ranges(a + c * n, a + (c + 1) * n, a + pivot * n);
      std::swap_ranges(b + c * k, b + (c + 1) * k, b + pivot * k);
      sign = -sign;
    }
    for (std::int64_t r = c + 1; r < n; ++r) {
      const double factor = a[r * n + c] / a[c * n + c];
      if (factor == 0.0) continue;
      for (std::int64_t j = c + 1; j < n; ++j) a[r * n + j] -= factor * a[c * n + j];
      for (std::int64_t j = 0; j < k; ++j) b[r * k + j] -= factor * b[c * k + j];
    }
  }
  return sign;
}

/// to[j] -= factor * from[j].
void subtract_multiple(double* to, const double* from, double factor, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) to[j] -= factor * from[j];
}

/// The X of a X = b in the place of b [n, k], for the upper triangle of a. Row by row, so that neighbours of a row are
/// computed side by side; each element subtracts in the order of the columns of a.
void substitute_backwards(const double* a, std::int64_t n, double* b, std::int64_t k) {
  for (std::int64_t r = n - 1; r >= 0; --r) {
    for (std::int64_t c = r + 1; c < n; ++c) subtract_multiple(b + r * k, b + c * k, a[r * n + c], k);
    for (std::int64_t j = 0; j < k; ++j) b[r * k + j] /= a[r * n + r];
  }
}

/// The same for the lower triangle. False if it is singular.
bool substitute_forwards(const double* a, std::int64_t n, double* b, std::int64_t k) {
  for (std::int64_t r = 0; r < n; ++r) {
    if (a[r * n + r] == 0.0) return false;
    for (std::int64_t c = 0; c < r; ++c) subtract_multiple(b + r * k, b + c * k, a[r * n + c], k);
    for (std::int64_t j = 0; j < k; ++j) b[r * k + j] /= a[r * n + r];
  }
  return true;
}

bool is_lower_triangular(const double* a, std::int64_t n) {
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t c = r + 1; c < n; ++c)
      if (a[r * n + c] != 0.0) return false;
  return true;
}

}  // namespace

void linalg_solve_cpu(const Tensor& a, const Tensor& b, const Tensor& x, std::int64_t& first_failed) {
  const std::int64_t count = a.size(0), n = a.size(1), k = b.size(2);
  std::atomic<std::int64_t> failed = -1;
  by_dtype(a, [&]<typename T>() {
    for_each_matrix(count, n, [&](std::int64_t i) {
      const T *from = a.data<T>() + i * n * n, *right = b.data<T>() + i * n * k;
      std::vector<double> m(from, from + n * n), v(right, right + n * k);
      if (is_lower_triangular(m.data(), n)) {
        if (!substitute_forwards(m.data(), n, v.data(), k)) return note_failure(failed, i);
      } else {
        if (eliminate(m.data(), n, v.data(), k) == 0.0) return note_failure(failed, i);
        substitute_backwards(m.data(), n, v.data(), k);
      }
      T* to = x.data<T>() + i * n * k;
      for (std::int64_t j = 0; j < n * k; ++j) to[j] = static_cast<T>(v[static_cast<std::size_t>(j)]);
    });
  });
  first_failed = failed;
}

void linalg_slogdet_cpu(const Tensor& a, const Tensor& sign, const Tensor& logabs) {
  const std::int64_t n = a.size(1);
  by_dtype(a, [&]<typename T>() {
    for_each_matrix(a.size(0), n, [&](std::int64_t i) {
      const T* from = a.data<T>() + i * n * n;
      std::vector<double> m(from, from + n * n);
      double s = eliminate(m.data(), n, nullptr, 0), log = s == 0.0 ? -std::numeric_limits<double>::infinity() : 0.0;
      for (std::int64_t d = 0; s != 0.0 && d < n; ++d) {
        const double value = m[static_cast<std::size_t>(d * n + d)];
        log += math::portable_log(std::abs(value));
        if (value < 0.0) s = -s;
      }
      sign.data<T>()[i] = static_cast<T>(s);
      logabs.data<T>()[i] = static_cast<T>(log);
    });
  });
}

void linalg_cholesky_cpu(const Tensor& a, const Tensor& l, std::int64_t& first_failed) {
  const std::int64_t n = a.size(1);
  std::atomic<std::int64_t> failed = -1;
  by_dtype(a, [&]<typename T>() {
    for_each_matrix(a.size(0), n, [&](std::int64_t i) {
      const T* from = a.data<T>() + i * n * n;
      T* to = l.data<T>() + i * n * n;
      std::vector<double> m(static_cast<std::size_t>(n * n));  // L^T: its rows are the columns of L, side by side
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t c = 0; c <= r; ++c)
          m[static_cast<std::size_t>(c * n + r)] = static_cast<double>(from[r * n + c]);
      for (std::int64_t c = 0; c < n; ++c) {
        double* const row = m.data() + c * n;
        if (!(row[c] > 0.0)) return note_failure(failed, i);
        row[c] = std::sqrt(row[c]);
        for (std::int64_t r = c + 1; r < n; ++r) row[r] /= row[c];
        for (std::int64_t r = c + 1; r < n; ++r) subtract_multiple(m.data() + r * n + r, row + r, row[r], n - r);
      }
      for (std::int64_t r = 0; r < n; ++r)
        for (std::int64_t c = 0; c < n; ++c)
          to[r * n + c] = c > r ? T(0) : static_cast<T>(m[static_cast<std::size_t>(c * n + r)]);
    });
  });
  first_failed = failed;
}

}  // namespace lockstep::detail
