#include "lockstep/nn/optim/clip_grad.h"

#include <cmath>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/nn/optim/gradients.h"
#include "lockstep/nn/optim/gradients_in_parts.h"

namespace lockstep::optim {
namespace {

using detail::Gradients;

constexpr KernelTable<detail::GradNormKernel> norm_kernel{"grad_norm", detail::grad_norm_cpu,
                                                          LOCKSTEP_CUDA_KERNEL(detail::grad_norm_cuda)};
constexpr KernelTable<detail::GradScaleKernel> scale_kernel{"clip_grad_norm_", detail::grad_scale_cpu,
                                                            LOCKSTEP_CUDA_KERNEL(detail::grad_scale_cuda)};
constexpr KernelTable<detail::GradClampKernel> clamp_kernel{"clip_grad_value_", detail::grad_clamp_cpu,
                                                            LOCKSTEP_CUDA_KERNEL(detail::grad_clamp_cuda)};

void bump_versions(const Gradients& gradients) {
  for (const Tensor& grad : gradients) grad.storage()->bump_version();
}

// float64 [2], where the gradients are; see GradNormKernel.
Tensor norm_and_factor(const Gradients& gradients, double max_norm) {
  const Tensor norm = empty({2}, {.dtype = kFloat64, .device = gradients.front().device()});
  norm_kernel(gradients.front())(gradients, max_norm, norm);
  return norm;
}

double norm_of(const std::vector<Gradients>& by_device) {
  double sum = 0.0;
  for (const Gradients& gradients : by_device) {
    const double norm = norm_and_factor(gradients, 0.0).to_vector<double>()[0];
    if (by_device.size() == 1) return norm;
    sum += norm * norm;
  }
  return std::sqrt(sum);
}

}  // namespace

GradNorm::operator double() const {
  return value_.to_vector<double>()[0];
}

double grad_norm(const std::vector<Tensor>& parameters) {
  detail::require_whole_gradients(parameters, "grad_norm");
  const NoGradGuard no_grad;
  return norm_of(detail::gradients_by_device(parameters));
}

GradNorm clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, bool error_if_nonfinite) {
  LOCKSTEP_CHECK(max_norm >= 0.0, "[clip_grad_norm_] expected max_norm >= 0, found {}", max_norm);
  detail::require_whole_gradients(parameters, "clip_grad_norm_");
  const NoGradGuard no_grad;
  const std::vector<Gradients> by_device = detail::gradients_by_device(parameters);
  Tensor norm;
  if (by_device.size() == 1) {
    norm = norm_and_factor(by_device[0], max_norm);
  } else {  // several devices meet on the host
    const double value = norm_of(by_device);
    norm = tensor<double>({value, max_norm / (value + 1e-6)});
  }
  return detail::scale_to_norm(by_device, norm, error_if_nonfinite);
}

GradNorm detail::scale_to_norm(const std::vector<Gradients>& by_device, const Tensor& norm, bool error_if_nonfinite) {
  const GradNorm result(norm);
  LOCKSTEP_CHECK(!error_if_nonfinite || std::isfinite(static_cast<double>(result)),
                 "[clip_grad_norm_] the norm of the gradients is {}; look for an overflow or a NaN in the loss",
                 static_cast<double>(result));
  for (const Gradients& gradients : by_device) {
    const Device device = gradients.front().device();
    bump_versions(gradients);
    scale_kernel(gradients.front())(gradients, norm.device() == device ? norm : move_values(norm, device));
  }
  return result;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, double limit) {
  LOCKSTEP_CHECK(limit >= 0.0, "[clip_grad_value_] expected limit >= 0, found {}", limit);
  detail::require_gradients(parameters, "clip_grad_value_", detail::GradientsInParts::Kind::elsewhere);
  const NoGradGuard no_grad;
  for (const Gradients& gradients : detail::gradients_by_device(parameters)) {
    bump_versions(gradients);
    clamp_kernel(gradients.front())(gradients, limit);
  }
}

namespace detail {

void zero_gradients(const std::vector<Tensor>& parameters, bool set_to_none) {
  for (const Tensor& p : parameters) {
    const Tensor grad = p.grad();
    if (!grad.defined()) continue;
    if (set_to_none) {
      p.set_grad({});
    } else {
      grad.storage()->bump_version();
      fill_values(grad, 0.0);
    }
  }
  clear_gradients_elsewhere(parameters, set_to_none);
}

std::vector<Gradients> gradients_by_device(const std::vector<Tensor>& parameters) {
  std::vector<Gradients> by_device;
  for (const Tensor& p : parameters) {
    Tensor grad = p.grad();
    if (!grad.defined() || grad.numel() == 0) continue;
    // Elements that share their memory would be changed together; expanded ones do, as gradients of sums are.
    if (strides_may_overlap(grad.sizes(), grad.strides())) p.set_grad(grad = copy_contiguous(grad));
    Gradients* same = nullptr;
    for (Gradients& gradients : by_device)
      if (gradients.front().device() == grad.device()) same = &gradients;
    if (!same) same = &by_device.emplace_back();
    same->push_back(grad);
  }
  return by_device;
}

}  // namespace detail
}  // namespace lockstep::optim

namespace lockstep::nn::utils {

Tensor parameters_to_vector(const std::vector<Tensor>& parameters) {
  LOCKSTEP_CHECK(!parameters.empty(), "[parameters_to_vector] expected at least one parameter");
  std::vector<Tensor> flat;
  for (const Tensor& parameter : parameters) flat.push_back(parameter.reshape({-1}));
  return cat(flat);
}

void vector_to_parameters(const Tensor& vector, const std::vector<Tensor>& parameters) {
  std::int64_t count = 0;
  for (const Tensor& parameter : parameters) count += parameter.numel();
  LOCKSTEP_CHECK(vector.defined() && vector.dim() == 1 && vector.numel() == count,
                 "[vector_to_parameters] expected a vector of {} elements, found {}", count,
                 vector.defined() ? to_string(vector.sizes()) : "an undefined tensor");
  const NoGradGuard no_grad;
  std::int64_t first = 0;
  for (const Tensor& parameter : parameters) {
    parameter.copy_(vector.detach().narrow(0, first, parameter.numel()).view(parameter.sizes()));
    first += parameter.numel();
  }
}

}  // namespace lockstep::nn::utils
