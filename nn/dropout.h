#pragma once

#include <cstdint>
#include <functional>

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
  /// Where a part begins, and the size of the whole.
  struct Place {
    std::int64_t first = 0;  ///< position of the part's first element along `dim`
    std::int64_t size = 0;   ///< elements of the whole along `dim`
  };
  /// The same for parts of any sizes: `place` finds that of a part of so many elements along `dim`.
  void set_part(int dim, std::function<Place(std::int64_t own)> place);

 private:
  double p_;
  int dim_ = -1;
  std::function<Place(std::int64_t own)> place_;
};

/// A layer that drops by a function of the tensor: function(x, p, training).
class DropoutByFunction : public Module {
 public:
  Tensor forward(Tensor x) override;

 protected:
  using Function = Tensor (*)(const Tensor& x, double p, bool training);
  /// Throws Error, naming `layer`, unless 0 <= p <= 1.
  DropoutByFunction(Module* parent, std::string_view name, double p, Function function, const char* layer);

 private:
  double p_;
  Function function_;
};

/// Drops whole channels of [n, c, length]; see dropout1d(). Throws Error unless 0 <= p <= 1, as those below.
class Dropout1d : public DropoutByFunction {
 public:
  explicit Dropout1d(double p = 0.5);
  Dropout1d(Module* parent, std::string_view name, double p = 0.5);
};
/// Drops whole channels of [n, c, h, w]; see dropout2d().
class Dropout2d : public DropoutByFunction {
 public:
  explicit Dropout2d(double p = 0.5);
  Dropout2d(Module* parent, std::string_view name, double p = 0.5);
};
/// Drops whole channels of [n, c, d, h, w]; see dropout3d().
class Dropout3d : public DropoutByFunction {
 public:
  explicit Dropout3d(double p = 0.5);
  Dropout3d(Module* parent, std::string_view name, double p = 0.5);
};
/// Drops elements to the negative limit of SELU; see alpha_dropout().
class AlphaDropout : public DropoutByFunction {
 public:
  explicit AlphaDropout(double p = 0.5);
  AlphaDropout(Module* parent, std::string_view name, double p = 0.5);
};
/// The same of whole channels of [n, c, ...]; see feature_alpha_dropout().
class FeatureAlphaDropout : public DropoutByFunction {
 public:
  explicit FeatureAlphaDropout(double p = 0.5);
  FeatureAlphaDropout(Module* parent, std::string_view name, double p = 0.5);
};

}  // namespace lockstep::nn
