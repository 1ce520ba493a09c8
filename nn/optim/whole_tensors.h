#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

/// Base of Adafactor and Muon alone; docs/own_optimizers.md says how to write one's own. Their formulas take norms or
/// products of whole parameters, and so run as operations on tensors, whose sums do not depend on the number of
/// threads. Where ZeRO, stages or divided layers leave a rank a part of a parameter, they throw Error.
template <typename Options, double Options::*kMomentum>
class WholeTensorOptimizer : public OptimizerWith<Options, kMomentum> {
 public:
  void step() override;
  /// Throws Error: such a step cannot be captured.
  void prepare_step() override;
  OptimizerState state() const override;
  bool is_elementwise() const override { return false; }

 protected:
  /// State tensors of a parameter by name, float for half types, else of its dtype; zero at first.
  using Sizes = std::vector<std::pair<std::string, Shape>>;
  virtual Sizes sizes_of_state(const Tensor& parameter) const = 0;
  /// The new value of a parameter, whose gradient and value, and the result, have the dtype of the state.
  virtual Tensor updated(std::size_t group, std::int64_t step, DType dtype, const Tensor& value, const Tensor& gradient,
                         const std::vector<Tensor>& state) const = 0;

 private:
  struct Kept {
    DType dtype;
    Device device;
    Shape sizes;
    std::vector<nn::NamedTensor> state;
  };

  int form_of(const Options&) const override { return 0; }
  std::vector<std::string> names_of_state(int) const override { return {}; }
  void scalars(std::size_t, std::int64_t, double*) const override {}
  void update(const Tensor&, const Optimizer::Plan&) override {}
  void keep_state() const;
  void check_in_place(std::size_t parameter) const;

  mutable std::vector<Kept> kept_;  // by parameter, made when it is needed
};

/// Options of Adafactor.
struct AdafactorOptions {
  double lr = 1e-2;           ///< limit of the step's length beside the parameter's
  double beta2_decay = -0.8;  ///< the mean of squares forgets t^beta2_decay of itself in step t
  double eps1 = -1.0;         ///< least root of a mean square; negative: the distance of 1 to the next number
  double eps2 = 1e-3;         ///< the parameter's length counts as no less
  double d = 1.0;             ///< steps whose length is over this are shortened to it
  double weight_decay = 0.0;  ///< each step also takes lr * weight_decay * parameter away
  bool maximize = false;      ///< steps go up the gradient, as if the loss were negated
};

/// Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost" (2018), with
/// torch.optim.Adafactor's formulas: of a matrix, or of each of many, the mean squares of rows and of columns are kept
/// instead of those of elements. Lengths are root mean squares:
///   v = lerp(v, g * g, t^beta2_decay), for matrices v = rows * columns / mean(rows);  u = g / max(sqrt(v), eps1);
///   p -= min(lr, 1 / sqrt(t)) * max(eps2, length(p)) * u / max(1, length(u) / d)
class Adafactor final : public WholeTensorOptimizer<AdafactorOptions, &AdafactorOptions::d> {
 public:
  /// Throws Error for options out of range.
  explicit Adafactor(std::vector<Tensor> parameters, AdafactorOptions options = {});
  /// Each group with its own options.
  explicit Adafactor(std::vector<ParamGroup<AdafactorOptions>> groups);

  const char* name() const override { return "Adafactor"; }

 private:
  void check(const AdafactorOptions& options) const override;
  std::map<std::string, double> settings(std::size_t group) const override;
  Sizes sizes_of_state(const Tensor& parameter) const override;
  Tensor updated(std::size_t group, std::int64_t step, DType dtype, const Tensor& value, const Tensor& gradient,
                 const std::vector<Tensor>& state) const override;
};

/// How Muon's step follows from the learning rate and the sizes of a matrix, [rows, columns].
enum class MuonScale : std::uint8_t {
  original,            ///< sqrt(max(1, rows / columns)) * lr
  match_rms_adamw,     ///< 0.2 * sqrt(max(rows, columns)) * lr: steps as long as AdamW's
  spectral_unclamped,  ///< sqrt(rows / columns) * lr
};

/// Options of Muon.
struct MuonOptions {
  double lr = 1e-3;                       ///< learning rate
  double weight_decay = 0.1;              ///< each step also takes lr * weight_decay * parameter away
  double momentum = 0.95;                 ///< share of the gradient's running mean that is kept
  bool nesterov = true;                   ///< the mean of the next step instead of this one's
  double a = 3.4445;                      ///< of x, in a Newton-Schulz step
  double b = -4.775;                      ///< of x x^T x
  double c = 2.0315;                      ///< of x x^T x x^T x
  double eps = 1e-7;                      ///< smallest norm that a mean is divided by
  std::int64_t ns_steps = 5;              ///< Newton-Schulz steps, at most 99
  MuonScale scale = MuonScale::original;  ///< see MuonScale; torch's adjust_lr_fn
};

/// Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), with torch.optim.Muon's formulas:
/// the running mean of a matrix's gradient, whose singular values are brought near 1:
///   m = lerp(m, g, 1 - momentum);  x = nesterov ? lerp(g, m, momentum) : m;  x = x / norm(x);
///   ns_steps times x = a x + (b x x^T + c (x x^T)^2) x;  p -= lr * weight_decay * p + scale(lr) * x
/// As there the Newton-Schulz steps are computed in bfloat16, whatever the parameter's dtype: a step has two or three
/// digits, and depends in the last of them on the device. For matrices of hidden layers; biases, embeddings and heads
/// are AdamW's, another optimizer beside this one.
class Muon final : public WholeTensorOptimizer<MuonOptions, &MuonOptions::momentum> {
 public:
  /// Throws Error for options out of range, and for a parameter that has not two dimensions.
  explicit Muon(std::vector<Tensor> parameters, MuonOptions options = {});
  /// Each group with its own options.
  explicit Muon(std::vector<ParamGroup<MuonOptions>> groups);

  const char* name() const override { return "Muon"; }

 private:
  void check(const MuonOptions& options) const override;
  std::map<std::string, double> settings(std::size_t group) const override;
  Sizes sizes_of_state(const Tensor& parameter) const override;
  Tensor updated(std::size_t group, std::int64_t step, DType dtype, const Tensor& value, const Tensor& gradient,
                 const std::vector<Tensor>& state) const override;
};

}  // namespace lockstep::optim
