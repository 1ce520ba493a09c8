// The peer of train_throughput: the same nets and steps in libtorch. Built only where libtorch is installed.

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <stdexcept>

#include "bench/train_rounds.h"

namespace {

using torch::Tensor;
using train_rounds::Setup;

struct Net : torch::nn::Module {
  virtual Tensor forward(Tensor x) = 0;
};

struct LeNet : Net {
  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 10, 5)));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(10, 20, 5)));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(320, 50));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(50, 10));
  Tensor forward(Tensor x) override {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(conv2(x), 2));
    return fc2(torch::relu(fc1(x.flatten(1))));
  }
};

struct Cnn : Net {
  explicit Cnn(bool dropout) : dropout(dropout) {}
  bool dropout;
  torch::nn::Conv2d conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3)));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3)));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(9216, 128));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(128, 10));
  Tensor forward(Tensor x) override {
    x = torch::relu(conv1(x));
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    if (dropout) x = torch::dropout(x, 0.25, true);
    x = torch::relu(fc1(x.flatten(1)));
    if (dropout) x = torch::dropout(x, 0.5, true);
    return fc2(x);
  }
};

struct Mlp : Net {
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(784, 512));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(512, 512));
  torch::nn::Linear fc3 = register_module("fc3", torch::nn::Linear(512, 10));
  Tensor forward(Tensor x) override { return fc3(torch::relu(fc2(torch::relu(fc1(x.flatten(1)))))); }
};

std::shared_ptr<Net> make_net(const std::string& model) {
  if (model == "lenet") return std::make_shared<LeNet>();
  if (model == "cnn") return std::make_shared<Cnn>(true);
  if (model == "cnn_plain") return std::make_shared<Cnn>(false);
  if (model == "mlp") return std::make_shared<Mlp>();
  throw std::runtime_error("unknown model '" + model + "'; expected lenet, cnn, cnn_plain or mlp");
}

std::function<double()> make_step(const Setup& setup) {
  at::set_num_threads(setup.threads);
  torch::manual_seed(1);
  auto net = make_net(setup.model);
  auto optimizer = std::make_shared<torch::optim::SGD>(
      net->parameters(), torch::optim::SGDOptions(train_rounds::kLearningRate).momentum(train_rounds::kMomentum));
  Tensor images = torch::empty({train_rounds::kImages, 1, 28, 28});
  Tensor labels = torch::empty({train_rounds::kImages}, torch::kInt64);
  train_rounds::fill_images(images.data_ptr<float>());
  train_rounds::fill_labels(labels.data_ptr<std::int64_t>());
  return [=, random = train_rounds::Random(3)]() mutable {
    Tensor index = torch::empty({setup.batch}, torch::kInt64);
    train_rounds::fill_batch(random, index.data_ptr<std::int64_t>(), setup.batch);
    Tensor loss = torch::nn::functional::cross_entropy(net->forward(images.index_select(0, index)),
                                                       labels.index_select(0, index));
    for (Tensor& parameter : net->parameters()) parameter.mutable_grad() = Tensor();
    loss.backward();
    optimizer->step();
    return loss.item<double>();
  };
}

}  // namespace

int main(int argc, char** argv) {
  return train_rounds::run(argc, argv, "libtorch " TORCH_VERSION, make_step);
}
