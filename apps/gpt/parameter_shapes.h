#pragma once

#include <string>
#include <vector>

#include "apps/gpt/config.h"
#include "lockstep/core/shape.h"

namespace lockstep::gpt {

struct NamedShape {
  std::string name;
  Shape shape;
};

/// Names and shapes of the parameters that LanguageModel::make(config) has, adapters among them, without memory for
/// their values: what files are compared with before a model is made for them.
std::vector<NamedShape> parameter_shapes(const Config& config);

}  // namespace lockstep::gpt
