#include <algorithm>

#include "lockstep/autograd/ops/matmul/matmul_kernels.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/profile_flops.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

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

std::int64_t matrix_offset(const Tensor& t, std::int64_t index) {
  std::int64_t offset = 0;
  for (int d = t.dim() - 3; d >= 0; --d) {
    offset += index % t.sizes()[d] * t.strides()[d];
    index /= t.sizes()[d];
  }
  return offset;
}

template <typename T>
void multiply(const Tensor& a, const Tensor& b, const Tensor& out) {
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1), batch = out.numel() / (m * n);
  const Layout left = layout_of(a), right = layout_of(b);
  const auto one = [&](std::int64_t i) {
    cpu::gemm({.m = m,
               .n = n,
               .k = k,
               .a = {left.tensor.data<T>() + matrix_offset(left.tensor, i), left.stride, left.transpose},
               .b = {right.tensor.data<T>() + matrix_offset(right.tensor, i), right.stride, right.transpose},
               .out = out.data<T>() + i * m * n,
               .out_stride = n});
  };
  // Few matrices: parallel inside each product. Many: parallel over them. Both give the same bits.
  if (batch < 8) {
    for (std::int64_t i = 0; i < batch; ++i) one(i);
  } else {
    const std::int64_t block = std::max<std::int64_t>(1, 500000 / (m * n * k));
    parallel_for(batch, block, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) one(i);
    });
  }
}

}  // namespace

void matmul_cpu(const Tensor& a, const Tensor& b, const Tensor& out) {
  profile::add_multiply_adds(out.numel() * a.size(-1));
  if (!out.is_floating_point()) return matmul_reference(a, b, out);
  if (out.dtype() == kFloat32) return multiply<float>(a, b, out);
  if (out.dtype() == kFloat64) return multiply<double>(a, b, out);
  const Tensor product = empty(out.sizes());
  multiply<float>(cast_values(a, kFloat32), cast_values(b, kFloat32), product);
  copy_values(product, out);
}

}  // namespace lockstep
