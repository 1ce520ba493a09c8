#include "lockstep/nn/optim/adam.h"

#include <cmath>
#include <type_traits>

#include "lockstep/core/double_math.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/nn/optim/adam_options.h"

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
  detail::check_adam_options(this->name(), options);
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
  detail::put_adam_means(o, kDecoupled, o.eps, out + 2);
  if (o.maximize) {  // see SGD
    out[0] = -out[0];
    out[3] = -out[3];
  }
}

template <typename Options>
std::map<std::string, double> AdamFamily<Options>::settings(std::size_t group) const {
  const Options& o = this->options(group);
  return {{"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"amsgrad", o.amsgrad ? 1.0 : 0.0},
          {"maximize", o.maximize ? 1.0 : 0.0}};
}

template <typename Options>
void AdamFamily<Options>::update(const Tensor& like, const Optimizer::Plan& plan) {
  adam_kernel(like)(plan);
}

template class AdamFamily<AdamOptions>;
template class AdamFamily<AdamWOptions>;

}  // namespace lockstep::optim
