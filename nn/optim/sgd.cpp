#include "lockstep/nn/optim/sgd.h"

#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep::optim {
namespace {

constexpr KernelTable<detail::SgdKernel> sgd_kernel{"SGD", detail::sgd_cpu, LOCKSTEP_CUDA_KERNEL(detail::sgd_cuda)};

std::vector<std::string> state_names(const SGDOptions& options) {
  return options.momentum != 0.0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{};
}

void check_momentum(double value) {
  LOCKSTEP_CHECK(std::isfinite(value) && value >= 0.0, "[SGD] expected a finite momentum >= 0, found {}", value);
}

}  // namespace

SGD::SGD(std::vector<Tensor> parameters, SGDOptions options)
    : Optimizer(std::move(parameters), options.lr, state_names(options), "SGD"), options_(options) {
  check_momentum(options.momentum);
  LOCKSTEP_CHECK(std::isfinite(options.weight_decay) && options.weight_decay >= 0.0,
                 "[SGD] expected a finite weight_decay >= 0, found {}", options.weight_decay);
  LOCKSTEP_CHECK(std::isfinite(options.dampening), "[SGD] expected a finite dampening, found {}", options.dampening);
  LOCKSTEP_CHECK(!options.nesterov || (options.momentum > 0.0 && options.dampening == 0.0),
                 "[SGD] nesterov needs momentum > 0 and dampening 0, found momentum {} and dampening {}",
                 options.momentum, options.dampening);
}

void SGD::set_momentum(double value) {
  check_momentum(value);
  LOCKSTEP_CHECK(options_.momentum != 0.0 || value == 0.0,
                 "[SGD] momentum cannot be switched on later; construct the optimizer with momentum > 0");
  // Exactly 0 would read as "keeps no buffers"; the smallest number has the same effect and does not.
  options_.momentum = options_.momentum != 0.0 && value == 0.0 ? 5e-324 : value;
}

void SGD::scalars(std::int64_t step, double* out) const {
  out[0] = lr();
  out[1] = options_.weight_decay;
  out[2] = options_.momentum;
  // The buffer is zero at first, so that a share of 1 makes the first value g itself, as PyTorch's.
  out[3] = step == 1 ? 1.0 : 1.0 - options_.dampening;
}

std::map<std::string, double> SGD::settings() const {
  return {{"dampening", options_.dampening},
          {"weight_decay", options_.weight_decay},
          {"nesterov", options_.nesterov ? 1.0 : 0.0}};
}

void SGD::update(const Tensor& like, const Plan& plan) {
  sgd_kernel(like)(plan, options_.nesterov);
}

}  // namespace lockstep::optim
