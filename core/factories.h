#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <type_traits>
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
/// Every element `value`: an integer is taken as it is, a floating-point number for an integer dtype without its
/// fraction. Throws Error for a number out of the dtype's range.
Tensor full(const Shape& sizes, Scalar value, TensorOptions options = {});
Tensor empty_like(const Tensor& like);
Tensor zeros_like(const Tensor& like);
Tensor ones_like(const Tensor& like);
Tensor full_like(const Tensor& like, Scalar value);
/// [rows, columns] with ones on the diagonal; square without `columns`. Throws Error for negative sizes.
Tensor eye(std::int64_t rows, std::int64_t columns = -1, TensorOptions options = {});
/// `steps` values from start to end, both included, at equal distances; integers from start and end without their
/// fractions, each towards zero. Throws Error for negative steps.
Tensor linspace(double start, double end, std::int64_t steps, TensorOptions options = {});
/// start, start + step, ... below end (above it for a negative step). Throws Error if the step leads away from end.
/// Without options int64 for whole numbers, and float32 if one of the three is written as a floating-point number.
Tensor arange(Scalar start, Scalar end, Scalar step, TensorOptions options);
Tensor arange(Scalar start, Scalar end, Scalar step = 1);
Tensor arange(Scalar end, TensorOptions options);  ///< from 0 on
Tensor arange(Scalar end);                         ///< from 0 on
/// A 1-D tensor holding a copy of the values, of dtype dtype_of<T>.
template <typename T>
Tensor tensor(const std::vector<T>& values, Device device = {});
template <typename T>
Tensor tensor(std::initializer_list<T> values, Device device = {}) {
  return tensor(std::vector<T>(values), device);
}
namespace detail {
void check_row(std::size_t found, std::size_t expected);
}
/// A matrix of rows of equal length. Throws Error otherwise.
template <typename T>
Tensor tensor(std::initializer_list<std::initializer_list<T>> rows, Device device = {}) {
  std::vector<T> values;
  for (const auto& row : rows) {
    detail::check_row(row.size(), rows.begin()->size());
    values.insert(values.end(), row.begin(), row.end());
  }
  const auto count = static_cast<std::int64_t>(rows.size());
  return tensor(values, device).view({count, count ? static_cast<std::int64_t>(rows.begin()->size()) : 0});
}
/// A zero-dimensional tensor; float32 without options. Throws Error for a number out of the dtype's range.
Tensor scalar_tensor(Scalar value, TensorOptions options = {});
/// Borrowed row-major memory; it must outlive the tensor and its views, or be freed by `release`.
Tensor from_blob(void* data, const Shape& sizes, TensorOptions options = {}, std::function<void()> release = {});

// As libtorch calls them: a dtype in the place of options, a number in that of a list.

/// A dtype, a device or its type: what may stand in the place of TensorOptions.
template <typename T>
concept TensorOption = std::same_as<T, DType> || std::same_as<T, Device> || std::same_as<T, DeviceType>;
/// Options of a dtype, as torch::dtype(kLong).
constexpr TensorOptions dtype(DType value) {
  return {.dtype = value};
}
/// Options of a device, as torch::device(kCUDA).
inline TensorOptions device(Device value) {
  return {.device = value};
}
namespace detail {
inline TensorOptions options(DType value) {
  return {.dtype = value};
}
inline TensorOptions options(Device value) {
  return {.device = value};
}
}  // namespace detail

/// zeros() of a dtype, `zeros({2, 3}, kFloat64)`, or on a device; the next ones are the same for the others.
template <TensorOption O>
Tensor zeros(const Shape& sizes, O option) {
  return zeros(sizes, detail::options(option));
}
/// ones() with an option.
template <TensorOption O>
Tensor ones(const Shape& sizes, O option) {
  return ones(sizes, detail::options(option));
}
/// empty() with an option.
template <TensorOption O>
Tensor empty(const Shape& sizes, O option) {
  return empty(sizes, detail::options(option));
}
/// full() with an option.
template <TensorOption O>
Tensor full(const Shape& sizes, Scalar value, O option) {
  return full(sizes, value, detail::options(option));
}
/// eye() with an option.
template <TensorOption O>
Tensor eye(std::int64_t rows, O option) {
  return eye(rows, -1, detail::options(option));
}
/// linspace() with an option.
template <TensorOption O>
Tensor linspace(double start, double end, std::int64_t steps, O option) {
  return linspace(start, end, steps, detail::options(option));
}
/// arange() from 0 on of a dtype.
inline Tensor arange(Scalar end, DType dtype) {
  return arange(end, TensorOptions{.dtype = dtype});
}
/// arange() in steps of 1 with options.
inline Tensor arange(Scalar start, Scalar end, TensorOptions options) {
  return arange(start, end, 1, options);
}
/// arange() in steps of 1 of a dtype.
inline Tensor arange(Scalar start, Scalar end, DType dtype) {
  return arange(start, end, 1, TensorOptions{.dtype = dtype});
}
/// arange() of a dtype.
inline Tensor arange(Scalar start, Scalar end, Scalar step, DType dtype) {
  return arange(start, end, step, TensorOptions{.dtype = dtype});
}
/// from_blob() with an option.
template <TensorOption O>
Tensor from_blob(void* data, const Shape& sizes, O option) {
  return from_blob(data, sizes, detail::options(option));
}
/// A tensor without dimensions, of dtype dtype_of<T>.
template <typename T>
requires std::is_arithmetic_v<T> Tensor tensor(T value) {
  return tensor({value}).view(Shape{});
}
/// The values in another dtype than their own: `tensor({1, 2}, kFloat32)`. Throws Error for one out of its range.
template <typename T, std::same_as<DType> D>
Tensor tensor(std::initializer_list<T> values, D dtype) {
  for (const T value : values) check_in_range(value, dtype, "tensor");
  return tensor(values).to(dtype);
}
/// The same for a vector.
template <typename T, std::same_as<DType> D>
Tensor tensor(const std::vector<T>& values, D dtype) {
  for (const T value : values) check_in_range(value, dtype, "tensor");
  return tensor(values).to(dtype);
}
/// A matrix of rows of equal length in another dtype than its own. Throws Error as these do.
template <typename T, std::same_as<DType> D>
Tensor tensor(std::initializer_list<std::initializer_list<T>> rows, D dtype) {
  for (const auto& row : rows)
    for (const T value : row) check_in_range(value, dtype, "tensor");
  return tensor(rows).to(dtype);
}
/// A number as a tensor without dimensions, in another dtype than its own.
template <typename T, std::same_as<DType> D>
requires std::is_arithmetic_v<T> Tensor tensor(T value, D dtype) {
  return scalar_tensor(value, TensorOptions{.dtype = dtype});
}
/// The same with options.
template <typename T>
requires std::is_arithmetic_v<T> Tensor tensor(T value, TensorOptions options) {
  return scalar_tensor(value, options);
}
/// Values in the dtype and on the device of options.
template <typename T, std::same_as<TensorOptions> O>
Tensor tensor(const std::vector<T>& values, O options) {
  return tensor(values, options.dtype).to(options.device);
}
/// The same for a list.
template <typename T, std::same_as<TensorOptions> O>
Tensor tensor(std::initializer_list<T> values, O options) {
  return tensor(values, options.dtype).to(options.device);
}
/// The same for a matrix.
template <typename T, std::same_as<TensorOptions> O>
Tensor tensor(std::initializer_list<std::initializer_list<T>> rows, O options) {
  return tensor(rows, options.dtype).to(options.device);
}

}  // namespace lockstep
