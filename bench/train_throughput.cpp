// Training steps of models in natural code on random data: a batch gathered from memory, forward, cross-entropy,
// backward, an update. bench/run_train_throughput.py starts it, beside the same in other libraries
// (peer_libtorch.cpp, torch_train_throughput.py).

#include <lockstep/lockstep.h>

#include <memory>
#include <string>

#include "bench/train_models.h"
#include "bench/train_rounds.h"

namespace {

using namespace lockstep;

class Step {
 public:
  explicit Step(const train_rounds::Setup& setup)
      : batch_(setup.batch),
        context_(train_rounds::context_of(setup.model)),
        compute_type_(setup.bf16 ? kBFloat16 : kFloat32),
        model_(bench::make_model(setup.model)) {
    if (setup.model == "cnn_plain") model_->eval();  // the same net with its dropout off
    adam_ = train_rounds::uses_adam(setup.model);
    optimizer_ = bench::make_optimizer(setup.model, model_->parameters());
    if (context_ > 0) return;
    images_ = empty(bench::image_sizes(setup.model));
    labels_ = empty({train_rounds::kImages}, {.dtype = kInt64});
    train_rounds::fill_images(images_.data<float>());
    train_rounds::fill_labels(labels_.data<std::int64_t>());
  }

  double operator()() {
    const Tensor loss = [this] {
      const AutocastGuard autocast(compute_type_, kCPU);
      return context_ > 0 ? loss_of_tokens() : loss_of_images();
    }();
    optimizer_->zero_grad(true);
    loss.backward();
    if (adam_) optim::clip_grad_norm_(model_->parameters(), 1.0);
    optimizer_->step();
    return loss.item();
  }

 private:
  Tensor loss_of_images() {
    const Tensor index = empty({batch_}, {.dtype = kInt64});
    train_rounds::fill_batch(random_, index.data<std::int64_t>(), batch_, images_.size(0));
    return cross_entropy(model_->forward(images_.index_select(0, index)), labels_.index_select(0, index));
  }

  Tensor loss_of_tokens() {
    const Tensor tokens = empty({batch_, context_ + 1}, {.dtype = kInt64});
    train_rounds::fill_batch(random_, tokens.data<std::int64_t>(), tokens.numel(), bench::Gpt::kVocabulary);
    return cross_entropy(model_->forward(tokens.narrow(1, 0, context_)),
                         tokens.narrow(1, 1, context_).reshape({batch_ * context_}));
  }

  std::int64_t batch_, context_;
  DType compute_type_;
  bool adam_ = false;
  train_rounds::Random random_{3};
  std::unique_ptr<nn::Module> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
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
