#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "lockstep/autograd/ops/matmul/matmul_kernels.h"
#include "lockstep/autograd/ops/matmul/matmul_small.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/gemm/bfloat16_product.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/profile_flops.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

constexpr std::int64_t kManySmall = 8;  // products

// How gemm() reads the last two dimensions of a tensor.
struct Layout {
  Tensor tensor;  // the operand, or a contiguous copy if neither dimension is dense
  bool transpose = false;
  std::int64_t stride = 0;  // between rows (or columns, if transposed)
};

Layout layout_of(const Tensor& t) {
  const int last = t.dim() - 1;
  const std::int64_t rows = t.sizes()[last - 1], columns = t.sizes()[last];
  const std::int64_t row = t.strides()[last - 1], column = t.strides()[last];
  if ((column == 1 || columns == 1) && (row >= columns || rows == 1)) return {t, false, std::max(row, columns)};
  if ((row == 1 || rows == 1) && (column >= rows || columns == 1)) return {t, true, std::max(column, rows)};
  return {copy_contiguous(t), false, columns};
}

/// Products of a few elements each: along the last dimension of the batch matrices lie evenly, so that no place is
/// worked out for each of them.
template <typename T>
void multiply_small(const Tensor& a, const Tensor& b, const Tensor& out) {
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1), run = out.size(-3),
                     runs = out.numel() / (m * n * run);
  const auto operands = [](const Tensor& t, std::int64_t at) {
    const int last = t.dim() - 1;
    return matmul_small::Operands<T>{t.data<T>() + matrix_offset(t, at), t.strides()[last - 2], t.strides()[last - 1],
                                     t.strides()[last]};
  };
  constexpr std::int64_t kBlock = 8192;  // multiply-adds of a task, about
  const std::int64_t piece = std::min(run, std::max<std::int64_t>(1, kBlock / (m * n * k))),
                     pieces = (run + piece - 1) / piece;
  parallel_for(runs * pieces, std::max<std::int64_t>(1, kBlock / (m * n * k * piece)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t first = i % pieces * piece, at = i / pieces * run + first;
                   matmul_small::multiply(operands(a, at), operands(b, at), m, n, k, std::min(piece, run - first),
                                          out.data<T>() + at * m * n);
                 }
               });
}

// Asks for the lines of a matrix of `rows` rows, as stored.
template <typename T>
void ask_for(const T* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  if (columns == stride) columns *= std::exchange(rows, 1);
  for (std::int64_t i = 0; i < rows; ++i, data += stride)
    for (std::int64_t j = 0; j < columns; j += kLine) __builtin_prefetch(data + j);
}

template <typename T>
void multiply(const Tensor& a, const Tensor& b, const Tensor& out) {
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1), batch = out.numel() / (m * n);
  if (batch >= kManySmall && k > 0 && cpu::kernels() == cpu::Kernels::own && matmul_small::serves(m, n, k))
    return multiply_small<T>(a, b, out);
  const Layout left = layout_of(a), right = layout_of(b);
  // Where the matrices of one product lie.
  struct Operands {
    const T *a, *b;
  };
  const auto operands = [&](std::int64_t i) {
    return Operands{left.tensor.data<T>() + matrix_offset(left.tensor, i),
                    right.tensor.data<T>() + matrix_offset(right.tensor, i)};
  };
  const auto one = [&](std::int64_t i, const Operands& at) {
    cpu::gemm({.m = m,
               .n = n,
               .k = k,
               .a = {at.a, left.stride, left.transpose},
               .b = {at.b, right.stride, right.transpose},
               .out = out.data<T>() + i * m * n,
               .out_stride = n});
  };
  // Few matrices: parallel inside each product. Many: parallel over them. Both give the same bits.
  if (batch < 8) {
    for (std::int64_t i = 0; i < batch; ++i) one(i, operands(i));
    return;
  }
  // A small b that is stored by columns is transposed before anything is computed, and waited for if it is far. The
  // kernel of one row asks for it itself.
  constexpr std::int64_t kSmall = 4096;  // elements of both
  const bool asks = right.transpose && m > 1 && (m + n) * k <= kSmall;
  const std::int64_t block = std::max<std::int64_t>(1, 500000 / (m * n * k));
  parallel_for(batch, block, [&](std::int64_t begin, std::int64_t end) {
    Operands at = operands(begin);
    for (std::int64_t i = begin; i < end; ++i) {
      const Operands next = i + 1 < end ? operands(i + 1) : at;
      if (asks && next.a != at.a) ask_for(next.a, left.transpose ? k : m, left.transpose ? m : k, left.stride);
      if (asks && next.b != at.b) ask_for(next.b, right.transpose ? n : k, right.transpose ? k : n, right.stride);
      one(i, at);
      at = next;
    }
  });
}

/// With the bits of multiply<float>() on the values as float32, rounded.
void multiply_bfloat16(const Tensor& a, const Tensor& b, const Tensor& out) {
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1), batch = out.numel() / (m * n);
  const Layout left = layout_of(a), right = layout_of(b);
  const auto one = [&](std::int64_t i) {
    cpu::multiply_bfloat16(
        {.m = m,
         .n = n,
         .k = k,
         .a = {left.tensor.data<BFloat16>() + matrix_offset(left.tensor, i), left.stride, left.transpose},
         .b = {right.tensor.data<BFloat16>() + matrix_offset(right.tensor, i), right.stride, right.transpose},
         .out = out.data<BFloat16>() + i * m * n,
         .out_stride = n});
  };
  // As for float.
  if (batch < 8) {
    for (std::int64_t i = 0; i < batch; ++i) one(i);
    return;
  }
  parallel_for(batch, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) one(i);
  });
}

/// One row of a product of integers, which wrap around: `x` is the row of a, whose elements are `step` apart, and the
/// rows of y lie side by side.
template <typename Sum, typename T>
void multiply_row(const T* x, std::int64_t step, const T* y, std::int64_t k, std::int64_t n, T* out) {
  if (n == 1) {
    Sum sum = 0;
    for (std::int64_t p = 0; p < k; ++p) sum += static_cast<Sum>(x[p * step]) * static_cast<Sum>(y[p]);
    *out = static_cast<T>(sum);
    return;
  }
  constexpr std::int64_t kColumns = 256;
  for (std::int64_t begin = 0; begin < n; begin += kColumns) {
    const std::int64_t columns = std::min(kColumns, n - begin);
    Sum sums[kColumns] = {};
    const auto add = [&]<int kSteps>(std::int64_t p, std::integral_constant<int, kSteps>) {
      Sum factors[kSteps];
      for (int s = 0; s < kSteps; ++s) factors[s] = static_cast<Sum>(x[(p + s) * step]);
      const T* const row = y + p * n + begin;
      for (std::int64_t j = 0; j < columns; ++j)
        for (int s = 0; s < kSteps; ++s) sums[j] += factors[s] * static_cast<Sum>(row[s * n + j]);
    };
    std::int64_t p = 0;
    for (; p + 4 <= k; p += 4) add(p, std::integral_constant<int, 4>());
    for (; p < k; ++p) add(p, std::integral_constant<int, 1>());
    for (std::int64_t j = 0; j < columns; ++j) out[begin + j] = static_cast<T>(sums[j]);
  }
}

void multiply_integers(const Tensor& a, const Tensor& b, const Tensor& out) {
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1), rows = out.numel() / n;
  const std::int64_t row = a.strides()[a.dim() - 2], step = a.strides()[a.dim() - 1];
  const Tensor right = b.strides()[b.dim() - 2] == n && b.strides()[b.dim() - 1] == 1 ? b : copy_contiguous(b);
  dispatch_integer(out.dtype(), "matmul", [&]<typename T>() {
    using Sum = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    parallel_for(rows, std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, k * n)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const T* const x = a.data<T>() + matrix_offset(a, i / m) + i % m * row;
                     const T* const y = right.data<T>() + matrix_offset(right, i / m);
                     T* const to = out.data<T>() + i * n;
                     cpu::by_widest_vectors([=] { multiply_row<Sum>(x, step, y, k, n, to); });
                   }
                 });
  });
}

}  // namespace

void matmul_cpu(const Tensor& a, const Tensor& b, const Tensor& out) {
  profile::add_multiply_adds(out.numel() * a.size(-1));
  if (!out.is_floating_point()) return multiply_integers(a, b, out);
  if (out.dtype() == kFloat32) return multiply<float>(a, b, out);
  if (out.dtype() == kFloat64) return multiply<double>(a, b, out);
  if (out.dtype() == kBFloat16 && cpu::goes_by_bfloat16_pairs(a.size(-2), b.size(-1), a.size(-1)))
    return multiply_bfloat16(a, b, out);
  const Tensor product = empty(out.sizes());
  multiply<float>(cast_values(a, kFloat32), cast_values(b, kFloat32), product);
  copy_values(product, out);
}

}  // namespace lockstep
