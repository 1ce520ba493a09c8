#include "apps/models/models.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"

namespace lockstep::models {

Tensor LeNet::forward(Tensor x) {
  x = relu(max_pool2d(conv1(x), 2));
  x = relu(max_pool2d(conv2(x), 2));
  x = relu(fc1(x.flatten(1)));
  return fc2(x);
}

Tensor Cnn::forward(Tensor x) {
  x = relu(conv1(x));
  x = max_pool2d(relu(conv2(x)), 2);
  x = dropout1(x);
  x = relu(fc1(x.flatten(1)));
  return fc2(dropout2(x));
}

Tensor LeNetBn::forward(Tensor x) {
  x = relu(max_pool2d(bn1(conv1(x)), 2));
  x = relu(max_pool2d(bn2(conv2(x)), 2));
  x = relu(fc1(x.flatten(1)));
  return fc2(x);
}

Tensor Mlp::forward(Tensor x) {
  x = relu(fc1(x.flatten(1)));
  x = relu(fc2(x));
  return fc3(x);
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = {"lenet", "cnn", "mlp", "lenet-bn"};
  return names;
}

std::unique_ptr<nn::Module> make_model(std::string_view name) {
  if (name == "lenet") return std::make_unique<LeNet>();
  if (name == "cnn") return std::make_unique<Cnn>();
  if (name == "mlp") return std::make_unique<Mlp>();
  LOCKSTEP_CHECK(name == "lenet-bn", "there is no model '{}'; expected {}", name, fmt::join(model_names(), ", "));
  return std::make_unique<LeNetBn>();
}

std::string model_of(const nn::SafetensorsFile& file) {
  // Of the models whose tensors are all there, the largest: one model's names can be among another's.
  std::string found;
  std::size_t most = 0;
  for (const std::string& name : model_names()) {
    const auto model = make_model(name);
    const std::vector<nn::NamedTensor> state = model->state();
    const bool all = std::ranges::all_of(state, [&](const nn::NamedTensor& tensor) {
      const nn::SafetensorsEntry* entry = file.find(tensor.name);
      return entry && entry->shape == tensor.tensor.sizes();
    });
    if (!all || state.size() <= most) continue;
    found = name;
    most = state.size();
  }
  LOCKSTEP_CHECK(!found.empty(), "'{}' holds the weights of none of the models {}", file.path(),
                 fmt::join(model_names(), ", "));
  return found;
}

}  // namespace lockstep::models
