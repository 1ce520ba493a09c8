#include "apps/models/models.h"

#include "autograd/ops.h"
#include "core/check.h"

namespace lockstep::models {

Tensor LeNet::forward(Tensor x) {
  x = relu(max_pool2d(conv1(x), 2));
  x = relu(max_pool2d(conv2(x), 2));
  return fc2(fc1(x.flatten(1)));
}

Tensor Cnn::forward(Tensor x) {
  x = dropout1(max_pool2d(conv2(conv1(x)), 2));
  return fc2(dropout2(fc1(x.flatten(1))));
}

Tensor Mlp::forward(Tensor x) {
  return fc3(fc2(fc1(x.flatten(1))));
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = {"lenet", "cnn", "mlp"};
  return names;
}

std::unique_ptr<nn::Module> make_model(std::string_view name) {
  if (name == "lenet") return std::make_unique<LeNet>();
  if (name == "cnn") return std::make_unique<Cnn>();
  LOCKSTEP_CHECK(name == "mlp", "there is no model '{}'; expected lenet, cnn or mlp", name);
  return std::make_unique<Mlp>();
}

std::string model_of(const nn::SafetensorsFile& file) {
  for (const std::string& name : model_names()) {
    bool all = true;
    for (const nn::NamedTensor& parameter : make_model(name)->named_parameters()) {
      const nn::SafetensorsEntry* entry = file.find(parameter.name);
      all = all && entry && entry->shape == parameter.tensor.sizes();
    }
    if (all) return name;
  }
  throw Error(fmt::format("'{}' holds the weights of none of the models lenet, cnn and mlp", file.path()));
}

}  // namespace lockstep::models
