#include "lockstep/nn/optim/rmsprop.h"

#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/nn/optim/option_checks.h"

namespace lockstep::optim {
namespace {

constexpr KernelTable<detail::RmspropKernel> rmsprop_kernel{"RMSprop", detail::rmsprop_cpu,
                                                            LOCKSTEP_CUDA_KERNEL(detail::rmsprop_cuda)};
constexpr KernelTable<detail::RmspropKernel> adagrad_kernel{"Adagrad", detail::adagrad_cpu,
                                                            LOCKSTEP_CUDA_KERNEL(detail::adagrad_cuda)};
constexpr KernelTable<detail::RmspropKernel> adadelta_kernel{"Adadelta", detail::adadelta_cpu,
                                                             LOCKSTEP_CUDA_KERNEL(detail::adadelta_cuda)};

}  // namespace

RMSprop::RMSprop(std::vector<Tensor> parameters, RMSpropOptions options)
    : RMSprop(std::vector<ParamGroup<RMSpropOptions>>{{std::move(parameters), options}}) {}

RMSprop::RMSprop(std::vector<ParamGroup<RMSpropOptions>> groups) {
  add_param_groups(std::move(groups));
}

void RMSprop::check(const RMSpropOptions& options) const {
  check_lr(options.lr);
  check_at_least_zero("RMSprop", "alpha", options.alpha);
  check_at_least_zero("RMSprop", "eps", options.eps);
  check_at_least_zero("RMSprop", "weight_decay", options.weight_decay);
  check_at_least_zero("RMSprop", "momentum", options.momentum);
}

int RMSprop::form_of(const RMSpropOptions& options) const {
  if (options.centered) return options.momentum > 0.0 ? detail::kRmspropCenteredMomentum : detail::kRmspropCentered;
  return options.momentum > 0.0 ? detail::kRmspropMomentum : detail::kRmspropPlain;
}

std::vector<std::string> RMSprop::names_of_state(int form) const {
  std::vector<std::string> names{"square_avg"};
  if (form == detail::kRmspropCentered || form == detail::kRmspropCenteredMomentum) names.push_back("grad_avg");
  if (form == detail::kRmspropMomentum || form == detail::kRmspropCenteredMomentum) names.push_back("momentum_buffer");
  return names;
}

void RMSprop::scalars(std::size_t group, std::int64_t, double* out) const {
  const RMSpropOptions& o = options(group);
  // See SGD.
  out[0] = o.maximize ? -o.lr : o.lr;
  out[1] = o.maximize ? -o.weight_decay : o.weight_decay;
  out[2] = o.alpha;
  out[3] = 1.0 - o.alpha;
  out[4] = o.eps;
  out[5] = o.momentum;
}

std::map<std::string, double> RMSprop::settings(std::size_t group) const {
  const RMSpropOptions& o = options(group);
  return {{"alpha", o.alpha},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"centered", o.centered ? 1.0 : 0.0},
          {"maximize", o.maximize ? 1.0 : 0.0}};
}

void RMSprop::update(const Tensor& like, const Plan& plan) {
  rmsprop_kernel(like)(plan);
}

Adagrad::Adagrad(std::vector<Tensor> parameters, AdagradOptions options)
    : Adagrad(std::vector<ParamGroup<AdagradOptions>>{{std::move(parameters), options}}) {}

Adagrad::Adagrad(std::vector<ParamGroup<AdagradOptions>> groups) {
  add_param_groups(std::move(groups));
}

void Adagrad::check(const AdagradOptions& options) const {
  check_lr(options.lr);
  check_at_least_zero("Adagrad", "lr_decay", options.lr_decay);
  check_at_least_zero("Adagrad", "eps", options.eps);
  check_at_least_zero("Adagrad", "weight_decay", options.weight_decay);
}

std::vector<std::string> Adagrad::names_of_state(int) const {
  return {"sum"};
}

void Adagrad::scalars(std::size_t group, std::int64_t step, double* out) const {
  const AdagradOptions& o = options(group);
  const double lr = o.lr / (1.0 + static_cast<double>(step - 1) * o.lr_decay);
  out[0] = o.maximize ? -lr : lr;
  out[1] = o.maximize ? -o.weight_decay : o.weight_decay;
  out[2] = o.eps;
}

std::map<std::string, double> Adagrad::settings(std::size_t group) const {
  const AdagradOptions& o = options(group);
  return {{"eps", o.eps}, {"weight_decay", o.weight_decay}, {"maximize", o.maximize ? 1.0 : 0.0}};
}

void Adagrad::update(const Tensor& like, const Plan& plan) {
  adagrad_kernel(like)(plan);
}

Adadelta::Adadelta(std::vector<Tensor> parameters, AdadeltaOptions options)
    : Adadelta(std::vector<ParamGroup<AdadeltaOptions>>{{std::move(parameters), options}}) {}

Adadelta::Adadelta(std::vector<ParamGroup<AdadeltaOptions>> groups) {
  add_param_groups(std::move(groups));
}

void Adadelta::check(const AdadeltaOptions& options) const {
  check_lr(options.lr);
  check_at_least_zero("Adadelta", "eps", options.eps);
  check_at_least_zero("Adadelta", "weight_decay", options.weight_decay);
  LOCKSTEP_CHECK(options.rho >= 0.0 && options.rho <= 1.0, "[Adadelta] expected 0 <= rho <= 1, found {}", options.rho);
}

std::vector<std::string> Adadelta::names_of_state(int) const {
  return {"square_avg", "acc_delta"};
}

void Adadelta::scalars(std::size_t group, std::int64_t, double* out) const {
  const AdadeltaOptions& o = options(group);
  out[0] = o.maximize ? -o.lr : o.lr;
  out[1] = o.maximize ? -o.weight_decay : o.weight_decay;
  out[2] = o.rho;
  out[3] = 1.0 - o.rho;
  out[4] = o.eps;
}

std::map<std::string, double> Adadelta::settings(std::size_t group) const {
  const AdadeltaOptions& o = options(group);
  return {{"eps", o.eps}, {"weight_decay", o.weight_decay}, {"maximize", o.maximize ? 1.0 : 0.0}};
}

void Adadelta::update(const Tensor& like, const Plan& plan) {
  adadelta_kernel(like)(plan);
}

}  // namespace lockstep::optim
