#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// How a new tensor is made: `zeros({2, 3}, {.dtype = kFloat64, .device = {kCPU, 1}})`.
struct TensorOptions {
  DType dtype = kFloat32;  ///< type of the elements
  Device device = {};      ///< where the memory is taken
};

/// The options of an existing tensor.
TensorOptions options_of(const Tensor& tensor);

/// Uninitialised, contiguous. Throws Error for negative sizes or more than 2^62 bytes.
Tensor empty(const Shape& sizes, TensorOptions options = {});
Tensor zeros(const Shape& sizes, TensorOptions options = {});
Tensor ones(const Shape& sizes, TensorOptions options = {});
Tensor full(const Shape& sizes, double value, TensorOptions options = {});
Tensor empty_like(const Tensor& like);
Tensor zeros_like(const Tensor& like);
Tensor ones_like(const Tensor& like);
Tensor full_like(const Tensor& like, double value);
/// [rows, columns] with ones on the diagonal; square without `columns`. Throws Error for negative sizes.
Tensor eye(std::int64_t rows, std::int64_t columns = -1, TensorOptions options = {});
/// `steps` values from start to end, both included, at equal distances; integers from start and end without their
/// fractions, each towards zero. Throws Error for negative steps.
Tensor linspace(double start, double end, std::int64_t steps, TensorOptions options = {});
/// start, start + step, ... below end (above it for a negative step). Throws Error if the step leads away from end.
Tensor arange(double start, double end, double step = 1.0, TensorOptions options = {.dtype = kInt64});
Tensor arange(std::int64_t end, TensorOptions options = {.dtype = kInt64});
/// A 1-D tensor holding a copy of the values, of dtype dtype_of<T>.
template <typename T>
Tensor tensor(const std::vector<T>& values, Device device = {});
template <typename T>
Tensor tensor(std::initializer_list<T> values, Device device = {}) {
  return tensor(std::vector<T>(values), device);
}
/// A zero-dimensional tensor.
Tensor scalar_tensor(double value, TensorOptions options = {});
/// Borrowed row-major memory; it must outlive the tensor and its views, or be freed by `release`.
Tensor from_blob(void* data, const Shape& sizes, TensorOptions options = {}, std::function<void()> release = {});

}  // namespace lockstep
