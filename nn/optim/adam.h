#pragma once

#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

/// Options of Adam.
struct AdamOptions {
  double lr = 1e-3;           ///< learning rate
  double beta1 = 0.9;         ///< decay of the gradient's running mean
  double beta2 = 0.999;       ///< decay of the squared gradient's running mean
  double eps = 1e-8;          ///< added to the root of the latter
  double weight_decay = 0.0;  ///< times the parameter, added to its gradient
  bool amsgrad = false;       ///< see Adam
};

/// Options of AdamW.
struct AdamWOptions {
  double lr = 1e-3;            ///< learning rate
  double beta1 = 0.9;          ///< decay of the gradient's running mean
  double beta2 = 0.999;        ///< decay of the squared gradient's running mean
  double eps = 1e-8;           ///< added to the root of the latter
  double weight_decay = 1e-2;  ///< each step also takes lr * weight_decay * parameter away
  bool amsgrad = false;        ///< see Adam
};

/// What Adam and AdamW share.
template <typename Options>
class AdamFamily : public OptimizerWith<Options, &Options::beta1> {
 protected:
  void check(const Options& options) const final;
  int form_of(const Options& options) const final;
  std::vector<std::string> names_of_state(int form) const final;
  void scalars(std::size_t group, std::int64_t step, double* out) const final;
  void update(const Tensor& like, const Optimizer::Plan& plan) final;
  std::map<std::string, double> settings(std::size_t group) const final;
};

extern template class AdamFamily<AdamOptions>;
extern template class AdamFamily<AdamWOptions>;

/// Kingma and Ba, "Adam" (2015), with torch.optim.Adam's formulas:
///   g = grad + weight_decay * p;  m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g * g;
///   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// where t counts the steps in which p had a gradient. With amsgrad (Reddi, Kale and Kumar, "On the convergence of Adam
/// and beyond", 2018) the root is that of the largest v so far.
class Adam final : public AdamFamily<AdamOptions> {
 public:
  /// Throws Error for options out of range.
  explicit Adam(std::vector<Tensor> parameters, AdamOptions options = {});
  /// Each group with its own options.
  explicit Adam(std::vector<ParamGroup<AdamOptions>> groups);

  const char* name() const override { return "Adam"; }
};

/// Loshchilov and Hutter, "Decoupled weight decay regularization" (2019): Adam in which the decay is
/// p *= 1 - lr * weight_decay, apart from the gradient. torch.optim.AdamW.
class AdamW final : public AdamFamily<AdamWOptions> {
 public:
  /// As Adam's.
  explicit AdamW(std::vector<Tensor> parameters, AdamWOptions options = {});
  explicit AdamW(std::vector<ParamGroup<AdamWOptions>> groups);

  const char* name() const override { return "AdamW"; }
};

namespace detail {
enum AdamForm { kAdamPlain, kAdamAmsgrad };
using AdamKernel = void(const Optimizer::Plan& plan);
AdamKernel adam_cpu, adam_cuda;
}  // namespace detail

}  // namespace lockstep::optim
