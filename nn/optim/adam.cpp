#include "lockstep/nn/optim/adam.h"

#include <cmath>
#include <type_traits>

#include "lockstep/core/check.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep::optim {
namespace {

constexpr KernelTable<detail::AdamKernel> adam_kernel{"Adam", detail::adam_cpu,
                                                      LOCKSTEP_CUDA_KERNEL(detail::adam_cuda)};

}  // namespace

Adam::Adam(std::vector<Tensor> parameters, AdamOptions options)
    : Adam(std::vector<ParamGroup<AdamOptions>>{{std::move(parameters), options}}) {}

Adam::Adam(std::vector<ParamGroup<AdamOptions>> groups) {
  add_param_groups(std::move(groups));
}

AdamW::AdamW(std::vector<Tensor> parameters, AdamWOptions options)
    : AdamW(std::vector<ParamGroup<AdamWOptions>>{{std::move(parameters), options}}) {}

AdamW::AdamW(std::vector<ParamGroup<AdamWOptions>> groups) {
  add_param_groups(std::move(groups));
}

template <typename Options>
void AdamFamily<Options>::check(const Options& options) const {
  this->check_lr(options.lr);
  for (const auto& [which, value] : {std::pair{"beta1", options.beta1}, {"beta2", options.beta2}})
    LOCKSTEP_CHECK(value >= 0.0 && value < 1.0, "[{}] expected 0 <= {} < 1, found {}", this->name(), which, value);
  LOCKSTEP_CHECK(std::isfinite(options.eps) && options.eps >= 0.0, "[{}] expected a finite eps >= 0, found {}",
                 this->name(), options.eps);
  LOCKSTEP_CHECK(std::isfinite(options.weight_decay) && options.weight_decay >= 0.0,
                 "[{}] expected a finite weight_decay >= 0, found {}", this->name(), options.weight_decay);
}

template <typename Options>
int AdamFamily<Options>::form_of(const Options& options) const {
  return options.amsgrad ? detail::kAdamAmsgrad : detail::kAdamPlain;
}

template <typename Options>
std::vector<std::string> AdamFamily<Options>::names_of_state(int form) const {
  std::vector<std::string> names{"exp_avg", "exp_avg_sq"};
  if (form == detail::kAdamAmsgrad) names.push_back("max_exp_avg_sq");
  return names;
}

template <typename Options>
void AdamFamily<Options>::scalars(std::size_t group, std::int64_t step, double* out) const {
  constexpr bool kDecoupled = std::is_same_v<Options, AdamWOptions>;
  const Options& o = this->options(group);
  const double t = static_cast<double>(step);
  out[0] = o.lr / (1.0 - math::portable_pow(o.beta1, t));
  out[1] = 1.0 / std::sqrt(1.0 - math::portable_pow(o.beta2, t));
  out[2] = kDecoupled ? 1.0 - o.lr * o.weight_decay : 1.0;
  out[3] = kDecoupled ? 0.0 : o.weight_decay;
  out[4] = o.beta1;
  out[5] = 1.0 - o.beta1;
  out[6] = o.beta2;
  out[7] = 1.0 - o.beta2;
  out[8] = o.eps;
}

template <typename Options>
std::map<std::string, double> AdamFamily<Options>::settings(std::size_t group) const {
  const Options& o = this->options(group);
  return {{"beta2", o.beta2}, {"eps", o.eps}, {"weight_decay", o.weight_decay}, {"amsgrad", o.amsgrad ? 1.0 : 0.0}};
}

template <typename Options>
void AdamFamily<Options>::update(const Tensor& like, const Optimizer::Plan& plan) {
  adam_kernel(like)(plan);
}

template class AdamFamily<AdamOptions>;
template class AdamFamily<AdamWOptions>;

}  // namespace lockstep::optim
