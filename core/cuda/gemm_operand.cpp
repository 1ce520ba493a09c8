#include "lockstep/core/cuda/gemm_operand.h"

#include <algorithm>
#include <optional>

#include "lockstep/core/copy.h"

namespace lockstep::cuda {
namespace {

// From matrix to matrix, if that is one stride for all leading dimensions together.
std::optional<std::int64_t> batch_stride(const Tensor& t) {
  std::int64_t stride = 0, next = 0;
  bool first = true;
  for (int d = t.dim() - 3; d >= 0; --d) {
    if (t.sizes()[d] == 1) continue;
    if (first)
      stride = t.strides()[d];
    else if (t.strides()[d] != next)
      return {};
    first = false;
    next = t.strides()[d] * t.sizes()[d];
  }
  return stride;
}

std::optional<GemmOperand> as_it_lies(const Tensor& t) {
  if (reinterpret_cast<std::uintptr_t>(t.raw_data()) % kGemmAlignment != 0) return {};
  const auto batch = batch_stride(t);
  if (!batch) return {};
  const int last = t.dim() - 1;
  const std::int64_t rows = t.sizes()[last - 1], columns = t.sizes()[last];
  const std::int64_t row = t.strides()[last - 1], column = t.strides()[last];
  if ((column == 1 || columns == 1) && (row >= columns || rows == 1))
    return GemmOperand{t.raw_data(), false, std::max(rows == 1 ? 1 : row, columns), *batch};
  if ((row == 1 || rows == 1) && (column >= rows || columns == 1))
    return GemmOperand{t.raw_data(), true, std::max(columns == 1 ? 1 : column, rows), *batch};
  return {};
}

}  // namespace

GemmOperand gemm_operand(Tensor& tensor) {
  if (const auto operand = as_it_lies(tensor)) return *operand;
  tensor = copy_contiguous(tensor);
  return *as_it_lies(tensor);
}

}  // namespace lockstep::cuda
