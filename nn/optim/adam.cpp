#include "lockstep/nn/optim/adam.h"

#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep::optim {
namespace {

constexpr KernelTable<detail::AdamKernel> adam_kernel{"Adam", detail::adam_cpu,
                                                      LOCKSTEP_CUDA_KERNEL(detail::adam_cuda)};

void check_beta(const char* type, const char* which, double value) {
  LOCKSTEP_CHECK(value >= 0.0 && value < 1.0, "[{}] expected 0 <= {} < 1, found {}", type, which, value);
}

std::vector<std::string> state_names(bool amsgrad) {
  std::vector<std::string> names{"exp_avg", "exp_avg_sq"};
  if (amsgrad) names.push_back("max_exp_avg_sq");
  return names;
}

}  // namespace

Adam::Adam(std::vector<Tensor> parameters, AdamOptions options, bool decoupled)
    : Optimizer(std::move(parameters), options.lr, state_names(options.amsgrad), decoupled ? "AdamW" : "Adam"),
      options_(options),
      decoupled_(decoupled) {
  const char* type = decoupled ? "AdamW" : "Adam";
  check_beta(type, "beta1", options.beta1);
  check_beta(type, "beta2", options.beta2);
  LOCKSTEP_CHECK(std::isfinite(options.eps) && options.eps >= 0.0, "[{}] expected a finite eps >= 0, found {}", type,
                 options.eps);
  LOCKSTEP_CHECK(std::isfinite(options.weight_decay) && options.weight_decay >= 0.0,
                 "[{}] expected a finite weight_decay >= 0, found {}", type, options.weight_decay);
}

Adam::Adam(std::vector<Tensor> parameters, AdamOptions options) : Adam(std::move(parameters), options, false) {}

AdamW::AdamW(std::vector<Tensor> parameters, AdamWOptions options)
    : Adam(std::move(parameters),
           {.lr = options.lr,
            .beta1 = options.beta1,
            .beta2 = options.beta2,
            .eps = options.eps,
            .weight_decay = options.weight_decay,
            .amsgrad = options.amsgrad},
           true) {}

void Adam::set_momentum(double value) {
  check_beta(name(), "beta1", value);
  options_.beta1 = value;
}

void Adam::scalars(std::int64_t step, double* out) const {
  const double t = static_cast<double>(step);
  out[0] = lr() / (1.0 - std::pow(options_.beta1, t));
  out[1] = 1.0 / std::sqrt(1.0 - std::pow(options_.beta2, t));
  out[2] = decoupled_ ? 1.0 - lr() * options_.weight_decay : 1.0;
  out[3] = decoupled_ ? 0.0 : options_.weight_decay;
  out[4] = options_.beta1;
  out[5] = 1.0 - options_.beta1;
  out[6] = options_.beta2;
  out[7] = 1.0 - options_.beta2;
  out[8] = options_.eps;
}

std::map<std::string, double> Adam::settings() const {
  return {{"beta2", options_.beta2},
          {"eps", options_.eps},
          {"weight_decay", options_.weight_decay},
          {"amsgrad", options_.amsgrad ? 1.0 : 0.0}};
}

void Adam::update(const Tensor& like, const Plan& plan) {
  adam_kernel(like)(plan);
}

}  // namespace lockstep::optim
