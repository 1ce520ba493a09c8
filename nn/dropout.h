#pragma once

#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Drops elements with probability p while training, scales the others by 1 / (1 - p); see lockstep::dropout.
class Dropout : public Module {
 public:
  /// Throws Error unless 0 <= p <= 1.
  explicit Dropout(double p = 0.5);
  Dropout(Module* parent, std::string_view name, double p = 0.5);
  Tensor forward(Tensor x) override;
  /// For a layer that is divided over ranks: x is number `index` of `count` equal parts along `dim`, of which each
  /// rank's drops what the whole would.
  void set_part(int dim, std::int64_t index, std::int64_t count);

 private:
  double p_;
  int dim_ = -1;
  std::int64_t index_ = 0, count_ = 1;
};

/// Drops whole channels of [n, c, length]; see dropout1d().
class Dropout1d : public Module {
 public:
  /// Throws Error unless 0 <= p <= 1.
  explicit Dropout1d(double p = 0.5);
  Dropout1d(Module* parent, std::string_view name, double p = 0.5);
  Tensor forward(Tensor x) override;

 private:
  double p_;
};

/// Drops whole channels of [n, c, h, w]; see dropout2d().
class Dropout2d : public Module {
 public:
  /// Throws Error unless 0 <= p <= 1.
  explicit Dropout2d(double p = 0.5);
  Dropout2d(Module* parent, std::string_view name, double p = 0.5);
  Tensor forward(Tensor x) override;

 private:
  double p_;
};

/// Drops whole channels of [n, c, d, h, w]; see dropout3d().
class Dropout3d : public Module {
 public:
  /// Throws Error unless 0 <= p <= 1.
  explicit Dropout3d(double p = 0.5);
  Dropout3d(Module* parent, std::string_view name, double p = 0.5);
  Tensor forward(Tensor x) override;

 private:
  double p_;
};

/// Drops elements to the negative limit of SELU; see alpha_dropout().
class AlphaDropout : public Module {
 public:
  /// Throws Error unless 0 <= p <= 1.
  explicit AlphaDropout(double p = 0.5);
  AlphaDropout(Module* parent, std::string_view name, double p = 0.5);
  Tensor forward(Tensor x) override;

 private:
  double p_;
};

/// The same of whole channels of [n, c, ...]; see feature_alpha_dropout().
class FeatureAlphaDropout : public Module {
 public:
  /// Throws Error unless 0 <= p <= 1.
  explicit FeatureAlphaDropout(double p = 0.5);
  FeatureAlphaDropout(Module* parent, std::string_view name, double p = 0.5);
  Tensor forward(Tensor x) override;

 private:
  double p_;
};

}  // namespace lockstep::nn
