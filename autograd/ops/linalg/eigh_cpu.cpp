// Householder's reduction to three diagonals (Golub, Van Loan: Matrix Computations, 4th edition, section 8.3.1), then
// implicit QL steps with Wilkinson's shift (Dubrulle, Martin, Wilkinson: The implicit QL algorithm, 1968).

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

double length(double a, double b) {
  const double x = std::abs(a), y = std::abs(b), large = std::max(x, y), small = std::min(x, y);
  if (large == 0.0) return 0.0;
  const double ratio = small / large;
  return large * std::sqrt(1.0 + ratio * ratio);
}

/// A symmetric matrix as q t q^T, with t of three diagonals.
struct Tridiagonal {
  std::int64_t n;
  std::vector<double> diagonal, beside;  ///< beside[i] couples i and i + 1
  std::vector<double> vectors;           ///< q^T: row i is what element i of the diagonal belongs to

  double* vector(std::int64_t i) { return vectors.data() + i * n; }

  /// a [n, n] is used up.
  Tridiagonal(std::vector<double> a, std::int64_t size)
      : n(size),
        diagonal(static_cast<std::size_t>(n)),
        beside(static_cast<std::size_t>(n), 0.0),
        vectors(static_cast<std::size_t>(n * n), 0.0) {
    std::vector<std::vector<double>> reflections;
    std::vector<double> product(static_cast<std::size_t>(n));
    const auto at = [&](std::int64_t row) { return a.data() + row * n; };
    for (std::int64_t c = 0; c + 1 < n; ++c) {
      std::vector<double> v(static_cast<std::size_t>(n), 0.0);
      beside[static_cast<std::size_t>(c)] = reflection(a, c, v);
      const std::int64_t first = c + 1;
      // The rest becomes a - v w^T - w v^T, for w = a v - (v . a v / 2) v; v . v is 2 or 0.
      std::fill(product.begin(), product.end(), 0.0);
      for (std::int64_t r = first; r < n; ++r)
        for (std::int64_t j = first; j < n; ++j)
          product[static_cast<std::size_t>(j)] += v[static_cast<std::size_t>(r)] * at(r)[j];
      double along = 0.0;
      for (std::int64_t j = first; j < n; ++j)
        along += v[static_cast<std::size_t>(j)] * product[static_cast<std::size_t>(j)];
      for (std::int64_t j = first; j < n; ++j)
        product[static_cast<std::size_t>(j)] -= along / 2.0 * v[static_cast<std::size_t>(j)];
      for (std::int64_t r = first; r < n; ++r) {
        const double left = v[static_cast<std::size_t>(r)], right = product[static_cast<std::size_t>(r)];
        for (std::int64_t j = first; j < n; ++j)
          at(r)[j] -= left * product[static_cast<std::size_t>(j)] + right * v[static_cast<std::size_t>(j)];
      }
      reflections.push_back(std::move(v));
    }
    for (std::int64_t i = 0; i < n; ++i) diagonal[static_cast<std::size_t>(i)] = at(i)[i], vector(i)[i] = 1.0;
    // q is the reflections one behind the other; of q^T, each changes all rows by their part along v.
    for (auto v = reflections.rbegin(); v != reflections.rend(); ++v)
      for (std::int64_t r = 0; r < n; ++r) {
        double along = 0.0;
        for (std::int64_t j = 0; j < n; ++j) along += (*v)[static_cast<std::size_t>(j)] * vector(r)[j];
        for (std::int64_t j = 0; j < n; ++j) vector(r)[j] -= along * (*v)[static_cast<std::size_t>(j)];
      }
  }

  /// Makes `beside` zero, and the diagonal eigenvalues. False if that does not end.
  bool diagonalise() {
    constexpr int kMaxSteps = 60;  // for an eigenvalue, which takes two on average
    for (std::int64_t low = 0; low < n; ++low)
      for (int steps = 0;; ++steps) {
        const std::int64_t high = end_of_block(low);
        if (high == low) break;
        if (steps == kMaxSteps) return false;
        chase(low, high);
      }
    return true;
  }

 private:
  /// v with (I - v v^T) a taking column c below its diagonal to a multiple of the first unit vector, which is returned.
  double reflection(const std::vector<double>& a, std::int64_t c, std::vector<double>& v) const {
    const std::int64_t first = c + 1;
    const auto at = [&](std::int64_t row) { return a[static_cast<std::size_t>(row * n + c)]; };
    double rest = 0.0, largest = 0.0;
    for (std::int64_t r = first; r < n; ++r) largest = std::max(largest, std::abs(at(r)));
    for (std::int64_t r = first + 1; r < n; ++r) rest = std::max(rest, std::abs(at(r)));
    if (rest == 0.0) return at(first);
    double squares = 0.0;
    for (std::int64_t r = first; r < n; ++r) squares += at(r) / largest * (at(r) / largest);
    const double onto = std::copysign(largest * std::sqrt(squares), -at(first));
    // v is u / sqrt(|u|^2 / 2) for u, the column less what it becomes.
    const double head = at(first) / largest - onto / largest;
    const double scale = std::sqrt((squares - at(first) / largest * (at(first) / largest) + head * head) / 2.0);
    v[static_cast<std::size_t>(first)] = head / scale;
    for (std::int64_t r = first + 1; r < n; ++r) v[static_cast<std::size_t>(r)] = at(r) / largest / scale;
    return onto;
  }

  /// The last of those that `low` is coupled with.
  std::int64_t end_of_block(std::int64_t low) {
    for (std::int64_t i = low; i + 1 < n; ++i) {
      const auto k = static_cast<std::size_t>(i);
      const double around = std::abs(diagonal[k]) + std::abs(diagonal[k + 1]);
      if (std::abs(beside[k]) > std::numeric_limits<double>::epsilon() * around) continue;
      beside[k] = 0.0;
      return i;
    }
    return n - 1;
  }

  /// One QL step over a block: a rotation at its end makes an element too many, which others move to its beginning.
  void chase(std::int64_t low, std::int64_t high) {
    const auto l = static_cast<std::size_t>(low), h = static_cast<std::size_t>(high);
    const double half = (diagonal[l + 1] - diagonal[l]) / (2.0 * beside[l]);
    double g = diagonal[h] - diagonal[l] + beside[l] / (half + std::copysign(length(half, 1.0), half));
    double sine = 1.0, cosine = 1.0, shift = 0.0;
    for (std::int64_t i = high - 1; i >= low; --i) {
      const auto k = static_cast<std::size_t>(i);
      const double f = sine * beside[k], b = cosine * beside[k], r = length(f, g);
      beside[k + 1] = r;
      if (r == 0.0) {  // the block comes apart here
        diagonal[k + 1] -= shift;
        beside[h] = 0.0;
        return;
      }
      sine = f / r, cosine = g / r;
      g = diagonal[k + 1] - shift;
      const double t = (diagonal[k] - g) * sine + 2.0 * cosine * b;
      shift = sine * t;
      diagonal[k + 1] = g + shift;
      g = cosine * t - b;
      rotate(vector(i), vector(i + 1), cosine, sine);
    }
    diagonal[l] -= shift;
    beside[l] = g;
    beside[h] = 0.0;
  }

  void rotate(double* a, double* b, double cosine, double sine) const {
    for (std::int64_t j = 0; j < n; ++j) {
      const double x = a[j], y = b[j];
      a[j] = cosine * x - sine * y;
      b[j] = sine * x + cosine * y;
    }
  }
};

template <typename T>
std::vector<double> both_triangles(const T* a, std::int64_t n, bool upper) {
  std::vector<double> full(static_cast<std::size_t>(n * n));
  for (std::int64_t r = 0; r < n; ++r)
    for (std::int64_t c = 0; c <= r; ++c)
      full[static_cast<std::size_t>(r * n + c)] = full[static_cast<std::size_t>(c * n + r)] =
          static_cast<double>(upper ? a[c * n + r] : a[r * n + c]);
  return full;
}

}  // namespace

void linalg_eigh_cpu(const Tensor& a, bool upper, const Tensor& values, const Tensor& vectors,
                     std::int64_t& first_failed) {
  const std::int64_t n = a.size(1);
  std::atomic<std::int64_t> failed = -1;
  by_dtype(a, [&]<typename T>() {
    for_each_matrix(a.size(0), 2 * n, [&](std::int64_t i) {
      std::vector<double> full = both_triangles(a.data<T>() + i * n * n, n, upper);
      double largest = 0.0;
      for (const double value : full) {
        if (!std::isfinite(value)) return note_failure(failed, i);
        largest = std::max(largest, std::abs(value));
      }
      // Of numbers near 1 products neither overflow nor vanish.
      const int exponent = largest == 0.0 ? 0 : std::ilogb(largest);
      for (double& value : full) value = std::ldexp(value, -exponent);
      Tridiagonal t(std::move(full), n);
      if (!t.diagonalise()) return note_failure(failed, i);
      std::vector<std::int64_t> order(static_cast<std::size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t x, std::int64_t y) {
        return t.diagonal[static_cast<std::size_t>(x)] < t.diagonal[static_cast<std::size_t>(y)];
      });
      for (std::int64_t c = 0; c < n; ++c) {
        const std::int64_t from = order[static_cast<std::size_t>(c)];
        values.data<T>()[i * n + c] = static_cast<T>(std::ldexp(t.diagonal[static_cast<std::size_t>(from)], exponent));
        for (std::int64_t r = 0; r < n; ++r) vectors.data<T>()[(i * n + r) * n + c] = static_cast<T>(t.vector(from)[r]);
      }
    });
  });
  first_failed = failed;
}

}  // namespace lockstep::detail
