// Convolution by image columns: for each image, the taps of every output position become a column of a matrix, and the
// convolution a matrix product. (Chellapilla, Puri, Simard: High Performance Convolutional Neural Networks for Document
// Processing, 2006.)

#include <algorithm>

#include "lockstep/autograd/ops/conv2d/conv2d_blocks.h"
#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

// Output columns [first, last) whose tap kx lies inside the image.
struct Span {
  std::int64_t first, last;
};

Span inside(const Conv2dGeometry& g, std::int64_t kx) {
  const std::int64_t shift = kx * g.dilation.w - g.padding.w;  // x = ox * stride + shift
  const std::int64_t first = shift >= 0 ? 0 : (-shift + g.stride.w - 1) / g.stride.w;
  const std::int64_t room = g.w - 1 - shift;
  const std::int64_t last = room < 0 ? 0 : std::min(g.ow, room / g.stride.w + 1);
  return {std::min(first, last), last};
}

// Calls row(column_row, image_row or null, shift, span) for each row of the column matrix of one image's group; a row
// holds one (channel, ky, kx) at every output position.
template <typename Row>
void for_each_column_row(const Conv2dGeometry& g, Row&& row) {
  std::int64_t position = 0;
  for (std::int64_t c = 0; c < g.group_in(); ++c)
    for (std::int64_t ky = 0; ky < g.kh; ++ky)
      for (std::int64_t kx = 0; kx < g.kw; ++kx)
        for (std::int64_t oy = 0; oy < g.oh; ++oy, position += g.ow) {
          const std::int64_t y = oy * g.stride.h - g.padding.h + ky * g.dilation.h;
          const std::int64_t image = y < 0 || y >= g.h ? -1 : (c * g.h + y) * g.w;
          row(position, image, kx * g.dilation.w - g.padding.w, inside(g, kx));
        }
}

template <typename T>
void image_to_columns(const Conv2dGeometry& g, const T* image, T* columns) {
  for_each_column_row(g, [&](std::int64_t position, std::int64_t start, std::int64_t shift, Span span) {
    T* out = columns + position;
    if (start < 0) {
      std::fill(out, out + g.ow, T(0));
      return;
    }
    const T* in = image + start + shift;
    std::fill(out, out + span.first, T(0));
    if (g.stride.w == 1)
      std::copy(in + span.first, in + span.last, out + span.first);
    else
      for (std::int64_t x = span.first; x < span.last; ++x) out[x] = in[x * g.stride.w];
    std::fill(out + span.last, out + g.ow, T(0));
  });
}

template <typename T>
void add_columns_to_image(const Conv2dGeometry& g, const T* columns, T* image) {
  for_each_column_row(g, [&](std::int64_t position, std::int64_t start, std::int64_t shift, Span span) {
    if (start < 0) return;
    const T* in = columns + position;
    T* out = image + start + shift;
    if (g.stride.w == 1)
      for (std::int64_t x = span.first; x < span.last; ++x) out[x] += in[x];
    else
      for (std::int64_t x = span.first; x < span.last; ++x) out[x * g.stride.w] += in[x];
  });
}

// Sizes of the matrices of one group of channels.
struct Matrices {
  explicit Matrices(const Conv2dGeometry& g)
      : rows(g.group_out()),
        inner(g.group_in() * g.kh * g.kw),
        positions(g.oh * g.ow),
        image(g.group_in() * g.h * g.w) {}
  std::int64_t rows, inner, positions, image;
  std::int64_t columns_size() const { return inner * positions; }
};

template <typename T>
void forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out,
             bool relu) {
  const Matrices m(g);
  parallel_for(g.n, conv2d_blocks::images_per_block(g), [&](std::int64_t begin, std::int64_t end) {
    const Tensor columns = empty({m.columns_size()}, {.dtype = dtype_of<T>});
    for (std::int64_t index = begin * g.groups; index < end * g.groups; ++index) {
      const std::int64_t group = index % g.groups;
      T* result = out.data<T>() + index * m.rows * m.positions;
      image_to_columns(g, x.data<T>() + index * m.image, columns.data<T>());
      cpu::gemm({.m = m.rows,
                 .n = m.positions,
                 .k = m.inner,
                 .a = {weight.data<T>() + group * m.rows * m.inner, m.inner},
                 .b = {columns.data<T>(), m.positions},
                 .out = result,
                 .out_stride = m.positions,
                 .row_bias = bias.defined() ? bias.data<T>() + group * m.rows : nullptr,
                 .activation = relu ? cpu::Activation::relu : cpu::Activation::none});
    }
  });
}

template <typename T>
void backward_data(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight, const Tensor& x_grad) {
  const Matrices m(g);
  parallel_for(g.n, conv2d_blocks::images_per_block(g), [&](std::int64_t begin, std::int64_t end) {
    const Tensor columns = empty({m.columns_size()}, {.dtype = dtype_of<T>});
    for (std::int64_t index = begin * g.groups; index < end * g.groups; ++index) {
      const std::int64_t group = index % g.groups;
      T* image = x_grad.data<T>() + index * m.image;
      cpu::gemm({.m = m.inner,
                 .n = m.positions,
                 .k = m.rows,
                 .a = {weight.data<T>() + group * m.rows * m.inner, m.inner, true},
                 .b = {grad.data<T>() + index * m.rows * m.positions, m.positions},
                 .out = columns.data<T>(),
                 .out_stride = m.positions});
      std::fill(image, image + m.image, T(0));
      add_columns_to_image(g, columns.data<T>(), image);
    }
  });
}

template <typename T>
void backward_weight(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight_grad,
                     const Tensor& bias_grad) {
  const Matrices m(g);
  const std::int64_t image_groups = conv2d_blocks::group_count(g), size = weight_grad.numel();
  const Tensor partial = zeros({image_groups, size + g.out}, {.dtype = dtype_of<T>});
  parallel_for(g.n, conv2d_blocks::images_per_group(g), [&](std::int64_t begin, std::int64_t end) {
    const Tensor columns = empty({m.columns_size()}, {.dtype = dtype_of<T>});
    T* weights = partial.data<T>() + begin / conv2d_blocks::images_per_group(g) * (size + g.out);
    for (std::int64_t index = begin * g.groups; index < end * g.groups; ++index) {
      const std::int64_t group = index % g.groups;
      const T* d = grad.data<T>() + index * m.rows * m.positions;
      image_to_columns(g, x.data<T>() + index * m.image, columns.data<T>());
      cpu::gemm({.m = m.rows,
                 .n = m.inner,
                 .k = m.positions,
                 .a = {d, m.positions},
                 .b = {columns.data<T>(), m.positions, true},
                 .out = weights + group * m.rows * m.inner,
                 .out_stride = m.inner,
                 .beta = T(1)});
      if (bias_grad.defined()) conv2d_blocks::add_plane_sums(d, m.rows, m.positions, weights + size + group * m.rows);
    }
  });
  conv2d_blocks::add_groups(partial.data<T>(), image_groups, size + g.out, size, weight_grad.data<T>(),
                            bias_grad.defined() ? bias_grad.data<T>() : nullptr);
}

}  // namespace

void conv2d_forward_im2col(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& out, bool relu) {
  if (x.dtype() == kFloat64)
    forward<double>(g, x, weight, bias, out, relu);
  else
    forward<float>(g, x, weight, bias, out, relu);
}

void conv2d_backward_data_im2col(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight,
                                 const Tensor& x_grad) {
  if (grad.dtype() == kFloat64)
    backward_data<double>(g, grad, weight, x_grad);
  else
    backward_data<float>(g, grad, weight, x_grad);
}

void conv2d_backward_weight_im2col(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x,
                                   const Tensor& weight_grad, const Tensor& bias_grad) {
  if (grad.dtype() == kFloat64)
    backward_weight<double>(g, grad, x, weight_grad, bias_grad);
  else
    backward_weight<float>(g, grad, x, weight_grad, bias_grad);
}

}  // namespace lockstep
