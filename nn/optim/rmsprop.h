#pragma once

#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

/// Options of RMSprop.
struct RMSpropOptions {
  double lr = 1e-2;           ///< learning rate
  double alpha = 0.99;        ///< decay of the squared gradient's running mean
  double eps = 1e-8;          ///< added to its root
  double weight_decay = 0.0;  ///< times the parameter, added to its gradient
  double momentum = 0.0;      ///< share of the last step that is kept; 0: none is stored
  bool centered = false;      ///< subtract the square of the gradient's running mean under the root
  bool maximize = false;      ///< steps go up the gradient, as if the loss were negated
};

/// Hinton's RMSprop (lecture 6e of "Neural networks for machine learning", 2012) with torch.optim.RMSprop's formulas:
///   g = grad + weight_decay * p;  v = alpha * v + (1 - alpha) * g * g;  m = alpha * m + (1 - alpha) * g (centered);
///   d = g / (sqrt(v - m * m) + eps);  b = momentum * b + d;  p -= lr * (momentum ? b : d)
class RMSprop final : public OptimizerWith<RMSpropOptions, &RMSpropOptions::momentum> {
 public:
  /// Throws Error for options out of range.
  explicit RMSprop(std::vector<Tensor> parameters, RMSpropOptions options = {});
  /// Each group with its own options.
  explicit RMSprop(std::vector<ParamGroup<RMSpropOptions>> groups);

  const char* name() const override { return "RMSprop"; }

 private:
  void check(const RMSpropOptions& options) const override;
  int form_of(const RMSpropOptions& options) const override;
  std::vector<std::string> names_of_state(int form) const override;
  void scalars(std::size_t group, std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  std::map<std::string, double> settings(std::size_t group) const override;
};

/// Options of Adagrad.
struct AdagradOptions {
  double lr = 1e-2;           ///< learning rate
  double lr_decay = 0.0;      ///< the rate of step t is lr / (1 + (t - 1) * lr_decay)
  double weight_decay = 0.0;  ///< times the parameter, added to its gradient
  double eps = 1e-10;         ///< added to the root of the sum of squares
  bool maximize = false;      ///< steps go up the gradient, as if the loss were negated
};

/// Duchi, Hazan and Singer, "Adaptive subgradient methods" (2011), with torch.optim.Adagrad's formulas:
///   g = grad + weight_decay * p;  s = s + g * g;  p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
class Adagrad final : public OptimizerWith<AdagradOptions, &AdagradOptions::lr_decay> {
 public:
  /// Throws Error for options out of range.
  explicit Adagrad(std::vector<Tensor> parameters, AdagradOptions options = {});
  /// Each group with its own options.
  explicit Adagrad(std::vector<ParamGroup<AdagradOptions>> groups);

  const char* name() const override { return "Adagrad"; }

 private:
  void check(const AdagradOptions& options) const override;
  int form_of(const AdagradOptions&) const override { return 0; }
  std::vector<std::string> names_of_state(int form) const override;
  void scalars(std::size_t group, std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  std::map<std::string, double> settings(std::size_t group) const override;
};

/// Options of Adadelta.
struct AdadeltaOptions {
  double lr = 1.0;            ///< factor of the step
  double rho = 0.9;           ///< decay of both running means
  double eps = 1e-6;          ///< added to both under their roots
  double weight_decay = 0.0;  ///< times the parameter, added to its gradient
  bool maximize = false;      ///< steps go up the gradient, as if the loss were negated
};

/// Zeiler, "ADADELTA" (2012), with torch.optim.Adadelta's formulas:
///   g = grad + weight_decay * p;  v = rho * v + (1 - rho) * g * g;  d = sqrt(u + eps) / sqrt(v + eps) * g;
///   u = rho * u + (1 - rho) * d * d;  p -= lr * d
class Adadelta final : public OptimizerWith<AdadeltaOptions, &AdadeltaOptions::rho> {
 public:
  /// Throws Error for options out of range.
  explicit Adadelta(std::vector<Tensor> parameters, AdadeltaOptions options = {});
  /// Each group with its own options.
  explicit Adadelta(std::vector<ParamGroup<AdadeltaOptions>> groups);

  const char* name() const override { return "Adadelta"; }

 private:
  void check(const AdadeltaOptions& options) const override;
  int form_of(const AdadeltaOptions&) const override { return 0; }
  std::vector<std::string> names_of_state(int form) const override;
  void scalars(std::size_t group, std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  std::map<std::string, double> settings(std::size_t group) const override;
};

/// Options of Rprop.
struct RpropOptions {
  double lr = 1e-2;        ///< length of each element's first step; later ones follow from it
  double eta_minus = 0.5;  ///< what the length is multiplied by where the gradient's sign has changed
  double eta_plus = 1.2;   ///< and where it is the same as before
  double step_min = 1e-6;  ///< shortest step
  double step_max = 50.0;  ///< longest step
  bool maximize = false;   ///< steps go up the gradient, as if the loss were negated
};

/// Riedmiller and Braun, "A direct adaptive method for faster backpropagation learning: the RPROP algorithm" (1993),
/// with torch.optim.Rprop's formulas, for gradients of a whole data set, of which only signs count:
///   c = g * last;  s = clamp(s * (c > 0 ? eta_plus : c < 0 ? eta_minus : 1), step_min, step_max);
///   g = c < 0 ? 0 : g;  p -= s * sign(g);  last = g
class Rprop final : public OptimizerWith<RpropOptions, &RpropOptions::eta_minus> {
 public:
  /// Throws Error for options out of range.
  explicit Rprop(std::vector<Tensor> parameters, RpropOptions options = {});
  /// Each group with its own options.
  explicit Rprop(std::vector<ParamGroup<RpropOptions>> groups);

  const char* name() const override { return "Rprop"; }

 private:
  void check(const RpropOptions& options) const override;
  int form_of(const RpropOptions&) const override { return 0; }
  std::vector<std::string> names_of_state(int form) const override;
  void scalars(std::size_t group, std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  std::map<std::string, double> settings(std::size_t group) const override;
};

/// Options of ASGD.
struct ASGDOptions {
  double lr = 1e-2;           ///< learning rate of the first step
  double lambd = 1e-4;        ///< how fast the rate falls; each step also takes rate * lambd * parameter away
  double alpha = 0.75;        ///< power of the fall
  double t0 = 1e6;            ///< the step after which parameters are averaged
  double weight_decay = 0.0;  ///< times the parameter, added to its gradient
  bool maximize = false;      ///< steps go up the gradient, as if the loss were negated
};

/// Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992), with torch.optim.ASGD's
/// formulas:
///   r = lr / (1 + lambd * lr * (t - 1))^alpha;  p -= r * (lambd * p + grad + weight_decay * p);
///   a += (p - a) / max(1, t - 1 - t0)
/// state() has the average as "ax". A learning rate that a schedule sets counts in the next step; PyTorch's counts in
/// the one after it.
class ASGD final : public OptimizerWith<ASGDOptions, &ASGDOptions::alpha> {
 public:
  /// Throws Error for options out of range.
  explicit ASGD(std::vector<Tensor> parameters, ASGDOptions options = {});
  /// Each group with its own options.
  explicit ASGD(std::vector<ParamGroup<ASGDOptions>> groups);

  const char* name() const override { return "ASGD"; }

 private:
  void check(const ASGDOptions& options) const override;
  int form_of(const ASGDOptions&) const override { return 0; }
  std::vector<std::string> names_of_state(int form) const override;
  void scalars(std::size_t group, std::int64_t step, double* out) const override;
  void update(const Tensor& like, const Plan& plan) override;
  std::map<std::string, double> settings(std::size_t group) const override;
};

namespace detail {
enum RmspropForm { kRmspropPlain, kRmspropMomentum, kRmspropCentered, kRmspropCenteredMomentum };
using RmspropKernel = void(const Optimizer::Plan& plan);
RmspropKernel rmsprop_cpu, rmsprop_cuda, adagrad_cpu, adagrad_cuda, adadelta_cpu, adadelta_cuda;
RmspropKernel rprop_cpu, rprop_cuda, asgd_cpu, asgd_cuda;
}  // namespace detail

}  // namespace lockstep::optim
