#include <ostream>

#include "core/check.h"
#include "core/copy.h"
#include "core/tensor.h"

namespace lockstep {
namespace {

constexpr std::int64_t kShown = 8;

void print_values(std::ostream& out, const double* values, const Shape& sizes, const Shape& strides, int dim) {
  if (dim == sizes.dim()) {
    out << fmt::format("{:.6g}", *values);
    return;
  }
  out << '[';
  for (std::int64_t i = 0; i < sizes[dim]; ++i) {
    if (i == kShown) {
      out << ", ...";
      break;
    }
    if (i) out << ", ";
    print_values(out, values + i * strides[dim], sizes, strides, dim + 1);
  }
  out << ']';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << "Tensor(undefined)";
  out << fmt::format("Tensor({}, {}, {}) ", to_string(tensor.sizes()), name(tensor.dtype()),
                     to_string(tensor.device()));
  const Tensor host = as_contiguous(cast_values(move_values(tensor.detach(), Device(kCPU)), kFloat64));
  if (host.numel() == 0) return out << "[]";
  print_values(out, host.data<double>(), host.sizes(), host.strides(), 0);
  return out;
}

}  // namespace lockstep
