// Adafactor and Muon.

#include "lockstep/nn/optim/whole_tensors.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/profile.h"
#include "lockstep/nn/optim/gradients_in_parts.h"
#include "lockstep/nn/optim/option_checks.h"

namespace lockstep::optim {
namespace {

/// The distance of 1 to the next number.
double epsilon_of(DType dtype) {
  switch (dtype) {
    case kFloat64:
      return std::ldexp(1.0, -52);
    case kFloat16:
      return std::ldexp(1.0, -10);
    case kBFloat16:
      return std::ldexp(1.0, -7);
    default:
      return std::ldexp(1.0, -23);
  }
}

/// The root of the mean of squares.
double length_of(const Tensor& x) {
  return norm(x).item<double>() / std::sqrt(static_cast<double>(x.numel()));
}

/// a first + b second, computed in float32 and rounded once.
Tensor combined(double a, const Tensor& first, double b, const Tensor& second) {
  return (first.to(kFloat32) * a + second.to(kFloat32) * b).to(first.dtype());
}

}  // namespace

template <typename Options, double Options::*kMomentum>
void WholeTensorOptimizer<Options, kMomentum>::keep_state() const {
  const std::vector<Tensor>& parameters = this->parameters();
  for (std::size_t i = kept_.size(); i < parameters.size(); ++i) {
    const Tensor& p = parameters[i];
    Kept& kept = kept_.emplace_back(Kept{p.dtype(), p.device(), p.sizes(), {}});
    for (auto& [name, sizes] : sizes_of_state(p))
      kept.state.push_back(
          {fmt::format("{}.{}", name, i), zeros(sizes, {.dtype = this->state_dtype(p.dtype()), .device = p.device()})});
  }
}

template <typename Options, double Options::*kMomentum>
void WholeTensorOptimizer<Options, kMomentum>::check_in_place(std::size_t parameter) const {
  const Kept& kept = kept_[parameter];
  const Tensor& p = this->parameters()[parameter];
  LOCKSTEP_CHECK(p.dtype() == kept.dtype && p.device() == kept.device && p.sizes() == kept.sizes,
                 "[{}] parameter {} was {} {} on {} at its first step and is {} {} on {} now; move or cast the model "
                 "first, then construct the optimizer",
                 this->name(), parameter, lockstep::name(kept.dtype), to_string(kept.sizes), to_string(kept.device),
                 lockstep::name(p.dtype()), to_string(p.sizes()), to_string(p.device()));
}

template <typename Options, double Options::*kMomentum>
void WholeTensorOptimizer<Options, kMomentum>::step() {
  const NoGradGuard no_grad;
  const profile::Scope scope("optimizer", this->name());
  this->check_all_options();
  if (const Device device = this->parameters().front().device(); device.is_cuda() && cuda::is_capturing(device.index))
    prepare_step();
  for (const auto kind : {detail::GradientsInParts::Kind::part, detail::GradientsInParts::Kind::elsewhere})
    LOCKSTEP_CHECK(!detail::has_gradients_of(this->parameters(), kind),
                   "[{}] it takes norms or products of whole parameters, and the model is divided over ranks; expected "
                   "whole parameters and gradients here, or an optimizer that updates each element by itself, such as "
                   "AdamW",
                   this->name());
  keep_state();
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    check_in_place(i);
    const Tensor& p = this->parameters()[i];
    const Tensor grad = p.grad();
    if (!grad.defined() || p.numel() == 0) continue;
    std::vector<Tensor> state;
    for (const nn::NamedTensor& each : kept_[i].state) state.push_back(each.tensor);
    const DType wide = this->state_dtype(p.dtype());
    p.copy_(updated(this->group_of_parameters()[i], this->count_step(i), p.dtype(), p.detach().to(wide),
                    grad.detach().to(wide), state));
  }
}

template <typename Options, double Options::*kMomentum>
void WholeTensorOptimizer<Options, kMomentum>::prepare_step() {
  throw Error(fmt::format(
      "[{}] its step asks the device for norms, so it cannot be captured; make it outside of a capture", this->name()));
}

template <typename Options, double Options::*kMomentum>
OptimizerState WholeTensorOptimizer<Options, kMomentum>::state() const {
  keep_state();
  OptimizerState out = Optimizer::state();
  for (const Kept& kept : kept_) out.tensors.insert(out.tensors.end(), kept.state.begin(), kept.state.end());
  return out;
}

template class WholeTensorOptimizer<AdafactorOptions, &AdafactorOptions::d>;
template class WholeTensorOptimizer<MuonOptions, &MuonOptions::momentum>;

Adafactor::Adafactor(std::vector<Tensor> parameters, AdafactorOptions options)
    : Adafactor(std::vector<ParamGroup<AdafactorOptions>>{{std::move(parameters), options}}) {}

Adafactor::Adafactor(std::vector<ParamGroup<AdafactorOptions>> groups) {
  add_param_groups(std::move(groups));
}

void Adafactor::check(const AdafactorOptions& options) const {
  check_lr(options.lr);
  LOCKSTEP_CHECK(std::isfinite(options.beta2_decay) && options.beta2_decay <= 0.0,
                 "[Adafactor] expected a finite beta2_decay <= 0, found {}", options.beta2_decay);
  LOCKSTEP_CHECK(std::isfinite(options.eps1), "[Adafactor] expected a finite eps1, found {}", options.eps1);
  check_at_least_zero("Adafactor", "eps2", options.eps2);
  LOCKSTEP_CHECK(std::isfinite(options.d) && options.d >= 1.0, "[Adafactor] expected a finite d >= 1, found {}",
                 options.d);
  check_at_least_zero("Adafactor", "weight_decay", options.weight_decay);
}

std::map<std::string, double> Adafactor::settings(std::size_t group) const {
  const AdafactorOptions& o = options(group);
  return {{"beta2_decay", o.beta2_decay},
          {"eps1", o.eps1},
          {"eps2", o.eps2},
          {"weight_decay", o.weight_decay},
          {"maximize", o.maximize ? 1.0 : 0.0}};
}

Adafactor::Sizes Adafactor::sizes_of_state(const Tensor& parameter) const {
  Shape rows = parameter.sizes(), columns = rows;
  if (rows.dim() < 2) return {{"variance", rows}};
  rows[rows.dim() - 1] = 1;
  columns[columns.dim() - 2] = 1;
  return {{"row_var", rows}, {"col_var", columns}};
}

Tensor Adafactor::updated(std::size_t group, std::int64_t step, DType dtype, const Tensor& value,
                          const Tensor& gradient, const std::vector<Tensor>& state) const {
  const AdafactorOptions& o = options(group);
  const double t = static_cast<double>(step), eps1 = o.eps1 < 0.0 ? epsilon_of(dtype) : o.eps1;
  const double alpha = std::max(o.eps2, length_of(value)) * std::min(o.lr, 1.0 / std::sqrt(t));
  const double fresh = math::portable_pow(t, o.beta2_decay);
  const Tensor squares = square(gradient);
  Tensor mean_square = state[0];
  if (state.size() == 1) {
    state[0].lerp_(squares, fresh);
  } else {
    state[0].lerp_(mean(squares, {-1}, /*keepdim=*/true), fresh);
    state[1].lerp_(mean(squares, {-2}, /*keepdim=*/true), fresh);
    mean_square = state[0] * state[1] / clamp_min(mean(state[0], {-2}, /*keepdim=*/true), eps1);
  }
  const Tensor scaled = gradient * rsqrt(clamp_min(mean_square, eps1 * eps1));
  const double size = alpha / std::max(1.0, length_of(scaled) / o.d);
  return value * (1.0 - o.lr * o.weight_decay) - scaled * (o.maximize ? -size : size);
}

Muon::Muon(std::vector<Tensor> parameters, MuonOptions options)
    : Muon(std::vector<ParamGroup<MuonOptions>>{{std::move(parameters), options}}) {}

Muon::Muon(std::vector<ParamGroup<MuonOptions>> groups) {
  for (const ParamGroup<MuonOptions>& group : groups)
    for (const Tensor& parameter : group.params)
      LOCKSTEP_CHECK(!parameter.defined() || parameter.dim() == 2,
                     "[Muon] expected matrices, found a parameter of shape {}; give the others to an AdamW beside it",
                     to_string(parameter.sizes()));
  add_param_groups(std::move(groups));
}

void Muon::check(const MuonOptions& options) const {
  check_lr(options.lr);
  check_at_least_zero("Muon", "weight_decay", options.weight_decay);
  check_at_least_zero("Muon", "momentum", options.momentum);
  check_at_least_zero("Muon", "eps", options.eps);
  LOCKSTEP_CHECK(std::isfinite(options.a) && std::isfinite(options.b) && std::isfinite(options.c),
                 "[Muon] expected finite a, b and c, found {}, {} and {}", options.a, options.b, options.c);
  LOCKSTEP_CHECK(options.ns_steps >= 0 && options.ns_steps < 100, "[Muon] expected 0 <= ns_steps < 100, found {}",
                 options.ns_steps);
}

std::map<std::string, double> Muon::settings(std::size_t group) const {
  const MuonOptions& o = options(group);
  return {{"weight_decay", o.weight_decay},
          {"nesterov", o.nesterov ? 1.0 : 0.0},
          {"a", o.a},
          {"b", o.b},
          {"c", o.c},
          {"eps", o.eps},
          {"ns_steps", static_cast<double>(o.ns_steps)},
          {"scale", static_cast<double>(o.scale)}};
}

Muon::Sizes Muon::sizes_of_state(const Tensor& parameter) const {
  return {{"momentum_buffer", parameter.sizes()}};
}

Tensor Muon::updated(std::size_t group, std::int64_t, DType, const Tensor& value, const Tensor& gradient,
                     const std::vector<Tensor>& state) const {
  const MuonOptions& o = options(group);
  const double rows = static_cast<double>(value.size(0)), columns = static_cast<double>(value.size(1));
  state[0].lerp_(gradient, 1.0 - o.momentum);
  Tensor x = (o.nesterov ? lerp(gradient, state[0], o.momentum) : state[0]).to(kBFloat16);
  if (rows > columns) x = x.t();
  x = x / clamp_min(norm(x), o.eps);
  for (std::int64_t i = 0; i < o.ns_steps; ++i) {
    const Tensor gram = matmul(x, x.t());
    x = combined(o.a, x, 1.0, matmul(combined(o.b, gram, o.c, matmul(gram, gram)), x));
  }
  if (rows > columns) x = x.t();
  double lr = o.lr;
  if (o.scale == MuonScale::original) lr *= std::sqrt(std::max(1.0, rows / columns));
  if (o.scale == MuonScale::match_rms_adamw) lr *= 0.2 * std::sqrt(std::max(rows, columns));
  if (o.scale == MuonScale::spectral_unclamped) lr *= std::sqrt(rows / columns);
  return value * (1.0 - o.lr * o.weight_decay) - x.to(value.dtype()) * lr;
}

}  // namespace lockstep::optim
