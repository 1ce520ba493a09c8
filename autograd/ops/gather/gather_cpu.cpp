#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lockstep/autograd/ops/gather/gather_kernels.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {

namespace {

/// Neighbouring lines of `index` along dim: element k of line j is the (at + k step + j column)th of the index in
/// row-major order, its value is at index + k index_step + j index_column, and its line in x begins at x + j x_column.
struct Lanes {
  std::int64_t at, index, x;
  std::int64_t count, column, index_column, x_column;
};

/// Calls run(lanes) for groups of lines of `index` along dim, in parallel. Lines of the index meet disjoint lines of x,
/// so they can be written without regard to each other. A group goes through dim together, so that memory is met in
/// runs.
template <typename Run>
void for_each_lanes(const Shape& x_strides, int dim, const Tensor& index, Run&& run) {
  constexpr std::int64_t kMostLanes = 64, kShortLine = 16;
  const Shape& sizes = index.sizes();
  const Shape order = contiguous_strides(sizes);
  const int last = sizes.dim() - 1;
  // The dimension along which lines are neighbours; long ones in memory's own order are gone through one by one.
  const int across = dim != last ? last : sizes[dim] <= kShortLine ? last - 1 : -1;
  const std::int64_t width = across >= 0 ? sizes[across] : 1;
  const std::int64_t groups = (width + kMostLanes - 1) / kMostLanes;
  const std::int64_t rows = sizes.numel() / sizes[dim] / width;
  const std::int64_t elements = sizes[dim] * std::min(width, kMostLanes);
  lockstep::parallel_for(rows * groups, std::max<std::int64_t>(1, cpu::kElementBlock / elements),
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t item = begin; item < end; ++item) {
                             const std::int64_t first = item % groups * kMostLanes;
                             Lanes lanes{0, 0, 0, std::min(kMostLanes, width - first), 0, 0, 0};
                             std::int64_t rest = item / groups;
                             for (int d = last; d >= 0; --d) {
                               if (d == dim) continue;
                               std::int64_t i = first;
                               if (d == across) {
                                 lanes.column = order[d];
                                 lanes.x_column = x_strides[d];
                                 lanes.index_column = index.strides()[d];
                               } else {
                                 i = rest % sizes[d];
                                 rest /= sizes[d];
                               }
                               lanes.at += i * order[d];
                               lanes.index += i * index.strides()[d];
                               lanes.x += i * x_strides[d];
                             }
                             run(lanes);
                           }
                         });
}

/// Calls each(place, at) for all elements of the index, those of one line in their order: `at` is the element's number
/// in row-major order, `place` where it points to in x.
template <typename Each>
void for_each_place(const Shape& x_strides, int dim, const Tensor& index, Each&& each) {
  const std::int64_t* positions = index.data<std::int64_t>();
  const std::int64_t n = index.sizes()[dim], index_step = index.strides()[dim], stride = x_strides[dim];
  const std::int64_t step = contiguous_strides(index.sizes())[dim];
  for_each_lanes(x_strides, dim, index, [&](const Lanes& lanes) {
    const std::int64_t* position = positions + lanes.index;
    std::int64_t at = lanes.at;
    if (lanes.count == 1 && index_step == 1 && step == 1 && stride == 1) {
      for (std::int64_t k = 0; k < n; ++k) each(lanes.x + position[k], at + k);
      return;
    }
    if (lanes.count == 1) {
      for (std::int64_t k = 0; k < n; ++k) each(lanes.x + position[k * index_step] * stride, at + k * step);
      return;
    }
    for (std::int64_t k = 0; k < n; ++k, position += index_step, at += step)
      if (lanes.index_column == 0 && lanes.x_column == 1 && lanes.column == 1) {  // a row of x
        const std::int64_t row = lanes.x + *position * stride;
        for (std::int64_t j = 0; j < lanes.count; ++j) each(row + j, at + j);
      } else {
        for (std::int64_t j = 0; j < lanes.count; ++j)
          each(lanes.x + j * lanes.x_column + position[j * lanes.index_column] * stride, at + j * lanes.column);
      }
  });
}

}  // namespace

void gather_cpu(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  dispatch_all(x.dtype(), "gather", [&]<typename T>() {
    const T* source = x.data<T>();
    T* target = out.data<T>();
    for_each_place(x.strides(), dim, index, [=](std::int64_t place, std::int64_t at) { target[at] = source[place]; });
  });
}

void scatter_cpu(const Tensor& source, int dim, const Tensor& index, const Tensor& out) {
  dispatch_all(out.dtype(), "scatter", [&]<typename T>() {
    const T* from = source.data<T>();
    T* target = out.data<T>();
    for_each_place(out.strides(), dim, index, [=](std::int64_t place, std::int64_t at) { target[place] = from[at]; });
  });
}

void gather_backward_cpu(const Tensor& grad, int dim, const Tensor& index, const Tensor& out) {
  const auto add = [&]<typename T>() {
    const T* source = grad.data<T>();
    T* target = out.data<T>();
    for_each_place(out.strides(), dim, index, [=](std::int64_t place, std::int64_t at) {
      target[place] = wrapping_sum<T>(target[place], source[at]);
    });
  };
  if (out.dtype() == kInt64)
    add.template operator()<std::int64_t>();
  else
    dispatch_floating(out.dtype(), "gather backward", add);
}

namespace {

template <ScatterReduce kReduce, typename T>
void combine(T& at, T value) {
  if constexpr (kReduce == ScatterReduce::product) {
    if constexpr (std::is_integral_v<T>)
      at = static_cast<T>(static_cast<std::uint64_t>(at) * static_cast<std::uint64_t>(value));
    else
      at = at * value;
  } else {
    const bool beyond = kReduce == ScatterReduce::maximum ? value > at : value < at;
    if (beyond || value != value) at = value;
  }
}

template <ScatterReduce kReduce, typename T>
void reduce_into(const Tensor& source, int dim, const Tensor& index, const Tensor& out) {
  const T* from = source.data<T>();
  T* to = out.data<T>();
  for_each_place(out.strides(), dim, index,
                 [=](std::int64_t place, std::int64_t at) { combine<kReduce, T>(to[place], from[at]); });
}

template <typename T>
void reduce_by(ScatterReduce reduce, const Tensor& source, int dim, const Tensor& index, const Tensor& out) {
  switch (reduce) {
    case ScatterReduce::product:
      return reduce_into<ScatterReduce::product, T>(source, dim, index, out);
    case ScatterReduce::maximum:
      return reduce_into<ScatterReduce::maximum, T>(source, dim, index, out);
    case ScatterReduce::minimum:
      return reduce_into<ScatterReduce::minimum, T>(source, dim, index, out);
  }
}

}  // namespace

void scatter_reduce_cpu(ScatterReduce reduce, const Tensor& source, int dim, const Tensor& index, const Tensor& out) {
  if (out.dtype() == kInt64) return reduce_by<std::int64_t>(reduce, source, dim, index, out);
  dispatch_floating(out.dtype(), "scatter_reduce",
                    [&]<typename T>() { reduce_by<T>(reduce, source, dim, index, out); });
}

}  // namespace lockstep::detail
