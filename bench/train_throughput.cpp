// Training steps of the example models, and of a ResNet-18, on random images: a batch gathered from memory, forward,
// cross-entropy, backward, SGD with momentum. bench/run_train_throughput.py starts it, beside the same in other
// libraries.

#include <lockstep/lockstep.h>

#include <memory>
#include <string>

#include "apps/models/models.h"
#include "bench/resnet18.h"
#include "bench/train_rounds.h"

namespace {

using namespace lockstep;

class Step {
 public:
  explicit Step(const train_rounds::Setup& setup)
      : batch_(setup.batch),
        model_(make_model(setup.model)),
        optimizer_(model_->parameters(), {.lr = train_rounds::kLearningRate, .momentum = train_rounds::kMomentum}),
        images_(empty(setup.model == "resnet18" ? Shape{train_rounds::kImages * train_rounds::kPixels / 3072, 3, 32, 32}
                                                : Shape{train_rounds::kImages, 1, 28, 28})),
        labels_(empty({train_rounds::kImages}, {.dtype = kInt64})) {
    if (setup.model == "cnn_plain") model_->eval();  // the same net with its dropout off
    train_rounds::fill_images(images_.data<float>());
    train_rounds::fill_labels(labels_.data<std::int64_t>());
  }

  double operator()() {
    const Tensor index = empty({batch_}, {.dtype = kInt64});
    train_rounds::fill_batch(random_, index.data<std::int64_t>(), batch_, images_.size(0));
    const Tensor loss = cross_entropy(model_->forward(images_.index_select(0, index)), labels_.index_select(0, index));
    optimizer_.zero_grad(true);
    loss.backward();
    optimizer_.step();
    return loss.item();
  }

 private:
  static std::unique_ptr<nn::Module> make_model(const std::string& name) {
    if (name == "resnet18") return std::make_unique<bench::ResNet18>();
    return models::make_model(name == "cnn_plain" ? "cnn" : name);
  }

  std::int64_t batch_;
  train_rounds::Random random_{3};
  std::unique_ptr<nn::Module> model_;
  optim::SGD optimizer_;
  Tensor images_, labels_;
};

}  // namespace

int main(int argc, char** argv) {
  return train_rounds::run(argc, argv, "lockstep", [](const train_rounds::Setup& setup) {
    set_num_threads(setup.threads);
    manual_seed(1);
    return Step(setup);
  });
}
