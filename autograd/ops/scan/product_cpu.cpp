#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/ops/scan/scan_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSegment = 65536;  // factors of a long row that are one task
constexpr std::int64_t kColumns = 64;     // neighbouring columns that are gone through together

/// What factors of T are multiplied in: doubles, or integers that wrap around.
template <typename T>
using Product = std::conditional_t<std::is_integral_v<T>, std::uint64_t, double>;

template <typename T>
Product<T> factor(T value) {
  return static_cast<Product<T>>(static_cast<compute_t<T>>(value));
}

/// Of neighbours, in interleaved lanes: one chain of products would wait for each.
template <typename T>
Product<T> product_of(const T* x, std::int64_t count) {
  constexpr int kLanes = 16;
  using P = Product<T>;
  P p[kLanes];
  for (P& lane : p) lane = 1;
  const std::int64_t whole = count / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) p[lane] *= factor(x[i + lane]);
  P rest = 1;
  for (std::int64_t i = whole; i < count; ++i) rest *= factor(x[i]);
  // Written out, so that the lanes stay in registers.
  const P even = ((p[0] * p[8]) * (p[4] * p[12])) * ((p[2] * p[10]) * (p[6] * p[14]));
  const P odd = ((p[1] * p[9]) * (p[5] * p[13])) * ((p[3] * p[11]) * (p[7] * p[15]));
  return rest * (even * odd);
}

/// Lanes may leave the range of double where the product of all does not; then it is taken in order.
template <typename T>
T finished(Product<T> product, const T* x, std::int64_t count, std::int64_t step) {
  if constexpr (!std::is_integral_v<T>)
    if (!std::isfinite(product)) {
      product = 1;
      for (std::int64_t i = 0; i < count; ++i) product *= factor(x[i * step]);
    }
  return static_cast<T>(static_cast<compute_t<T>>(product));
}

template <typename T>
void products_of_rows(const T* x, T* out, std::int64_t rows, std::int64_t length) {
  const std::int64_t segments = (length + kSegment - 1) / kSegment;
  std::vector<Product<T>> partial(static_cast<std::size_t>(rows * segments));
  parallel_for(rows * segments, std::max<std::int64_t>(1, cpu::kElementBlock / std::min(length, kSegment)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t first = i % segments * kSegment;
                   partial[static_cast<std::size_t>(i)] =
                       product_of(x + i / segments * length + first, std::min(kSegment, length - first));
                 }
               });
  for (std::int64_t row = 0; row < rows; ++row) {
    Product<T> product = partial[static_cast<std::size_t>(row * segments)];
    for (std::int64_t s = 1; s < segments; ++s) product *= partial[static_cast<std::size_t>(row * segments + s)];
    out[row] = finished(product, x + row * length, length, 1);
  }
}

template <typename T>
void products_of_columns(const T* x, T* out, std::int64_t outer, std::int64_t length, std::int64_t inner) {
  const std::int64_t strips = (inner + kColumns - 1) / kColumns;
  const std::int64_t elements = length * std::min(inner, kColumns);
  parallel_for(outer * strips, std::max<std::int64_t>(1, cpu::kElementBlock / elements),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t item = begin; item < end; ++item) {
                   const std::int64_t column = item % strips * kColumns, width = std::min(kColumns, inner - column);
                   const T* from = x + item / strips * length * inner + column;
                   T* to = out + item / strips * inner + column;
                   std::array<Product<T>, kColumns> products;
                   products.fill(1);
                   for (std::int64_t i = 0; i < length; ++i) {
                     LOCKSTEP_VECTORIZE
                     for (std::int64_t j = 0; j < width; ++j)
                       products[static_cast<std::size_t>(j)] *= factor(from[i * inner + j]);
                   }
                   for (std::int64_t j = 0; j < width; ++j)
                     to[j] = finished(products[static_cast<std::size_t>(j)], from + j, length, inner);
                 }
               });
}

template <typename T>
void products(const Tensor& x, const Tensor& out) {
  const std::int64_t outer = x.size(0), length = x.size(1), inner = x.size(2);
  if (inner == 1) return products_of_rows(x.data<T>(), out.data<T>(), outer, length);
  products_of_columns(x.data<T>(), out.data<T>(), outer, length, inner);
}

}  // namespace

void product_cpu(const Tensor& x, const Tensor& out) {
  if (x.dtype() == kInt64) return products<std::int64_t>(x, out);
  dispatch_floating(x.dtype(), "prod", [&]<typename T>() { products<T>(x, out); });
}

}  // namespace lockstep
