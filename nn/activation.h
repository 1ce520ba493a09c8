#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops/interpolate/interpolate.h"
#include "lockstep/autograd/ops/norm/norm.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// The functions of the same names as modules, for Sequential.

/// max(x, 0), element by element; see relu().
class ReLU : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// x where x > 0, negative_slope * x elsewhere; see leaky_relu().
class LeakyReLU : public Module {
 public:
  explicit LeakyReLU(double negative_slope = 0.01) : negative_slope_(negative_slope) {}
  LeakyReLU(Module* parent, std::string_view name, double negative_slope = 0.01)
      : Module(parent, name), negative_slope_(negative_slope) {}
  Tensor forward(Tensor x) override;

 private:
  double negative_slope_;
};

/// x times the normal distribution function of x; see gelu().
class GELU : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// x * sigmoid(x); see silu().
class SiLU : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// Hyperbolic tangent, element by element.
class Tanh : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// 1 / (1 + exp(-x)), element by element.
class Sigmoid : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// exp(x) divided by its sum over `dim`; see softmax().
class Softmax : public Module {
 public:
  explicit Softmax(std::int64_t dim = -1) : dim_(dim) {}
  Softmax(Module* parent, std::string_view name, std::int64_t dim = -1) : Module(parent, name), dim_(dim) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t dim_;
};

/// Merges dimensions start_dim to end_dim; by default all but the batch.
class Flatten : public Module {
 public:
  explicit Flatten(std::int64_t start_dim = 1, std::int64_t end_dim = -1) : start_dim_(start_dim), end_dim_(end_dim) {}
  Flatten(Module* parent, std::string_view name, std::int64_t start_dim = 1, std::int64_t end_dim = -1)
      : Module(parent, name), start_dim_(start_dim), end_dim_(end_dim) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t start_dim_;
  std::int64_t end_dim_;
};

/// x / (1 + |x|); see softsign().
class Softsign : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// x relu6(x + 3) / 6; see hardswish().
class Hardswish : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// relu6(x + 3) / 6; see hardsigmoid().
class Hardsigmoid : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// x tanh(softplus(x)); see mish().
class Mish : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// log(sigmoid(x)); see logsigmoid().
class LogSigmoid : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// x clamped to [0, 6]; see relu6().
class ReLU6 : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// elu() that keeps mean and variance; see selu().
class SELU : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// x above 0, alpha (exp(x) - 1) below; see elu().
class ELU : public Module {
 public:
  explicit ELU(double alpha = 1.0) : alpha_(alpha) {}
  ELU(Module* parent, std::string_view name, double alpha = 1.0) : Module(parent, name), alpha_(alpha) {}
  Tensor forward(Tensor x) override;

 private:
  double alpha_;
};

/// x above 0, alpha (exp(x / alpha) - 1) below; see celu().
class CELU : public Module {
 public:
  explicit CELU(double alpha = 1.0) : alpha_(alpha) {}
  CELU(Module* parent, std::string_view name, double alpha = 1.0) : Module(parent, name), alpha_(alpha) {}
  Tensor forward(Tensor x) override;

 private:
  double alpha_;
};

/// log(1 + exp(beta x)) / beta; see softplus().
class Softplus : public Module {
 public:
  explicit Softplus(double beta = 1.0, double threshold = 20.0) : beta_(beta), threshold_(threshold) {}
  Softplus(Module* parent, std::string_view name, double beta = 1.0, double threshold = 20.0)
      : Module(parent, name), beta_(beta), threshold_(threshold) {}
  Tensor forward(Tensor x) override;

 private:
  double beta_;
  double threshold_;
};

/// x clamped to [min, max]; see hardtanh().
class Hardtanh : public Module {
 public:
  explicit Hardtanh(double min = -1.0, double max = 1.0) : min_(min), max_(max) {}
  Hardtanh(Module* parent, std::string_view name, double min = -1.0, double max = 1.0)
      : Module(parent, name), min_(min), max_(max) {}
  Tensor forward(Tensor x) override;

 private:
  double min_;
  double max_;
};

/// The logarithm of softmax() over `dim`; see log_softmax().
class LogSoftmax : public Module {
 public:
  explicit LogSoftmax(std::int64_t dim = -1) : dim_(dim) {}
  LogSoftmax(Module* parent, std::string_view name, std::int64_t dim = -1) : Module(parent, name), dim_(dim) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t dim_;
};

/// softmax() of -x over `dim`; see softmin().
class Softmin : public Module {
 public:
  explicit Softmin(std::int64_t dim = -1) : dim_(dim) {}
  Softmin(Module* parent, std::string_view name, std::int64_t dim = -1) : Module(parent, name), dim_(dim) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t dim_;
};

/// The first half of `dim` times the sigmoid of the second. Dauphin et al., "Language modeling with gated convolutional
/// networks" (2017).
class GLU : public Module {
 public:
  explicit GLU(std::int64_t dim = -1) : dim_(dim) {}
  GLU(Module* parent, std::string_view name, std::int64_t dim = -1) : Module(parent, name), dim_(dim) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t dim_;
};

/// x where positive, weight x elsewhere, with one learned weight or one for each channel (dimension 1). He et al.,
/// "Delving deep into rectifiers" (2015).
class PReLU : public Module {
 public:
  explicit PReLU(std::int64_t channels = 1, double start = 0.25);
  PReLU(Module* parent, std::string_view name, std::int64_t channels = 1, double start = 0.25);
  Tensor forward(Tensor x) override;

  Parameter weight;  ///< [channels]
};

/// A dimension cut into these sizes, of which one may be -1; see lockstep::unflatten().
class Unflatten : public Module {
 public:
  Unflatten(std::int64_t dim, Shape sizes) : dim_(dim), sizes_(sizes) {}
  Unflatten(Module* parent, std::string_view name, std::int64_t dim, Shape sizes)
      : Module(parent, name), dim_(dim), sizes_(sizes) {}
  Tensor forward(Tensor x) override;

 private:
  std::int64_t dim_;
  Shape sizes_;
};

/// Returns its input.
class Identity : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};

/// x above the threshold, `value` elsewhere; see threshold().
class Threshold : public Module {
 public:
  Threshold(double threshold, double value) : threshold_(threshold), value_(value) {}
  Threshold(Module* parent, std::string_view name, double threshold, double value)
      : Module(parent, name), threshold_(threshold), value_(value) {}
  Tensor forward(Tensor x) override;

 private:
  double threshold_;
  double value_;
};
/// x - tanh(x).
class Tanhshrink : public Module {
 public:
  using Module::Module;
  Tensor forward(Tensor x) override;
};
/// x moved by lambd towards 0; see softshrink().
class Softshrink : public Module {
 public:
  explicit Softshrink(double lambd = 0.5) : lambd_(lambd) {}
  Softshrink(Module* parent, std::string_view name, double lambd = 0.5) : Module(parent, name), lambd_(lambd) {}
  Tensor forward(Tensor x) override;

 private:
  double lambd_;
};
/// x, but 0 within lambd of 0; see hardshrink().
class Hardshrink : public Module {
 public:
  explicit Hardshrink(double lambd = 0.5) : lambd_(lambd) {}
  Hardshrink(Module* parent, std::string_view name, double lambd = 0.5) : Module(parent, name), lambd_(lambd) {}
  Tensor forward(Tensor x) override;

 private:
  double lambd_;
};

/// PyTorch's torch.nn.functional: `namespace F = lockstep::nn::functional; F::relu(x)`. Functions are in lockstep
/// itself.
namespace functional = ::lockstep;

}  // namespace lockstep::nn

namespace lockstep {

// As nn/loss.h: options by calls, for libtorch's functions.

/// Options of interpolate() by calls.
class InterpolateFuncOptions {
 public:
  InterpolateFuncOptions& mode(InterpolateMode value) {  ///< kNearest unless set
    value_.mode = value;
    return *this;
  }
  InterpolateFuncOptions& align_corners(bool value) {  ///< the corner pixels' centres stay where they are
    value_.align_corners = value;
    return *this;
  }
  InterpolateFuncOptions& recompute_scale_factor(bool value) {  ///< places follow from both sizes
    value_.recompute_scale_factor = value;
    return *this;
  }
  /// Rows and columns; of rows [n, c, w] the one length, of volumes three.
  InterpolateFuncOptions& size(const std::vector<std::int64_t>& value);
  /// One factor for each dimension; throws Error unless they are equal.
  InterpolateFuncOptions& scale_factor(const std::vector<double>& value);
  operator const InterpolateOptions&() const { return value_; }  ///< what has been set

 private:
  InterpolateOptions value_;
};
/// Options of pad() by calls.
class PadFuncOptions {
 public:
  PadFuncOptions(std::vector<std::int64_t> padding) : padding_(std::move(padding)) {}
  PadFuncOptions& mode(PadMode value) {  ///< what the padding holds
    mode_ = value;
    return *this;
  }
  PadFuncOptions& value(double value) {  ///< of constant padding
    value_ = value;
    return *this;
  }

 private:
  friend Tensor pad(const Tensor& x, const PadFuncOptions& options) {
    return pad(x, options.padding_, options.mode_, options.value_);
  }
  std::vector<std::int64_t> padding_;
  PadMode mode_ = PadMode::constant;
  double value_ = 0.0;
};
/// pad() with options by calls.
Tensor pad(const Tensor& x, const PadFuncOptions& options);
/// Options of normalize() by calls.
class NormalizeFuncOptions {
 public:
  NormalizeFuncOptions& p(double value) {  ///< order of the norm
    p_ = value;
    return *this;
  }
  NormalizeFuncOptions& dim(std::int64_t value) {  ///< along which norms are taken
    dim_ = value;
    return *this;
  }
  NormalizeFuncOptions& eps(double value) {  ///< the least norm that is divided by
    eps_ = value;
    return *this;
  }

 private:
  friend Tensor normalize(const Tensor& x, const NormalizeFuncOptions& options) {
    return normalize(x, options.p_, options.dim_, options.eps_);
  }
  double p_ = 2.0, eps_ = 1e-12;
  std::int64_t dim_ = 1;
};
/// normalize() with options by calls.
Tensor normalize(const Tensor& x, const NormalizeFuncOptions& options);

}  // namespace lockstep
