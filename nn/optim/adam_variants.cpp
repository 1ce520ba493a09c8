// NAdam, RAdam and Adamax.

#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/nn/optim/adam.h"
#include "lockstep/nn/optim/adam_options.h"
#include "lockstep/nn/optim/option_checks.h"

namespace lockstep::optim {
namespace {

constexpr KernelTable<detail::AdamKernel> nadam_kernel{"NAdam", detail::nadam_cpu,
                                                       LOCKSTEP_CUDA_KERNEL(detail::nadam_cuda)};
constexpr KernelTable<detail::AdamKernel> radam_kernel{"RAdam", detail::radam_cpu,
                                                       LOCKSTEP_CUDA_KERNEL(detail::radam_cuda)};
constexpr KernelTable<detail::AdamKernel> adamax_kernel{"Adamax", detail::adamax_cpu,
                                                        LOCKSTEP_CUDA_KERNEL(detail::adamax_cuda)};

double momentum_factor(double momentum_decay, std::int64_t step) {
  return 1.0 - 0.5 * math::portable_pow(0.96, static_cast<double>(step) * momentum_decay);
}

}  // namespace

NAdam::NAdam(std::vector<Tensor> parameters, NAdamOptions options)
    : NAdam(std::vector<ParamGroup<NAdamOptions>>{{std::move(parameters), options}}) {}

NAdam::NAdam(std::vector<ParamGroup<NAdamOptions>> groups) {
  add_param_groups(std::move(groups));
}

void NAdam::check(const NAdamOptions& options) const {
  check_lr(options.lr);
  detail::check_adam_options("NAdam", options);
  check_at_least_zero("NAdam", "momentum_decay", options.momentum_decay);
}

std::vector<std::string> NAdam::names_of_state(int) const {
  return {"exp_avg", "exp_avg_sq"};
}

double NAdam::product(double momentum_decay, std::int64_t step) const {
  std::vector<double>& products = products_[momentum_decay];
  while (static_cast<std::int64_t>(products.size()) < step) {
    const double before = products.empty() ? 1.0 : products.back();
    const double factor = momentum_factor(momentum_decay, static_cast<std::int64_t>(products.size()) + 1);
    if (before == 0.0 || factor == 1.0) return before;  // nothing changes any more
    products.push_back(before * factor);
  }
  return products[static_cast<std::size_t>(step - 1)];
}

void NAdam::scalars(std::size_t group, std::int64_t step, double* out) const {
  const NAdamOptions& o = options(group);
  const double t = static_cast<double>(step);
  const double now = o.beta1 * momentum_factor(o.momentum_decay, step);
  const double next = o.beta1 * momentum_factor(o.momentum_decay, step + 1);
  const double product = math::portable_pow(o.beta1, t) * this->product(o.momentum_decay, step);
  // sqrt(v / c) + eps is (sqrt(v) + eps * sqrt(c)) / sqrt(c).
  const double root = std::sqrt(1.0 - math::portable_pow(o.beta2, t));
  out[0] = o.lr * (1.0 - now) / (1.0 - product) * root;
  out[1] = o.lr * next / (1.0 - product * next) * root;
  detail::put_adam_means(o, o.decoupled_weight_decay, o.eps * root, out + 2);
  if (!o.maximize) return;
  for (double* const number : {out, out + 1, out + 3}) *number = -*number;  // see SGD
}

std::map<std::string, double> NAdam::settings(std::size_t group) const {
  const NAdamOptions& o = options(group);
  return {{"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"momentum_decay", o.momentum_decay},
          {"decoupled_weight_decay", o.decoupled_weight_decay ? 1.0 : 0.0},
          {"maximize", o.maximize ? 1.0 : 0.0}};
}

void NAdam::update(const Tensor& like, const Plan& plan) {
  nadam_kernel(like)(plan);
}

RAdam::RAdam(std::vector<Tensor> parameters, RAdamOptions options)
    : RAdam(std::vector<ParamGroup<RAdamOptions>>{{std::move(parameters), options}}) {}

RAdam::RAdam(std::vector<ParamGroup<RAdamOptions>> groups) {
  add_param_groups(std::move(groups));
}

void RAdam::check(const RAdamOptions& options) const {
  check_lr(options.lr);
  detail::check_adam_options("RAdam", options);
}

std::vector<std::string> RAdam::names_of_state(int) const {
  return {"exp_avg", "exp_avg_sq"};
}

void RAdam::scalars(std::size_t group, std::int64_t step, double* out) const {
  const RAdamOptions& o = options(group);
  const double t = static_cast<double>(step), power = math::portable_pow(o.beta2, t);
  // The length of the moving average, and how far the variance of its root is from that of a long one.
  const double longest = 2.0 / (1.0 - o.beta2) - 1.0, length = longest - 2.0 * t * power / (1.0 - power);
  const bool adaptive = length > 5.0;
  double size = o.lr / (1.0 - math::portable_pow(o.beta1, t));
  if (adaptive)
    size *= std::sqrt((length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)) *
            std::sqrt(1.0 - power);
  out[0] = size;
  out[1] = adaptive ? 1.0 : 0.0;
  detail::put_adam_means(o, o.decoupled_weight_decay, o.eps, out + 2);
  if (!o.maximize) return;
  for (double* const number : {out, out + 3}) *number = -*number;  // see SGD
}

std::map<std::string, double> RAdam::settings(std::size_t group) const {
  const RAdamOptions& o = options(group);
  return {{"beta2", o.beta2},
          {"eps", o.eps},
          {"weight_decay", o.weight_decay},
          {"decoupled_weight_decay", o.decoupled_weight_decay ? 1.0 : 0.0},
          {"maximize", o.maximize ? 1.0 : 0.0}};
}

void RAdam::update(const Tensor& like, const Plan& plan) {
  radam_kernel(like)(plan);
}

Adamax::Adamax(std::vector<Tensor> parameters, AdamaxOptions options)
    : Adamax(std::vector<ParamGroup<AdamaxOptions>>{{std::move(parameters), options}}) {}

Adamax::Adamax(std::vector<ParamGroup<AdamaxOptions>> groups) {
  add_param_groups(std::move(groups));
}

void Adamax::check(const AdamaxOptions& options) const {
  check_lr(options.lr);
  detail::check_adam_options("Adamax", options);
}

std::vector<std::string> Adamax::names_of_state(int) const {
  return {"exp_avg", "exp_inf"};
}

void Adamax::scalars(std::size_t group, std::int64_t step, double* out) const {
  const AdamaxOptions& o = options(group);
  const double size = o.lr / (1.0 - math::portable_pow(o.beta1, static_cast<double>(step)));
  out[0] = o.maximize ? -size : size;
  out[1] = o.maximize ? -o.weight_decay : o.weight_decay;
  out[2] = o.beta1;
  out[3] = 1.0 - o.beta1;
  out[4] = o.beta2;
  out[5] = o.eps;
}

std::map<std::string, double> Adamax::settings(std::size_t group) const {
  const AdamaxOptions& o = options(group);
  return {{"beta2", o.beta2}, {"eps", o.eps}, {"weight_decay", o.weight_decay}, {"maximize", o.maximize ? 1.0 : 0.0}};
}

void Adamax::update(const Tensor& like, const Plan& plan) {
  adamax_kernel(like)(plan);
}

}  // namespace lockstep::optim
