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

Dropout1d::Dropout1d(double p) : Dropout1d(nullptr, {}, p) {}
Dropout1d::Dropout1d(Module* parent, std::string_view name, double p)
    : Module(parent, name), p_(checked(p, "nn::Dropout1d")) {}
Tensor Dropout1d::forward(Tensor x) {
  return dropout1d(x, p_, is_training());
}

Dropout2d::Dropout2d(double p) : Dropout2d(nullptr, {}, p) {}
Dropout2d::Dropout2d(Module* parent, std::string_view name, double p)
    : Module(parent, name), p_(checked(p, "nn::Dropout2d")) {}
Tensor Dropout2d::forward(Tensor x) {
  return dropout2d(x, p_, is_training());
}

Dropout3d::Dropout3d(double p) : Dropout3d(nullptr, {}, p) {}
Dropout3d::Dropout3d(Module* parent, std::string_view name, double p)
    : Module(parent, name), p_(checked(p, "nn::Dropout3d")) {}
Tensor Dropout3d::forward(Tensor x) {
  return dropout3d(x, p_, is_training());
}

AlphaDropout::AlphaDropout(double p) : AlphaDropout(nullptr, {}, p) {}
AlphaDropout::AlphaDropout(Module* parent, std::string_view name, double p)
    : Module(parent, name), p_(checked(p, "nn::AlphaDropout")) {}
Tensor AlphaDropout::forward(Tensor x) {
  return alpha_dropout(x, p_, is_training());
}

FeatureAlphaDropout::FeatureAlphaDropout(double p) : FeatureAlphaDropout(nullptr, {}, p) {}
FeatureAlphaDropout::FeatureAlphaDropout(Module* parent, std::string_view name, double p)
    : Module(parent, name), p_(checked(p, "nn::FeatureAlphaDropout")) {}
Tensor FeatureAlphaDropout::forward(Tensor x) {
  return feature_alpha_dropout(x, p_, is_training());
}

}  // namespace lockstep::nn
