#include "lockstep/nn/dropout.h"

#include <utility>

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
  if (!place_) return dropout(x, p_, is_training());
  const Place place = place_(x.size(dim_));
  return dropout_of_part(x, {dim_, place.first, place.size}, p_, is_training());
}
void Dropout::set_part(int dim, std::int64_t index, std::int64_t count) {
  LOCKSTEP_CHECK(count > 0 && index >= 0 && index < count, "[nn::Dropout] there is no part {} of {}", index, count);
  if (count == 1) return set_part(dim, nullptr);
  set_part(dim, [index, count](std::int64_t own) { return Place{.first = index * own, .size = count * own}; });
}
void Dropout::set_part(int dim, std::function<Place(std::int64_t own)> place) {
  dim_ = dim;
  place_ = std::move(place);
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
