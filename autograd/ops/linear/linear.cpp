#include "lockstep/autograd/ops/linear/linear.h"

#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/linear/linear_kernels.h"
#include "lockstep/autograd/ops/matmul/matmul_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<LinearForward> linear_forward{
    "linear", linear_forward_cpu, LOCKSTEP_CUDA_KERNEL(linear_forward_cuda), linear_forward_reference};
constexpr KernelTable<LinearBiasGrad> linear_bias_grad{"linear bias grad", linear_bias_grad_cpu,
                                                       LOCKSTEP_CUDA_KERNEL(linear_bias_grad_cuda)};
constexpr KernelTable<LinearReluGrad> linear_relu_grad{"relu grad", linear_relu_grad_cpu,
                                                       LOCKSTEP_CUDA_KERNEL(linear_relu_grad_cuda)};

// [*, columns] as one contiguous matrix of `rows` rows.
Tensor as_rows(const Tensor& t, std::int64_t rows, std::int64_t columns) {
  const Tensor dense = as_contiguous(t);
  return dense.as_strided({rows, columns}, {columns, 1}, dense.offset());
}

// The same, letting go of `t`, so that the result may be the only handle to its memory.
Tensor take_rows(Tensor t, std::int64_t rows, std::int64_t columns) {
  return as_rows(t, rows, columns);
}

class LinearBackward final : public Node {
 public:
  const char* name() const override { return "LinearBackward"; }

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor(), Tensor(), Tensor()};
    if (!grads[0].defined()) return result;
    const Tensor &x = saved(0), &weight = saved(1), &y = saved(2);  // y: defined if relu was applied
    const std::int64_t outputs = weight.sizes()[0], inputs = weight.sizes()[1];
    const std::int64_t rows = rows_;
    Tensor grad = take_rows(std::move(grads[0]), rows, outputs);
    if (y.defined()) grad = relu_grad_values(std::move(grad), as_rows(y, rows, outputs));
    if (needs_grad(0)) {
      const Tensor flat = matmul_values(grad, weight);
      result[0] = flat.as_strided(x.sizes(), contiguous_strides(x.sizes()), 0);
    }
    if (needs_grad(1)) result[1] = matmul_values(transposed_view(grad), as_rows(x, rows, inputs));
    if (has_bias_ && needs_grad(2)) {
      result[2] = empty({outputs}, options_of(grad));
      if (rows == 0)
        fill_values(result[2], 0);
      else if (outputs > 0)
        linear_bias_grad(grad)(grad, result[2]);
    }
    return result;
  }

  std::int64_t rows_ = 0;
  bool has_bias_ = false;
};

void check_operand(const Tensor& x, const Tensor& other, const char* what) {
  LOCKSTEP_CHECK(other.device() == x.device(), "[linear] x is on {} but {} on {}; move one of them",
                 to_string(x.device()), what, to_string(other.device()));
  LOCKSTEP_CHECK(other.dtype() == x.dtype(), "[linear] x is {} but {} is {}; cast one of them", name(x.dtype()), what,
                 name(other.dtype()));
}

Tensor linear_impl(const Tensor& x, const Tensor& weight, const Tensor& bias, bool relu) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([relu](const auto&... t) { return linear_impl(t..., relu); }, x, weight, bias);
  LOCKSTEP_CHECK(x.defined() && weight.defined(), "[linear] x or weight is undefined");
  LOCKSTEP_CHECK(x.is_floating_point(), "[linear] expected a floating-point x, found {}; cast it", name(x.dtype()));
  check_operand(x, weight, "weight");
  LOCKSTEP_CHECK(weight.dim() == 2, "[linear] expected a weight of sizes [out, in], found {}",
                 to_string(weight.sizes()));
  const std::int64_t outputs = weight.sizes()[0], inputs = weight.sizes()[1];
  LOCKSTEP_CHECK(x.dim() >= 1 && x.sizes().back() == inputs,
                 "[linear] expected x of sizes [*, {}] for a weight of {}, found {}", inputs, to_string(weight.sizes()),
                 to_string(x.sizes()));
  if (bias.defined()) {
    check_operand(x, bias, "bias");
    LOCKSTEP_CHECK(bias.dim() == 1 && bias.sizes()[0] == outputs, "[linear] expected a bias of sizes [{}], found {}",
                   outputs, to_string(bias.sizes()));
  }

  Shape sizes = x.sizes();
  sizes[sizes.dim() - 1] = outputs;
  std::int64_t rows = 1;
  for (int d = 0; d < x.dim() - 1; ++d) rows *= x.sizes()[d];
  Tensor out = empty(sizes, options_of(x));
  if (rows > 0 && outputs > 0 && inputs > 0) {
    linear_forward(x)(as_rows(x, rows, inputs), as_contiguous(weight), bias.defined() ? as_contiguous(bias) : bias,
                      as_rows(out, rows, outputs), relu);
  } else if (out.numel() > 0) {  // no inputs: the bias alone
    if (bias.defined())
      copy_values(bias, out);
    else
      fill_values(out, 0);
    if (relu && bias.defined()) linear_relu_grad(out)(out, out, out);
  }
  if (auto* node = record<LinearBackward>(out, {&x, &weight, &bias})) {
    node->save(x, weight, relu ? out : Tensor());
    node->rows_ = rows;
    node->has_bias_ = bias.defined();
  }
  return out;
}

}  // namespace

Tensor relu_grad_values(Tensor grad, const Tensor& y) {
  const bool sole_owner = grad.impl()->use_count() == 1 && grad.storage()->use_count() == 1;
  Tensor out = sole_owner ? grad : empty_like(grad);
  if (out.numel() > 0) linear_relu_grad(grad)(grad, y, out);
  return out;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_impl(x, weight, bias, false);
}

Tensor linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return linear_impl(x, weight, bias, true);
}

}  // namespace lockstep
