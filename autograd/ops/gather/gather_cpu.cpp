#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lockstep/autograd/ops/gather/gather_kernels.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {

namespace {

/// Neighbouring lines of `index` along dim: element k of line j is at index + k step + j, and its values in x lie from
/// x + j x_step on.
struct Lanes {
  std::int64_t x, index;
  std::int64_t count, x_step;
};

/// Calls run(lanes) for groups of lines of `index` along dim, in parallel. Lines of the index meet disjoint lines of x,
/// so they can be written without regard to each other. A group goes through dim together, so that memory is met in
/// runs.
template <typename Run>
void for_each_lanes(const Shape& x_strides, int dim, const Shape& index_sizes, Run&& run) {
  constexpr std::int64_t kMostLanes = 64;
  const Shape index_strides = contiguous_strides(index_sizes);
  const int last = index_sizes.dim() - 1;
  const std::int64_t width = dim == last ? 1 : index_sizes[last];
  const std::int64_t groups = (width + kMostLanes - 1) / kMostLanes;
  const std::int64_t rows = index_sizes.numel() / index_sizes[dim] / width;
  const std::int64_t elements = index_sizes[dim] * std::min(width, kMostLanes);
  lockstep::parallel_for(rows * groups, std::max<std::int64_t>(1, cpu::kElementBlock / elements),
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t item = begin; item < end; ++item) {
                             const std::int64_t first = item % groups * kMostLanes;
                             Lanes lanes{0, 0, std::min(kMostLanes, width - first), 0};
                             std::int64_t rest = item / groups;
                             for (int d = last; d >= 0; --d) {
                               if (d == dim) continue;
                               std::int64_t i = first;
                               if (d == last) {
                                 lanes.x_step = x_strides[d];
                               } else {
                                 i = rest % index_sizes[d];
                                 rest /= index_sizes[d];
                               }
                               lanes.x += i * x_strides[d];
                               lanes.index += i * index_strides[d];
                             }
                             run(lanes);
                           }
                         });
}

}  // namespace

void gather_cpu(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  const std::int64_t* positions = index.data<std::int64_t>();
  check_index_range(positions, index.numel(), x.sizes()[dim], "gather");
  const std::int64_t n = index.sizes()[dim], step = contiguous_strides(index.sizes())[dim], stride = x.strides()[dim];
  dispatch_all(x.dtype(), "gather", [&]<typename T>() {
    const T* source = x.data<T>();
    T* target = out.data<T>();
    for_each_lanes(x.strides(), dim, index.sizes(), [&](const Lanes& lanes) {
      for (std::int64_t k = 0; k < n; ++k) {
        const std::int64_t at = lanes.index + k * step;
        for (std::int64_t j = 0; j < lanes.count; ++j)
          target[at + j] = source[lanes.x + j * lanes.x_step + positions[at + j] * stride];
      }
    });
  });
}

void scatter_cpu(const Tensor& source, int dim, const Tensor& index, const Tensor& out) {
  const std::int64_t* positions = index.data<std::int64_t>();
  const std::int64_t n = index.sizes()[dim], step = contiguous_strides(index.sizes())[dim], stride = out.strides()[dim];
  dispatch_all(out.dtype(), "scatter", [&]<typename T>() {
    const T* from = source.data<T>();
    T* target = out.data<T>();
    for_each_lanes(out.strides(), dim, index.sizes(), [&](const Lanes& lanes) {
      for (std::int64_t k = 0; k < n; ++k) {
        const std::int64_t at = lanes.index + k * step;
        for (std::int64_t j = 0; j < lanes.count; ++j)
          target[lanes.x + j * lanes.x_step + positions[at + j] * stride] = from[at + j];
      }
    });
  });
}

void gather_backward_cpu(const Tensor& grad, int dim, const Tensor& index, const Tensor& out) {
  const std::int64_t* positions = index.data<std::int64_t>();
  const std::int64_t n = index.sizes()[dim], step = contiguous_strides(index.sizes())[dim], stride = out.strides()[dim];
  const auto add = [&]<typename T>() {
    const T* source = grad.data<T>();
    T* target = out.data<T>();
    for_each_lanes(out.strides(), dim, index.sizes(), [&](const Lanes& lanes) {
      for (std::int64_t k = 0; k < n; ++k) {
        const std::int64_t at = lanes.index + k * step;
        for (std::int64_t j = 0; j < lanes.count; ++j) {
          T& sum = target[lanes.x + j * lanes.x_step + positions[at + j] * stride];
          sum = wrapping_sum<T>(sum, source[at + j]);
        }
      }
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
  const std::int64_t* positions = index.data<std::int64_t>();
  const std::int64_t n = index.sizes()[dim], step = contiguous_strides(index.sizes())[dim], stride = out.strides()[dim];
  const T* from = source.data<T>();
  T* to = out.data<T>();
  for_each_lanes(out.strides(), dim, index.sizes(), [&](const Lanes& lanes) {
    for (std::int64_t k = 0; k < n; ++k) {
      const std::int64_t at = lanes.index + k * step;
      for (std::int64_t j = 0; j < lanes.count; ++j)
        combine<kReduce, T>(to[lanes.x + j * lanes.x_step + positions[at + j] * stride], from[at + j]);
    }
  });
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
