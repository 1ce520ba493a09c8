// Golub, Van Loan: Matrix Computations, 4th edition, sections 5.1 and 5.2.

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/autograd/ops/linalg/linalg_kernels.h"
#include "lockstep/autograd/ops/linalg/linalg_loops.h"

namespace lockstep::detail {
namespace {

/// I - scale v v^T, which takes a column to a multiple of the first unit vector. v[0] is 1.
struct Reflection {
  std::vector<double> v;
  double scale = 0.0;

  /// For the column of a [rows, width] that begins at `column`; `onto` receives what remains of it, with a sign that
  /// cancels nothing.
  Reflection(const double* column, std::int64_t rows, std::int64_t width, double& onto)
      : v(static_cast<std::size_t>(rows), 0.0) {
    v[0] = 1.0;
    onto = column[0];
    double largest = 0.0;
    for (std::int64_t i = 1; i < rows; ++i) largest = std::max(largest, std::abs(column[i * width]));
    if (!(largest > 0.0)) return;
    largest = std::max(largest, std::abs(column[0]));
    double squares = 0.0;
    for (std::int64_t i = 0; i < rows; ++i) squares += column[i * width] / largest * (column[i * width] / largest);
    onto = std::copysign(largest * std::sqrt(squares), -column[0]);
    scale = (onto - column[0]) / onto;
    for (std::int64_t i = 1; i < rows; ++i) v[static_cast<std::size_t>(i)] = column[i * width] / (column[0] - onto);
  }

  /// Reflects the columns of a [v.size(), columns], whose rows lie `width` apart.
  void apply(double* a, std::int64_t columns, std::int64_t width, std::vector<double>& sums) const {
    if (scale == 0.0) return;
    std::fill_n(sums.begin(), columns, 0.0);
    for (std::size_t i = 0; i < v.size(); ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        sums[static_cast<std::size_t>(j)] += v[i] * a[static_cast<std::int64_t>(i) * width + j];
    for (std::size_t i = 0; i < v.size(); ++i) {
      const double factor = scale * v[i];
      for (std::int64_t j = 0; j < columns; ++j)
        a[static_cast<std::int64_t>(i) * width + j] -= factor * sums[static_cast<std::size_t>(j)];
    }
  }
};

template <typename T>
void round_to(const std::vector<double>& from, T* to, std::int64_t count) {
  std::transform(from.begin(), from.begin() + count, to, [](double value) { return static_cast<T>(value); });
}

}  // namespace

void linalg_qr_cpu(const Tensor& a, const Tensor& q, const Tensor& r) {
  const std::int64_t m = a.size(1), n = a.size(2), k = r.size(1), steps = std::min(m, n);
  by_dtype(a, [&]<typename T>() {
    for_each_matrix(a.size(0), std::max(m, n), [&](std::int64_t i) {
      const T* from = a.data<T>() + i * m * n;
      std::vector<double> left(from, from + m * n), sums(static_cast<std::size_t>(std::max(n, k)));
      std::vector<Reflection> reflections;
      for (std::int64_t j = 0; j < steps; ++j) {
        double* const at = left.data() + j * n + j;
        double onto;
        const Reflection& reflection = reflections.emplace_back(at, m - j, n, onto);
        reflection.apply(at + 1, n - j - 1, n, sums);
        at[0] = onto;
        for (std::int64_t row = 1; row < m - j; ++row) at[row * n] = 0.0;
      }
      round_to(left, r.data<T>() + i * k * n, k * n);
      if (!q.defined()) return;
      std::vector<double> right(static_cast<std::size_t>(m * k), 0.0);
      for (std::int64_t j = 0; j < k; ++j) right[static_cast<std::size_t>(j * k + j)] = 1.0;
      for (std::int64_t j = steps - 1; j >= 0; --j)
        reflections[static_cast<std::size_t>(j)].apply(right.data() + j * k + j, k - j, k, sums);
      round_to(right, q.data<T>() + i * m * k, m * k);
    });
  });
}

}  // namespace lockstep::detail
