#include "nn/optim/adam.h"

#include "core/check.h"
#include "core/kernel_table.h"

namespace lockstep::optim {
namespace {

constexpr KernelTable<detail::AdamKernel> adam_kernel{"Adam", detail::adam_cpu};

void check_beta(const char* type, const char* which, double value) {
  LOCKSTEP_CHECK(value >= 0.0 && value < 1.0, "[{}] expected 0 <= {} < 1, found {}", type, which, value);
}

}  // namespace

Adam::Adam(std::vector<Tensor> parameters, AdamOptions options, bool decoupled)
    : Optimizer(std::move(parameters), options.lr, {"exp_avg", "exp_avg_sq"}, decoupled ? "AdamW" : "Adam"),
      options_(options),
      decoupled_(decoupled) {
  const char* type = decoupled ? "AdamW" : "Adam";
  check_beta(type, "beta1", options.beta1);
  check_beta(type, "beta2", options.beta2);
  LOCKSTEP_CHECK(options.eps >= 0.0, "[{}] expected eps >= 0, found {}", type, options.eps);
  LOCKSTEP_CHECK(options.weight_decay >= 0.0, "[{}] expected weight_decay >= 0, found {}", type, options.weight_decay);
}

Adam::Adam(std::vector<Tensor> parameters, AdamOptions options) : Adam(std::move(parameters), options, false) {}

AdamW::AdamW(std::vector<Tensor> parameters, AdamWOptions options)
    : Adam(std::move(parameters),
           {.lr = options.lr,
            .beta1 = options.beta1,
            .beta2 = options.beta2,
            .eps = options.eps,
            .weight_decay = options.weight_decay},
           true) {}

void Adam::set_momentum(double value) {
  check_beta(name(), "beta1", value);
  options_.beta1 = value;
}

void Adam::update(const Tensor& like, const std::vector<Run>& runs) {
  AdamOptions options = options_;
  options.lr = lr();
  adam_kernel(like)(like.dtype(), runs, options, decoupled_);
}

}  // namespace lockstep::optim
