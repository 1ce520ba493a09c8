#include "lockstep/nn/dropout.h"

#include "lockstep/autograd/ops/dropout/dropout.h"
#include "lockstep/core/check.h"

namespace lockstep::nn {
namespace {

double checked(double p, const char* layer) {
  LOCKSTEP_CHECK(p >= 0.0 && p <= 1.0, "[{}] expected a probability p within 0 and 1, found {}", layer, p);
  return p;
}

}  // namespace

Dropout::Dropout(double p) : Dropout(nullptr, {}, p) {}
Dropout::Dropout(Module* parent, std::string_view name, double p)
    : Module(parent, name), p_(checked(p, "nn::Dropout")) {}
Tensor Dropout::forward(Tensor x) {
  if (count_ == 1) return dropout(x, p_, is_training());
  const std::int64_t size = x.size(dim_);
  return dropout_of_part(x, {dim_, index_ * size, count_ * size}, p_, is_training());
}
void Dropout::set_part(int dim, std::int64_t index, std::int64_t count) {
  LOCKSTEP_CHECK(count > 0 && index >= 0 && index < count, "[nn::Dropout] there is no part {} of {}", index, count);
  dim_ = dim;
  index_ = index;
  count_ = count;
}

DropoutByFunction::DropoutByFunction(Module* parent, std::string_view name, double p, Function function,
                                     const char* layer)
    : Module(parent, name), p_(checked(p, layer)), function_(function) {}
Tensor DropoutByFunction::forward(Tensor x) {
  return function_(x, p_, is_training());
}

Dropout1d::Dropout1d(double p) : Dropout1d(nullptr, {}, p) {}
Dropout1d::Dropout1d(Module* parent, std::string_view name, double p)
    : DropoutByFunction(parent, name, p, dropout1d, "nn::Dropout1d") {}

Dropout2d::Dropout2d(double p) : Dropout2d(nullptr, {}, p) {}
Dropout2d::Dropout2d(Module* parent, std::string_view name, double p)
    : DropoutByFunction(parent, name, p, dropout2d, "nn::Dropout2d") {}

Dropout3d::Dropout3d(double p) : Dropout3d(nullptr, {}, p) {}
Dropout3d::Dropout3d(Module* parent, std::string_view name, double p)
    : DropoutByFunction(parent, name, p, dropout3d, "nn::Dropout3d") {}

AlphaDropout::AlphaDropout(double p) : AlphaDropout(nullptr, {}, p) {}
AlphaDropout::AlphaDropout(Module* parent, std::string_view name, double p)
    : DropoutByFunction(parent, name, p, alpha_dropout, "nn::AlphaDropout") {}

FeatureAlphaDropout::FeatureAlphaDropout(double p) : FeatureAlphaDropout(nullptr, {}, p) {}
FeatureAlphaDropout::FeatureAlphaDropout(Module* parent, std::string_view name, double p)
    : DropoutByFunction(parent, name, p, feature_alpha_dropout, "nn::FeatureAlphaDropout") {}

}  // namespace lockstep::nn
