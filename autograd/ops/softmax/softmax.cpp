#include "lockstep/autograd/ops/softmax/softmax.h"

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/multinomial/multinomial.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/softmax/softmax_kernels.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {

namespace {

constexpr KernelTable<SoftmaxKernel> softmax_kernel{"softmax", softmax_cpu, LOCKSTEP_CUDA_KERNEL(softmax_cuda)};
constexpr KernelTable<SoftmaxBackwardKernel> softmax_backward_kernel{"softmax backward", softmax_backward_cpu,
                                                                     LOCKSTEP_CUDA_KERNEL(softmax_backward_cuda)};

SoftmaxSlices slices_along(const Shape& sizes, int dim) {
  SoftmaxSlices slices;
  for (int d = 0; d < sizes.dim(); ++d) (d < dim ? slices.outer : d == dim ? slices.length : slices.inner) *= sizes[d];
  return slices;
}

class SoftmaxBackward final : public Node {
 public:
  const char* name() const override { return log ? "LogSoftmaxBackward" : "SoftmaxBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor& y = saved(0);
    TensorList result(1);
    if (!grads[0].defined()) return result;
    result[0] = empty(y.sizes(), options_of(y));
    if (y.numel() > 0) softmax_backward_kernel(y)(as_contiguous(grads[0]), y, result[0], slices, log);
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    const Shape lines{slices.outer, slices.length, slices.inner};
    const Tensor y = saved_output(0).reshape(lines), grad = grads[0].reshape(lines);
    const Tensor of_lines = log ? grad - exp(y) * sum(grad, {1}, true) : y * (grad - sum(grad * y, {1}, true));
    return {of_lines.reshape(grads[0].sizes())};
  }

  SoftmaxSlices slices;
  bool log = false;
};

Tensor softmax_along(const Tensor& input, std::int64_t dim, bool log) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& x) { return softmax_along(x, dim, log); }, input);
  const char* op = log ? "log_softmax" : "softmax";
  LOCKSTEP_CHECK(input.defined(), "[{}] input is undefined; expected a floating-point tensor", op);
  LOCKSTEP_CHECK(input.is_floating_point(), "[{}] expected a floating-point input, found {}; cast it with to(kFloat32)",
                 op, name(input.dtype()));
  const SoftmaxSlices slices = slices_along(input.sizes(), wrap_dim(dim, input.dim(), op));
  const Tensor output = empty(input.sizes(), options_of(input));
  if (input.numel() > 0 && !softmax_elements(input, output, slices, log))
    softmax_kernel(input)(as_contiguous(input), output, slices, log);
  if (auto* node = record<SoftmaxBackward>(output, {&input})) {
    node->save(output);
    node->slices = slices;
    node->log = log;
  }
  return output;
}

Tensor softmax_along(const Tensor& input, std::int64_t dim, std::optional<DType> dtype, bool log) {
  return softmax_along(dtype && input.defined() ? input.to(*dtype) : input, dim, log);
}

}  // namespace

Tensor softmax(const Tensor& input, std::int64_t dim, std::optional<DType> dtype) {
  return softmax_along(input, dim, dtype, false);
}
Tensor log_softmax(const Tensor& input, std::int64_t dim, std::optional<DType> dtype) {
  return softmax_along(input, dim, dtype, true);
}

Tensor softmin(const Tensor& input, std::int64_t dim, std::optional<DType> dtype) {
  LOCKSTEP_CHECK(input.defined(), "[softmin] input is undefined; expected a floating-point tensor");
  return softmax(neg(input), dim, dtype);
}

Tensor gumbel_softmax(const Tensor& logits, double tau, bool hard, std::int64_t dim) {
  LOCKSTEP_CHECK(logits.defined() && logits.is_floating_point(),
                 "[gumbel_softmax] expected floating-point logits, found {}",
                 logits.defined() ? name(logits.dtype()) : "an undefined tensor");
  LOCKSTEP_CHECK(tau > 0.0, "[gumbel_softmax] expected a temperature tau above 0, found {}", tau);
  const Tensor noise = neg(log(detail::exponential(logits.sizes(), 1.0, options_of(logits))));
  const Tensor soft = softmax((logits + noise) / tau, dim);
  if (!hard) return soft;
  const Tensor one = zeros_like(soft.detach()).scatter(dim, soft.detach().argmax(dim, true), 1.0);
  return one - soft.detach() + soft;
}

Tensor Tensor::softmax(std::int64_t dim, std::optional<DType> dtype) const {
  return lockstep::softmax(*this, dim, dtype);
}
Tensor Tensor::log_softmax(std::int64_t dim, std::optional<DType> dtype) const {
  return lockstep::log_softmax(*this, dim, dtype);
}

}  // namespace lockstep
