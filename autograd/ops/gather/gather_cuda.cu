#include "lockstep/autograd/ops/gather/gather_kernels.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/core/cuda/elementwise.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/words.cuh"

namespace lockstep::detail {
namespace {

using cuda::kThreads;

template <int N>
cuda::Strides<N> walk(const Shape& sizes, const std::array<Shape, N>& strides) {
  return cuda::Strides<N>(cpu::StridedLoop<N>{sizes, strides, sizes.numel()});
}

Shape without(Shape strides, int dim) {
  strides[dim] = 0;
  return strides;
}

/// `lines`: offsets in x of the index's elements, as if they all were 0.
template <typename Word>
__global__ void gather_kernel(cuda::Strides<1> lines, const Word* x, std::int64_t stride, std::int64_t size,
                              const std::int64_t* index, Word* out, Word missing) {
  for (std::int64_t i = cuda::global_thread(); i < lines.numel; i += cuda::all_threads()) {
    std::int64_t offset[1];
    lines.offsets(i, offset);
    const std::int64_t at = index[i];
    out[i] = at >= 0 && at < size ? x[offset[0] + at * stride] : missing;
  }
}

/// How a line of the index meets a line of the result.
struct Line {
  std::int64_t terms, term_step;  // of the index
  std::int64_t size, stride;      // of the result
};

/// A thread to a line: term by term. For many lines, or short ones.
template <typename T>
__global__ void add_lines_kernel(cuda::Strides<2> lines, Line line, const T* grad, const std::int64_t* index, T* out) {
  for (std::int64_t l = cuda::global_thread(); l < lines.numel; l += cuda::all_threads()) {
    std::int64_t offset[2];  // in the result, in the index
    lines.offsets(l, offset);
    for (std::int64_t t = 0; t < line.terms; ++t) {
      const std::int64_t from = offset[1] + t * line.term_step, at = index[from];
      if (at >= 0 && at < line.size) {
        T& sum = out[offset[0] + at * line.stride];
        sum = wrapping_sum<T>(sum, grad[from]);
      }
    }
  }
}

/// A thread to an element of the result: it looks through its line of the index. The sums are the same.
template <typename T>
__global__ void add_elements_kernel(cuda::Strides<3> elements, Line line, const T* grad, const std::int64_t* index,
                                    T* out) {
  for (std::int64_t i = cuda::global_thread(); i < elements.numel; i += cuda::all_threads()) {
    std::int64_t offset[3];  // in the result, in the index, along the line
    elements.offsets(i, offset);
    T sum = 0;
#pragma unroll 4
    for (std::int64_t t = 0; t < line.terms; ++t) {
      const std::int64_t from = offset[1] + t * line.term_step;
      if (index[from] == offset[2]) sum = wrapping_sum<T>(sum, grad[from]);
    }
    out[offset[0]] = sum;
  }
}

template <typename T>
void add(const Tensor& grad, int dim, const Tensor& index, const Tensor& out) {
  const cuda::Launch launch(out);
  const Shape index_strides = without(contiguous_strides(index.sizes()), dim);
  const Shape out_strides = without(out.strides(), dim);
  const Line line{index.sizes()[dim], contiguous_strides(index.sizes())[dim], out.sizes()[dim], out.strides()[dim]};
  Shape sizes = index.sizes();
  sizes[dim] = 1;
  const std::int64_t lines = sizes.numel();
  if (line.terms <= 8 || lines >= 4096) {
    launch(add_lines_kernel<T>, cuda::blocks_for(lines), kThreads, walk<2>(sizes, {out_strides, index_strides}), line,
           grad.data<T>(), index.data<std::int64_t>(), out.data<T>());
    return;
  }
  sizes[dim] = line.size;
  Shape along = Shape::filled(sizes.dim(), 0);
  along[dim] = 1;
  launch(add_elements_kernel<T>, cuda::blocks_for(sizes.numel()), kThreads,
         walk<3>(sizes, {out.strides(), index_strides, along}), line, grad.data<T>(), index.data<std::int64_t>(),
         out.data<T>());
}

}  // namespace

void gather_cuda(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  const cuda::Launch launch(out);
  const auto lines = walk<1>(index.sizes(), {without(x.strides(), dim)});
  cuda::with_word(element_size(x.dtype()), [&]<typename Word>() {
    launch(gather_kernel<Word>, cuda::blocks_for(out.numel()), kThreads, lines, static_cast<const Word*>(x.raw_data()),
           x.strides()[dim], x.sizes()[dim], index.data<std::int64_t>(), static_cast<Word*>(out.raw_data()),
           static_cast<Word>(cuda::missing_word(x.dtype())));
  });
}

void gather_backward_cuda(const Tensor& grad, int dim, const Tensor& index, const Tensor& out) {
  if (out.dtype() == kInt64) return add<std::int64_t>(grad, dim, index, out);
  cuda::require_not_portable("the gradient of gather");
  out.dtype() == kFloat64 ? add<double>(grad, dim, index, out) : add<float>(grad, dim, index, out);
}

}  // namespace lockstep::detail
