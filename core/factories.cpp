#include "lockstep/core/factories.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/dtype.h"

namespace lockstep {
namespace {

std::int64_t checked_numel(const Shape& sizes, const char* op) {
  std::int64_t numel = 1;
  for (std::int64_t size : sizes) {
    LOCKSTEP_CHECK(size >= 0, "[{}] negative size in {}", op, to_string(sizes));
    LOCKSTEP_CHECK(!__builtin_mul_overflow(numel, size, &numel) && numel < (std::int64_t{1} << 58),
                   "[{}] shape {} has too many elements", op, to_string(sizes));
  }
  return numel;
}

Tensor make_tensor(StoragePtr storage, const Shape& sizes, std::int64_t numel, DType dtype) {
  auto impl = make_intrusive<TensorImpl>();
  impl->storage = std::move(storage);
  impl->sizes = sizes;
  impl->strides = contiguous_strides(sizes);
  impl->numel = numel;
  impl->dtype = dtype;
  return Tensor(std::move(impl));
}

bool are_whole(Scalar a, Scalar b, Scalar c) {
  return !a.is_floating_point() && !b.is_floating_point() && !c.is_floating_point();
}

}  // namespace

TensorOptions options_of(const Tensor& tensor) {
  return {.dtype = tensor.dtype(), .device = tensor.device()};
}

Tensor empty(const Shape& sizes, TensorOptions options) {
  const std::int64_t numel = checked_numel(sizes, "empty");
  const std::size_t bytes = static_cast<std::size_t>(numel) * element_size(options.dtype);
  return make_tensor(make_intrusive<Storage>(bytes, options.device), sizes, numel, options.dtype);
}

Tensor full(const Shape& sizes, Scalar value, TensorOptions options) {
  check_in_range(value, options.dtype, "full");
  Tensor out = empty(sizes, options);
  fill_values(out, value);
  return out;
}

Tensor zeros(const Shape& sizes, TensorOptions options) {
  return full(sizes, 0.0, options);
}
Tensor ones(const Shape& sizes, TensorOptions options) {
  return full(sizes, 1.0, options);
}
Tensor empty_like(const Tensor& like) {
  return empty(like.sizes(), options_of(like));
}
Tensor zeros_like(const Tensor& like) {
  return zeros(like.sizes(), options_of(like));
}
Tensor ones_like(const Tensor& like) {
  return ones(like.sizes(), options_of(like));
}

Tensor full_like(const Tensor& like, Scalar value) {
  return full(like.sizes(), value, options_of(like));
}

Tensor eye(std::int64_t rows, std::int64_t columns, TensorOptions options) {
  LOCKSTEP_CHECK(rows >= 0 && columns >= -1, "[eye] expected sizes of at least 0, found {} and {}", rows, columns);
  if (columns == -1) columns = rows;
  const Tensor out = zeros({rows, columns}, options);
  const std::int64_t n = std::min(rows, columns);
  if (n > 0) fill_values(out.as_strided({n}, {columns + 1}, 0), 1.0);
  return out;
}

Tensor linspace(double start, double end, std::int64_t steps, TensorOptions options) {
  LOCKSTEP_CHECK(steps >= 0, "[linspace] expected at least 0 steps, found {}", steps);
  const LibraryAccess access;
  const Tensor out = empty({steps}, {.dtype = options.dtype});
  if (!is_floating_point(options.dtype)) start = std::trunc(start), end = std::trunc(end);
  const double step = steps > 1 ? (end - start) / static_cast<double>(steps - 1) : 0.0;
  dispatch_numeric(options.dtype, "linspace", [&]<typename T>() {
    T* data = out.data<T>();
    for (std::int64_t i = 0; i < steps; ++i)  // from the nearer end, which is exact
      data[i] = static_cast<T>(i < steps / 2 || steps == 1 ? start + step * static_cast<double>(i)
                                                           : end - step * static_cast<double>(steps - 1 - i));
  });
  return move_values(out, options.device);
}

Tensor arange(Scalar first, Scalar last, Scalar by, TensorOptions options) {
  const double start = first.to_double(), end = last.to_double(), step = by.to_double();
  LOCKSTEP_CHECK(step != 0.0 && std::isfinite(start) && std::isfinite(end) && std::isfinite(step),
                 "[arange] expected finite start and end and a step other than 0, found {}, {}, {}", start, end, step);
  LOCKSTEP_CHECK(start == end || (end > start) == (step > 0.0), "[arange] a step of {} does not lead from {} to {}",
                 step, start, end);
  const bool whole = are_whole(first, last, by);
  // Whole numbers are counted exactly: as doubles those above 2^53 would be rounded.
  const auto span = static_cast<__int128>(last.to_int64()) - first.to_int64(), stride = __int128{by.to_int64()};
  const double count =
      whole ? static_cast<double>((span + stride - (stride > 0 ? 1 : -1)) / stride) : std::ceil((end - start) / step);
  LOCKSTEP_CHECK(count < 1e15, "[arange] {} elements are too many", count);
  const std::int64_t n = count > 0 ? static_cast<std::int64_t>(count) : 0;
  const LibraryAccess access;
  Tensor out = empty({n}, {.dtype = options.dtype});
  dispatch_numeric(options.dtype, "arange", [&]<typename T>() {
    T* data = out.data<T>();
    if (whole)
      for (std::int64_t i = 0; i < n; ++i) data[i] = static_cast<T>(first.to_int64() + i * by.to_int64());
    else
      for (std::int64_t i = 0; i < n; ++i) data[i] = static_cast<T>(start + static_cast<double>(i) * step);
  });
  return move_values(out, options.device);
}

Tensor arange(Scalar start, Scalar end, Scalar step) {
  return arange(start, end, step, {.dtype = are_whole(start, end, step) ? kInt64 : kFloat32});
}
Tensor arange(Scalar end, TensorOptions options) {
  return arange(0, end, 1, options);
}
Tensor arange(Scalar end) {
  return arange(0, end, 1);
}

void detail::check_row(std::size_t found, std::size_t expected) {
  LOCKSTEP_CHECK(found == expected, "[tensor] expected rows of equal length, found {} and {} values", expected, found);
}

TensorOptions Tensor::options() const {
  return options_of(*this);
}

template <typename T>
Tensor tensor(const std::vector<T>& values, Device device) {
  const LibraryAccess access;
  Tensor out = empty({static_cast<std::int64_t>(values.size())}, {.dtype = dtype_of<T>});
  T* data = out.data<T>();
  for (std::size_t i = 0; i < values.size(); ++i) data[i] = values[i];
  return move_values(out, device);
}

template Tensor tensor(const std::vector<float>&, Device);
template Tensor tensor(const std::vector<double>&, Device);
template Tensor tensor(const std::vector<Half>&, Device);
template Tensor tensor(const std::vector<BFloat16>&, Device);
template Tensor tensor(const std::vector<std::int64_t>&, Device);
template Tensor tensor(const std::vector<std::int32_t>&, Device);
template Tensor tensor(const std::vector<std::uint8_t>&, Device);
template Tensor tensor(const std::vector<bool>&, Device);

Tensor scalar_tensor(Scalar value, TensorOptions options) {
  return full({}, value, options);
}

Tensor from_blob(void* data, const Shape& sizes, TensorOptions options, std::function<void()> release) {
  const std::int64_t numel = checked_numel(sizes, "from_blob");
  LOCKSTEP_CHECK(data || numel == 0, "[from_blob] null data for shape {}", to_string(sizes));
  const std::size_t bytes = static_cast<std::size_t>(numel) * element_size(options.dtype);
  return make_tensor(make_intrusive<Storage>(data, bytes, options.device, std::move(release)), sizes, numel,
                     options.dtype);
}

}  // namespace lockstep
