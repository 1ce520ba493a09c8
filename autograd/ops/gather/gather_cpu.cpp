#include <algorithm>

#include "lockstep/autograd/ops/gather/gather_kernels.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {

namespace {

/// Calls lane(x_offset, index_offset) for each line of `index` along dim, in parallel. Lines of the index meet disjoint
/// lines of x, so they can be written without regard to each other.
template <typename Lane>
void for_each_lane(const Shape& x_strides, int dim, const Shape& index_sizes, Lane&& lane) {
  const Shape index_strides = contiguous_strides(index_sizes);
  const std::int64_t lanes = index_sizes.numel() / index_sizes[dim];
  lockstep::parallel_for(lanes, std::max<std::int64_t>(1, cpu::kElementBlock / index_sizes[dim]),
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t l = begin; l < end; ++l) {
                             std::int64_t rest = l, x_offset = 0, index_offset = 0;
                             for (int d = index_sizes.dim() - 1; d >= 0; --d) {
                               if (d == dim) continue;
                               const std::int64_t i = rest % index_sizes[d];
                               rest /= index_sizes[d];
                               x_offset += i * x_strides[d];
                               index_offset += i * index_strides[d];
                             }
                             lane(x_offset, index_offset);
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
    for_each_lane(x.strides(), dim, index.sizes(), [&](std::int64_t x_offset, std::int64_t index_offset) {
      for (std::int64_t k = 0; k < n; ++k)
        target[index_offset + k * step] = source[x_offset + positions[index_offset + k * step] * stride];
    });
  });
}

void gather_backward_cpu(const Tensor& grad, int dim, const Tensor& index, const Tensor& out) {
  const std::int64_t* positions = index.data<std::int64_t>();
  const std::int64_t n = index.sizes()[dim], step = contiguous_strides(index.sizes())[dim], stride = out.strides()[dim];
  dispatch_floating(out.dtype(), "gather backward", [&]<typename T>() {
    const T* source = grad.data<T>();
    T* target = out.data<T>();
    for_each_lane(out.strides(), dim, index.sizes(), [&](std::int64_t x_offset, std::int64_t index_offset) {
      for (std::int64_t k = 0; k < n; ++k) {
        T& sum = target[x_offset + positions[index_offset + k * step] * stride];
        sum = sum + source[index_offset + k * step];
      }
    });
  });
}

}  // namespace lockstep::detail
