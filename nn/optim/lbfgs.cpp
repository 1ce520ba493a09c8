#include <algorithm>
#include <cmath>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {
namespace {

double largest(const Tensor& x) {
  return x.abs().max().item<double>();
}

double product(const Tensor& a, const Tensor& b) {
  return a.dot(b).item<double>();
}

}  // namespace

LBFGS::LBFGS(std::vector<Tensor> parameters, LBFGSOptions options)
    : parameters_(std::move(parameters)), options_(options) {
  LOCKSTEP_CHECK(!parameters_.empty(), "[LBFGS] expected at least one parameter");
  for (const Tensor& parameter : parameters_) {
    LOCKSTEP_CHECK(parameter.defined() && parameter.is_floating_point() && parameter.is_leaf(),
                   "[LBFGS] expected parameters that are floating-point leaves");
    LOCKSTEP_CHECK(parameter.dtype() == parameters_[0].dtype() && parameter.device() == parameters_[0].device(),
                   "[LBFGS] expected parameters of one dtype on one device, found {} on {} and {} on {}",
                   lockstep::name(parameters_[0].dtype()), to_string(parameters_[0].device()),
                   lockstep::name(parameter.dtype()), to_string(parameter.device()));
  }
  LOCKSTEP_CHECK(std::isfinite(options_.lr) && options_.lr >= 0.0, "[LBFGS] expected a finite lr >= 0, found {}",
                 options_.lr);
  LOCKSTEP_CHECK(
      options_.max_iter > 0 && options_.max_eval >= 0 && options_.history_size > 0,
      "[LBFGS] expected positive max_iter and history_size and a max_eval of at least 0, found {}, {} and {}",
      options_.max_iter, options_.history_size, options_.max_eval);
}

void LBFGS::zero_grad(bool set_to_none) {
  const NoGradGuard values_only;
  for (const Tensor& parameter : parameters_) {
    if (set_to_none)
      parameter.set_grad({});
    else if (parameter.grad().defined())
      parameter.grad().zero_();
  }
}

Tensor LBFGS::gradient() const {
  std::vector<Tensor> parts;
  for (const Tensor& parameter : parameters_) {
    const Tensor grad = parameter.grad();
    parts.push_back(grad.defined() ? grad.detach().reshape({-1}) : zeros({parameter.numel()}, options_of(parameter)));
  }
  return cat(parts);
}

void LBFGS::move(const Tensor& direction, double length) const {
  std::int64_t first = 0;
  for (const Tensor& parameter : parameters_) {
    parameter.add_(direction.narrow(0, first, parameter.numel()).view(parameter.sizes()), length);
    first += parameter.numel();
  }
}

/// Minus the inverse curvature times the gradient, by the two loops over the history.
Tensor LBFGS::direction(const Tensor& gradient) {
  if (iterations_ == 1) return -gradient;
  const Tensor y = gradient - last_gradient_, s = direction_ * length_;
  if (const double ys = product(y, s); ys > 1e-10) {
    if (static_cast<std::int64_t>(changes_.size()) == options_.history_size) {
      changes_.erase(changes_.begin());
      gradient_changes_.erase(gradient_changes_.begin());
    }
    changes_.push_back(s);
    gradient_changes_.push_back(y);
    scale_ = ys / product(y, y);
  }
  Tensor d = -gradient;
  std::vector<double> weights(changes_.size()), rho(changes_.size());
  for (std::size_t i = changes_.size(); i-- > 0;) {
    rho[i] = 1.0 / product(gradient_changes_[i], changes_[i]);
    weights[i] = product(changes_[i], d) * rho[i];
    d = d.add(gradient_changes_[i], -weights[i]);
  }
  d = d * scale_;
  for (std::size_t i = 0; i < changes_.size(); ++i)
    d = d.add(changes_[i], weights[i] - product(gradient_changes_[i], d) * rho[i]);
  return d;
}

Tensor LBFGS::step(const std::function<Tensor()>& closure) {
  const auto evaluate = [&] {
    const EnableGradGuard recording;
    return closure();
  };
  const NoGradGuard values_only;
  const std::int64_t most_calls = options_.max_eval > 0 ? options_.max_eval : options_.max_iter * 5 / 4;
  Tensor first = evaluate();
  LOCKSTEP_CHECK(first.defined() && first.numel() == 1, "[LBFGS] expected a closure that returns the loss");
  double loss = first.item<double>();
  Tensor grad = gradient();
  std::int64_t calls = 1;
  if (largest(grad) <= options_.tolerance_grad) return first;
  for (std::int64_t i = 1; i <= options_.max_iter; ++i) {
    ++iterations_;
    direction_ = direction(grad);
    last_gradient_ = grad;
    const double last_loss = loss;
    length_ = iterations_ == 1 ? std::min(1.0, 1.0 / grad.abs().sum().item<double>()) * options_.lr : options_.lr;
    if (product(grad, direction_) > -options_.tolerance_change) break;
    move(direction_, length_);
    if (i == options_.max_iter) break;
    loss = evaluate().item<double>();
    grad = gradient();
    if (++calls >= most_calls || largest(grad) <= options_.tolerance_grad ||
        largest(direction_) * length_ <= options_.tolerance_change ||
        std::fabs(loss - last_loss) < options_.tolerance_change)
      break;
  }
  return first;
}

}  // namespace lockstep::optim
