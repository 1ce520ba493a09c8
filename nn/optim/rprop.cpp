// Rprop and ASGD.

#include <algorithm>
#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/nn/optim/option_checks.h"
#include "lockstep/nn/optim/rmsprop.h"

namespace lockstep::optim {
namespace {

constexpr KernelTable<detail::RmspropKernel> rprop_kernel{"Rprop", detail::rprop_cpu,
                                                          LOCKSTEP_CUDA_KERNEL(detail::rprop_cuda)};
constexpr KernelTable<detail::RmspropKernel> asgd_kernel{"ASGD", detail::asgd_cpu,
                                                         LOCKSTEP_CUDA_KERNEL(detail::asgd_cuda)};

}  // namespace

Rprop::Rprop(std::vector<Tensor> parameters, RpropOptions options)
    : Rprop(std::vector<ParamGroup<RpropOptions>>{{std::move(parameters), options}}) {}

Rprop::Rprop(std::vector<ParamGroup<RpropOptions>> groups) {
  add_param_groups(std::move(groups));
}

void Rprop::check(const RpropOptions& options) const {
  check_lr(options.lr);
  LOCKSTEP_CHECK(
      options.eta_minus > 0.0 && options.eta_minus < 1.0 && options.eta_plus > 1.0 && std::isfinite(options.eta_plus),
      "[Rprop] expected 0 < eta_minus < 1 < eta_plus, found {} and {}", options.eta_minus, options.eta_plus);
  LOCKSTEP_CHECK(options.step_min >= 0.0 && options.step_min <= options.step_max && std::isfinite(options.step_max),
                 "[Rprop] expected 0 <= step_min <= step_max, found {} and {}", options.step_min, options.step_max);
}

std::vector<std::string> Rprop::names_of_state(int) const {
  return {"prev", "step_size"};
}

void Rprop::scalars(std::size_t group, std::int64_t step, double* out) const {
  const RpropOptions& o = options(group);
  out[0] = o.eta_minus;
  out[1] = o.eta_plus;
  out[2] = o.step_min;
  out[3] = o.step_max;
  out[4] = o.lr;
  out[5] = o.maximize ? -1.0 : 1.0;
  out[6] = step == 1 ? 1.0 : 0.0;
}

std::map<std::string, double> Rprop::settings(std::size_t group) const {
  const RpropOptions& o = options(group);
  return {{"eta_plus", o.eta_plus},
          {"step_min", o.step_min},
          {"step_max", o.step_max},
          {"maximize", o.maximize ? 1.0 : 0.0}};
}

void Rprop::update(const Tensor& like, const Plan& plan) {
  rprop_kernel(like)(plan);
}

ASGD::ASGD(std::vector<Tensor> parameters, ASGDOptions options)
    : ASGD(std::vector<ParamGroup<ASGDOptions>>{{std::move(parameters), options}}) {}

ASGD::ASGD(std::vector<ParamGroup<ASGDOptions>> groups) {
  add_param_groups(std::move(groups));
}

void ASGD::check(const ASGDOptions& options) const {
  check_lr(options.lr);
  for (const auto& [what, value] : {std::pair{"lambd", options.lambd},
                                    {"alpha", options.alpha},
                                    {"t0", options.t0},
                                    {"weight_decay", options.weight_decay}})
    check_at_least_zero("ASGD", what, value);
}

std::vector<std::string> ASGD::names_of_state(int) const {
  return {"ax"};
}

void ASGD::scalars(std::size_t group, std::int64_t step, double* out) const {
  const ASGDOptions& o = options(group);
  const double before = static_cast<double>(step - 1);
  const double rate = o.lr / math::portable_pow(1.0 + o.lambd * o.lr * before, o.alpha);
  // See SGD.
  out[0] = o.maximize ? -rate : rate;
  out[1] = o.maximize ? -o.weight_decay : o.weight_decay;
  out[2] = 1.0 - o.lambd * rate;
  out[3] = 1.0 / std::max(1.0, before - o.t0);
}

std::map<std::string, double> ASGD::settings(std::size_t group) const {
  const ASGDOptions& o = options(group);
  return {{"lambd", o.lambd}, {"t0", o.t0}, {"weight_decay", o.weight_decay}, {"maximize", o.maximize ? 1.0 : 0.0}};
}

void ASGD::update(const Tensor& like, const Plan& plan) {
  asgd_kernel(like)(plan);
}

}  // namespace lockstep::optim
