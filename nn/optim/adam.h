#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

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
  bool maximize = false;      ///< steps go up the gradient, as if the loss were negated
};

/// Options of AdamW.
struct AdamWOptions {
  double lr = 1e-3;            ///< learning rate
  double beta1 = 0.9;          ///< decay of the gradient's running mean
  double beta2 = 0.999;        ///< decay of the squared gradient's running mean
  double eps = 1e-8;           ///< added to the root of the latter
  double weight_decay = 1e-2;  ///< each step also takes lr * weight_decay * parameter away
  bool amsgrad = false;        ///< see Adam
  bool maximize = false;       ///< steps go up the gradient, as if the loss were negated
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

/// Options of NAdam.
struct NAdamOptions {
  double lr = 2e-3;                     ///< learning rate
  double beta1 = 0.9;                   ///< limit of the gradient's momentum
  double beta2 = 0.999;                 ///< decay of the squared gradient's running mean
  double eps = 1e-8;                    ///< added to the root of the latter
  double weight_decay = 0.0;            ///< times the parameter, added to its gradient
  double momentum_decay = 4e-3;         ///< how fast the momentum comes near its limit
  bool decoupled_weight_decay = false;  ///< AdamW's decay instead
  bool maximize = false;                ///< steps go up the gradient, as if the loss were negated
};

/// Dozat, "Incorporating Nesterov momentum into Adam" (2016), with torch.optim.NAdam's formulas: Adam's m and v, and
///   u_t = beta1 * (1 - 0.96^(t * momentum_decay) / 2);  n = sqrt(v / (1 - beta2^t)) + eps;
///   p -= lr * ((1 - u_t) / (1 - u_1 ... u_t) * g + u_{t+1} / (1 - u_1 ... u_{t+1}) * m) / n
/// The products are of the present beta1.
class NAdam final : public OptimizerWith<NAdamOptions, &NAdamOptions::beta1> {
 public:
  /// As Adam's.
  explicit NAdam(std::vector<Tensor> parameters, NAdamOptions options = {});
  explicit NAdam(std::vector<ParamGroup<NAdamOptions>> groups);

  const char* name() const override { return "NAdam"; }

 private:
  void check(const NAdamOptions& options) const override;
  int form_of(const NAdamOptions&) const override { return 0; }
  std::vector<std::string> names_of_state(int form) const override;
  void scalars(std::size_t group, std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  std::map<std::string, double> settings(std::size_t group) const override;

  double product(double momentum_decay, std::int64_t step) const;
  /// The factors beside beta1 in u_1 ... u_t, multiplied, by momentum_decay and t; up to where they are 0.
  mutable std::map<double, std::vector<double>> products_;
};

/// Options of RAdam.
struct RAdamOptions {
  double lr = 1e-3;                     ///< learning rate
  double beta1 = 0.9;                   ///< decay of the gradient's running mean
  double beta2 = 0.999;                 ///< decay of the squared gradient's running mean
  double eps = 1e-8;                    ///< added to the root of the latter
  double weight_decay = 0.0;            ///< times the parameter, added to its gradient
  bool decoupled_weight_decay = false;  ///< AdamW's decay instead
  bool maximize = false;                ///< steps go up the gradient, as if the loss were negated
};

/// Liu et al., "On the variance of the adaptive learning rate and beyond" (2020), with torch.optim.RAdam's formulas:
/// Adam whose step is scaled by how much the running mean of squares can be trusted, and without that mean in the first
/// few steps.
class RAdam final : public OptimizerWith<RAdamOptions, &RAdamOptions::beta1> {
 public:
  /// As Adam's.
  explicit RAdam(std::vector<Tensor> parameters, RAdamOptions options = {});
  explicit RAdam(std::vector<ParamGroup<RAdamOptions>> groups);

  const char* name() const override { return "RAdam"; }

 private:
  void check(const RAdamOptions& options) const override;
  int form_of(const RAdamOptions&) const override { return 0; }
  std::vector<std::string> names_of_state(int form) const override;
  void scalars(std::size_t group, std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  std::map<std::string, double> settings(std::size_t group) const override;
};

/// Options of Adamax.
struct AdamaxOptions {
  double lr = 2e-3;           ///< learning rate
  double beta1 = 0.9;         ///< decay of the gradient's running mean
  double beta2 = 0.999;       ///< decay of the gradient's largest size
  double eps = 1e-8;          ///< added to the gradient's size
  double weight_decay = 0.0;  ///< times the parameter, added to its gradient
  bool maximize = false;      ///< steps go up the gradient, as if the loss were negated
};

/// Adam by the infinity norm, from the same paper, with torch.optim.Adamax's formulas:
///   u = max(beta2 * u, |g| + eps);  p -= lr / (1 - beta1^t) * m / u
class Adamax final : public OptimizerWith<AdamaxOptions, &AdamaxOptions::beta1> {
 public:
  /// As Adam's.
  explicit Adamax(std::vector<Tensor> parameters, AdamaxOptions options = {});
  explicit Adamax(std::vector<ParamGroup<AdamaxOptions>> groups);

  const char* name() const override { return "Adamax"; }

 private:
  void check(const AdamaxOptions& options) const override;
  int form_of(const AdamaxOptions&) const override { return 0; }
  std::vector<std::string> names_of_state(int form) const override;
  void scalars(std::size_t group, std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  std::map<std::string, double> settings(std::size_t group) const override;
};

namespace detail {
enum AdamForm { kAdamPlain, kAdamAmsgrad };
using AdamKernel = void(const Optimizer::Plan& plan);
AdamKernel adam_cpu, adam_cuda, nadam_cpu, nadam_cuda, radam_cpu, radam_cuda, adamax_cpu, adamax_cuda;
}  // namespace detail

}  // namespace lockstep::optim
