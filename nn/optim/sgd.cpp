#include "lockstep/nn/optim/sgd.h"

#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/nn/optim/option_checks.h"

namespace lockstep::optim {
namespace {

constexpr KernelTable<detail::SgdKernel> sgd_kernel{"SGD", detail::sgd_cpu, LOCKSTEP_CUDA_KERNEL(detail::sgd_cuda)};

}  // namespace

SGD::SGD(std::vector<Tensor> parameters, SGDOptions options)
    : SGD(std::vector<ParamGroup<SGDOptions>>{{std::move(parameters), options}}) {}

SGD::SGD(std::vector<ParamGroup<SGDOptions>> groups) {
  add_param_groups(std::move(groups));
}

void SGD::check(const SGDOptions& options) const {
  check_lr(options.lr);
  check_at_least_zero("SGD", "momentum", options.momentum);
  check_at_least_zero("SGD", "weight_decay", options.weight_decay);
  LOCKSTEP_CHECK(std::isfinite(options.dampening), "[SGD] expected a finite dampening, found {}", options.dampening);
  LOCKSTEP_CHECK(!options.nesterov || (options.momentum > 0.0 && options.dampening == 0.0),
                 "[SGD] nesterov needs momentum > 0 and dampening 0, found momentum {} and dampening {}",
                 options.momentum, options.dampening);
}

int SGD::form_of(const SGDOptions& options) const {
  if (options.momentum == 0.0) return detail::kSgdPlain;
  return options.nesterov ? detail::kSgdNesterov : detail::kSgdMomentum;
}

// A momentum that a schedule takes to 0 keeps its buffer.
bool SGD::fits(const SGDOptions& options, int form) const {
  return form_of(options) == form || (options.momentum == 0.0 && form == detail::kSgdMomentum);
}

std::vector<std::string> SGD::names_of_state(int form) const {
  return form == detail::kSgdPlain ? std::vector<std::string>{} : std::vector<std::string>{"momentum"};
}

void SGD::scalars(std::size_t group, std::int64_t step, double* out) const {
  const SGDOptions& o = options(group);
  // Of -g the formula, up to the signs of what it keeps, is that of g with another sign of the step and of the decay
  // that is added to it.
  out[0] = o.maximize ? -o.lr : o.lr;
  out[1] = o.maximize ? -o.weight_decay : o.weight_decay;
  out[2] = o.momentum;
  // The buffer is zero at first, so that a share of 1 makes the first value g itself, as PyTorch's.
  out[3] = step == 1 ? 1.0 : 1.0 - o.dampening;
}

std::map<std::string, double> SGD::settings(std::size_t group) const {
  const SGDOptions& o = options(group);
  return {{"dampening", o.dampening},
          {"weight_decay", o.weight_decay},
          {"nesterov", o.nesterov ? 1.0 : 0.0},
          {"maximize", o.maximize ? 1.0 : 0.0}};
}

void SGD::update(const Tensor& like, const Plan& plan) {
  sgd_kernel(like)(plan);
}

}  // namespace lockstep::optim
