#include "lockstep/autograd/ops/linear/linear.h"

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/linear/linear_kernels.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/matmul/matmul_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary_computation.h"
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

// [*, columns] as one contiguous matrix of `rows` rows.
Tensor as_rows(const Tensor& t, std::int64_t rows, std::int64_t columns) {
  const Tensor dense = as_contiguous(t);
  return dense.as_strided({rows, columns}, {columns, 1}, dense.offset());
}

class LinearBackward final : public Node {
 public:
  const char* name() const override { return "LinearBackward"; }
  bool gradients_are_apart() const override { return true; }

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor(), Tensor(), Tensor()};
    if (!grads[0].defined()) return result;
    const Tensor &x = saved(0), &weight = saved(1);
    const std::int64_t outputs = weight.sizes()[0], inputs = weight.sizes()[1];
    const std::int64_t rows = rows_;
    const Tensor grad = as_rows(grads[0], rows, outputs);
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

  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0), weight = saved_input(1, 1);
    const Tensor grad = grads[0].reshape({rows_, weight.size(0)});
    TensorList result(3);
    if (needs_grad(0)) result[0] = matmul(grad, weight).reshape(x.sizes());
    if (needs_grad(1)) result[1] = matmul(grad.t(), x.reshape({rows_, weight.size(1)}));
    if (has_bias_ && needs_grad(2)) result[2] = sum(grad, {0});
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

/// Of contiguous tensors without a side of 0. Computed together with a relu.
class LinearComputation final : public Computation {
 public:
  LinearComputation(const Tensor& x, const Tensor& weight, const Tensor& bias) : Computation({x, weight, bias}) {}

 private:
  void compute() override { deliver(0, result(false)); }
  bool compute_through(std::span<Computation* const> links) override {
    if (links.size() != 1) return false;
    const auto* unary = dynamic_cast<const UnaryComputation*>(links[0]);
    if (!unary || unary->op() != UnaryOp::relu) return false;
    deliver_to(*links[0], 0, result(true));
    return true;
  }
  Tensor result(bool relu) const {
    const Tensor out = empty({input(0).sizes()[0], input(1).sizes()[0]}, options_of(input(0)));
    linear_forward(out)(input(0), input(1), input(2), out, relu);
    return out;
  }
};

// A single output, or integers.
Tensor from_matmul(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  LOCKSTEP_CHECK(weight.dim() == 2 || !bias.defined() || bias.dim() == 0,
                 "[linear] expected a bias without dimensions for a weight of sizes {}, found {}",
                 to_string(weight.sizes()), to_string(bias.sizes()));
  if (bias.defined()) check_operand(x, bias, "bias");
  const Tensor y = matmul(x, weight.dim() == 1 ? weight : weight.t());
  return bias.defined() ? y + bias : y;
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([](const auto&... t) { return linear(t...); }, x, weight, bias);
  LOCKSTEP_CHECK(x.defined() && weight.defined(), "[linear] x or weight is undefined");
  check_operand(x, weight, "weight");
  if (weight.dim() == 1 || (!x.is_floating_point() && weight.dim() == 2)) return from_matmul(x, weight, bias);
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
  Tensor out;
  if (rows > 0 && outputs > 0 && inputs > 0) {
    Tensor values = as_rows(x, rows, inputs), matrix = as_contiguous(weight),
           shifts = bias.defined() ? as_contiguous(bias) : bias;
    // A relu before the rounding to a half type would make 0 of what rounds to -0.
    const bool waits = (x.device().is_cuda() || x.dtype() == kFloat32 || x.dtype() == kFloat64) &&
                       may_wait(rows * inputs * outputs, {&values, &matrix, &shifts});
    out = make_intrusive<LinearComputation>(values, matrix, shifts)->add_result(sizes, options_of(x));
    if (!waits) out.storage()->settle();
  } else {
    out = empty(sizes, options_of(x));
    if (out.numel() > 0 && bias.defined())  // no inputs: the bias alone
      copy_values(bias, out);
    else if (out.numel() > 0)
      fill_values(out, 0);
  }
  if (auto* node = record<LinearBackward>(out, {&x, &weight, &bias})) {
    node->save(x, weight);
    node->rows_ = rows;
    node->has_bias_ = bias.defined();
  }
  return out;
}

}  // namespace lockstep
