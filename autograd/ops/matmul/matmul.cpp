#include "lockstep/autograd/ops/matmul/matmul.h"

#include <utility>

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/matmul/matmul_kernels.h"
#include "lockstep/autograd/ops/support/sum_to.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

constexpr KernelTable<MatmulKernel> matmul_kernel{"matmul", matmul_cpu, LOCKSTEP_CUDA_KERNEL(matmul_cuda),
                                                  matmul_reference};

// A view with `leading` in front of the last two dimensions, repeated where sizes are 1 or missing.
Tensor expand_leading(const Tensor& t, const Shape& leading) {
  Shape sizes = leading, strides = Shape::filled(leading.dim(), 0);
  const int missing = leading.dim() - (t.dim() - 2);
  for (int d = missing; d < leading.dim(); ++d)
    if (t.sizes()[d - missing] == leading[d]) strides[d] = t.strides()[d - missing];
  for (int d = t.dim() - 2; d < t.dim(); ++d) {
    sizes.push_back(t.sizes()[d]);
    strides.push_back(t.strides()[d]);
  }
  return t.as_strided(sizes, strides, t.offset());
}

// The matrix product of everything in front of the last dimension, as one tall matrix.
Tensor flat_rows(const Tensor& t) {
  const Tensor dense = as_contiguous(t);
  const std::int64_t columns = t.sizes().back();
  const std::int64_t rows = columns == 0 ? 0 : t.numel() / columns;
  return dense.as_strided({rows, columns}, {columns, 1}, dense.offset());
}

// Sizes of the product of operands of at least two dimensions; leading sizes broadcast.
Shape product_sizes(const Tensor& a, const Tensor& b) {
  Shape sizes = broadcast_shapes(leading_of(a), leading_of(b), "matmul");
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-1));
  return sizes;
}

// out = a * b; out is contiguous, of product_sizes(a, b).
void product(const Tensor& a, const Tensor& b, const Tensor& out) {
  if (out.numel() == 0) return;
  if (a.size(-1) == 0) return fill_values(out, 0);
  if (b.dim() == 2 && a.dim() > 2 && a.is_contiguous())  // one tall product instead of a batch of small ones
    return matmul_kernel(a)(flat_rows(a), b, flat_rows(out));
  const Shape leading = leading_of(out);
  matmul_kernel(a)(expand_leading(a, leading), expand_leading(b, leading), out);
}

Tensor product(const Tensor& a, const Tensor& b) {
  const Tensor out = empty(product_sizes(a, b), options_of(a));
  product(a, b, out);
  return out;
}

constexpr std::int64_t kSmallMatrix = 1024;  // elements

// Sums `grad` over the leading dimensions along which an operand of size `sizes` was repeated.
Tensor sum_leading(const Tensor& grad, const Shape& sizes) {
  if (grad.sizes() == sizes) return grad;
  const std::int64_t matrix = grad.size(-1) * grad.size(-2);
  // One kernel instead of one for each matrix, on a device and where matrices are small.
  if (grad.device().is_cuda() || matrix < kSmallMatrix) return sum_to(grad, sizes);
  Tensor sum = zeros(sizes, options_of(grad));
  const Shape leading = leading_of(grad);
  const Tensor target = expand_leading(sum, leading);
  for (std::int64_t i = 0; i < leading.numel(); ++i) {
    std::int64_t rest = i, offset = 0;
    for (int d = leading.dim() - 1; d >= 0; --d) {
      offset += rest % leading[d] * target.strides()[d];
      rest /= leading[d];
    }
    const Shape one = {grad.size(-2), grad.size(-1)}, dense = {grad.size(-1), 1};
    add_values_(sum.as_strided(one, dense, offset), grad.as_strided(one, dense, i * matrix));
  }
  return sum;
}

// a * b summed down to `sizes`; the terms of half types are rounded after they were summed.
Tensor summed_product(const Tensor& a, const Tensor& b, const Shape& sizes) {
  if (element_size(a.dtype()) > 2 || product_sizes(a, b) == sizes) return sum_leading(product(a, b), sizes);
  const Tensor wide = product(cast_values(a, kFloat32), cast_values(b, kFloat32));
  return cast_values(sum_leading(wide, sizes), a.dtype());
}

// [k] as [1, k] or [k, 1].
Tensor as_matrix(const Tensor& t, bool left) {
  if (t.dim() != 1) return t;
  if (left) return t.as_strided({1, t.sizes()[0]}, {t.strides()[0], t.strides()[0]}, t.offset());
  return t.as_strided({t.sizes()[0], 1}, {t.strides()[0], t.strides()[0]}, t.offset());
}

// Same values, other shape; `t` is contiguous.
Tensor reshaped(const Tensor& t, const Shape& sizes) {
  return t.sizes() == sizes ? t : t.as_strided(sizes, contiguous_strides(sizes), t.offset());
}

class MatmulBackward final : public Node {
 public:
  const char* name() const override { return "MatmulBackward"; }
  bool gradients_are_apart() const override { return true; }

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor(), Tensor()};
    if (!grads[0].defined()) return result;
    const Tensor& a = saved(0);
    const Tensor& b = saved(1);
    const Tensor left = as_matrix(a, true), right = as_matrix(b, false);
    const Tensor grad = reshaped(as_contiguous(grads[0]), product_sizes(left, right));
    if (needs_grad(0)) result[0] = reshaped(grad_left(grad, left, right), a.sizes());
    if (needs_grad(1)) result[1] = reshaped(grad_right(grad, left, right), b.sizes());
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    Tensor a = saved_input(0, 0), b = saved_input(1, 1);
    const Shape a_sizes = a.sizes(), b_sizes = b.sizes();
    if (a.dim() == 1) a = a.unsqueeze(0);
    if (b.dim() == 1) b = b.unsqueeze(1);
    const Tensor grad = grads[0].reshape(product_sizes(a, b));
    TensorList result(2);
    if (needs_grad(0)) result[0] = recorded_sum_to(matmul(grad, b.transpose(-2, -1)), a.sizes()).reshape(a_sizes);
    if (needs_grad(1)) result[1] = recorded_sum_to(matmul(a.transpose(-2, -1), grad), b.sizes()).reshape(b_sizes);
    return result;
  }

 private:
  static Tensor grad_left(const Tensor& grad, const Tensor& left, const Tensor& right) {
    return summed_product(grad, transposed_view(right), left.sizes());
  }
  static Tensor grad_right(const Tensor& grad, const Tensor& left, const Tensor& right) {
    if (right.dim() == 2 && left.dim() > 2)  // summing over the batch is part of the product
      return product(transposed_view(flat_rows(left)), flat_rows(grad));
    return summed_product(transposed_view(left), grad, right.sizes());
  }
};

}  // namespace

Tensor transposed_view(const Tensor& matrices) {
  Shape sizes = matrices.sizes(), strides = matrices.strides();
  const int last = sizes.dim() - 1;
  std::swap(sizes[last], sizes[last - 1]);
  std::swap(strides[last], strides[last - 1]);
  return matrices.as_strided(sizes, strides, matrices.offset());
}

Tensor matmul_values(const Tensor& a, const Tensor& b) {
  LOCKSTEP_ASSERT(a.dim() >= 2 && b.dim() >= 2 && a.size(-1) == b.size(-2), "{} x {}", to_string(a.sizes()),
                  to_string(b.sizes()));
  return product(a, b);
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low(matmul, a, b);
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[matmul] an operand is undefined");
  LOCKSTEP_CHECK(a.device() == b.device(), "[matmul] expected both operands on one device, found {} and {}",
                 to_string(a.device()), to_string(b.device()));
  LOCKSTEP_CHECK(a.dtype() == b.dtype(), "[matmul] expected operands of one dtype, found {} and {}; cast one of them",
                 name(a.dtype()), name(b.dtype()));
  LOCKSTEP_CHECK(a.dtype() != kBool, "[matmul] is not defined for bool operands; cast them");
  LOCKSTEP_CHECK(a.dim() > 0 && b.dim() > 0, "[matmul] expected at least one dimension, found sizes {} and {}",
                 to_string(a.sizes()), to_string(b.sizes()));
  const Tensor left = as_matrix(a, true), right = as_matrix(b, false);
  LOCKSTEP_CHECK(left.size(-1) == right.size(-2),
                 "[matmul] inner sizes differ: {} times {}; expected the last size of the first ({}) to equal the {} "
                 "size of the second ({})",
                 to_string(a.sizes()), to_string(b.sizes()), left.size(-1), b.dim() == 1 ? "only" : "second to last",
                 right.size(-2));
  const Shape matrix_sizes = product_sizes(left, right);
  Shape sizes = matrix_sizes;
  if (b.dim() == 1) sizes.erase(sizes.dim() - 1);
  if (a.dim() == 1) sizes.erase(sizes.dim() - (b.dim() == 1 ? 1 : 2));
  Tensor out = empty(sizes, options_of(a));
  product(left, right, reshaped(out, matrix_sizes));
  if (auto* node = record<MatmulBackward>(out, {&a, &b})) {
    node->save(a, b);
  }
  return out;
}

Tensor Tensor::matmul(const Tensor& other) const {
  return lockstep::matmul(*this, other);
}

}  // namespace lockstep
