#include <cmath>
#include <ostream>
#include <type_traits>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/tensor.h"

namespace lockstep {
namespace {

constexpr std::int64_t kShown = 8;

template <typename T>
void print_values(std::ostream& out, const T* values, const Shape& sizes, const Shape& strides, int dim) {
  if (dim == sizes.dim()) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(*values))
        out << "nan";  // whatever its sign
      else
        out << fmt::format("{:.6g}", *values);
    } else {
      out << *values;
    }
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

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  return out << to_string(shape);
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << name(dtype);
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << "Tensor(undefined)";
  out << fmt::format("Tensor({}, {}, {}) ", to_string(tensor.sizes()), name(tensor.dtype()),
                     to_string(tensor.device()));
  if (tensor.numel() == 0) return out << "[]";
  const LibraryAccess access;
  const DType wide = tensor.is_floating_point() ? kFloat64 : kInt64;
  const Tensor host = as_contiguous(cast_values(move_values(tensor.detach(), Device(kCPU)), wide));
  if (wide == kFloat64) {
    print_values(out, host.data<double>(), host.sizes(), host.strides(), 0);
  } else {
    print_values(out, host.data<std::int64_t>(), host.sizes(), host.strides(), 0);
  }
  return out;
}

}  // namespace lockstep
