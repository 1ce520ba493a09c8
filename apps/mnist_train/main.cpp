// mnist_train: trains a small network on MNIST, on one device, several devices, or several processes. See --help.

#include <fmt/core.h>

#include <memory>
#include <optional>
#include <string>

#include "apps/models/models.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/data/mnist.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "lockstep/nn/optim/optim.h"
#include "lockstep/train/program.h"
#include "lockstep/train/run.h"

namespace lockstep::apps {
namespace {

struct Options {
  std::string dataset = "mnist";
  std::string data_dir;
  std::string model = "lenet";
  std::string optimizer = "sgd";
  std::optional<double> lr;        // default by optimizer
  std::optional<double> momentum;  // of sgd; where none is given, 0.9 or what the checkpoint has
  std::string schedule = "cosine";
  bool sync_batch_norm = false;

  double learning_rate() const { return lr.value_or(optimizer == "sgd" ? 0.02 : 0.001); }
};

void add_options(training::Program& program, Options& options) {
  program.add_option("--dataset", options.dataset, "The data set", {"mnist", "fashion-mnist"});
  program.add_option("--data-dir", options.data_dir,
                     "Folder of the data set; default: LOCKSTEP_DATA, then the usual places");
  program.add_option("--model", options.model, "The network", models::model_names());
  program.add_option("--optimizer", options.optimizer, "The optimizer", {"sgd", "adam", "adamw"});
  program.add_option("--lr", options.lr, "Learning rate; default 0.02 for sgd, 0.001 for adam and adamw", 0.0);
  program.add_option("--momentum", options.momentum,
                     "Momentum of sgd, below 1; default 0.9, or on resumption the checkpoint's", 0.0, 1.0 - 1e-9);
  program.add_option("--schedule", options.schedule, "The learning rate's course", {"constant", "cosine", "one-cycle"});
  program.add_flag("--sync-batch-norm", options.sync_batch_norm, "ddp: batch norm over the samples of all processes");
  program.let_ranks_differ({"--data-dir"});
}

void check(const Options& options, const training::WorkerOptions& workers) {
  const auto require = [](bool condition, const std::string& message) {
    if (!condition) throw Error(message);
  };
  require(!options.momentum || options.optimizer == "sgd",
          fmt::format("--momentum belongs to --optimizer sgd, and this is {}; leave it out", options.optimizer));
  if (!options.sync_batch_norm) return;
  require(workers.mode == training::Mode::ddp, "--sync-batch-norm belongs to --mode ddp");
  require(options.model == "lenet-bn",
          fmt::format("--sync-batch-norm needs a model with batch norm, which {} has not; use --model lenet-bn",
                      options.model));
  require(workers.logical_shards == 0,
          "--sync-batch-norm cannot be used with --lockstep, in which each logical shard is normalised alone");
}

std::shared_ptr<const data::Dataset> open_dataset(const Options& options, bool train) {
  if (options.dataset == "mnist") return data::mnist(options.data_dir, {.train = train});
  return data::fashion_mnist(options.data_dir, {.train = train});
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& options, std::vector<Tensor> parameters) {
  const double lr = options.learning_rate();
  if (options.optimizer == "adam")
    return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = lr});
  if (options.optimizer == "adamw")
    return std::make_unique<optim::AdamW>(std::move(parameters), optim::AdamWOptions{.lr = lr});
  return std::make_unique<optim::SGD>(std::move(parameters),
                                      optim::SGDOptions{.lr = lr, .momentum = options.momentum.value_or(0.9)});
}

optim::Schedule make_schedule(const Options& options, std::int64_t total_steps) {
  const double lr = options.learning_rate();
  if (options.schedule == "cosine") return optim::CosineAnnealing{.lr = lr, .period = total_steps};
  if (options.schedule == "one-cycle")
    return optim::OneCycle{.max_lr = lr, .total_steps = total_steps, .cycle_momentum = false};
  return [lr](std::int64_t) { return lr; };
}

/// As the learning rate's, it counts from here on, whatever the checkpoint was trained with.
optim::Schedule momentum_schedule(const Options& options) {
  if (!options.momentum) return {};
  return [momentum = *options.momentum](std::int64_t) { return momentum; };
}

int train_mnist(const Options& options, training::Workers& workers, const training::RunOptions& run_options) {
  const auto train_set = open_dataset(options, true);
  const auto test_set = open_dataset(options, false);
  const data::DataLoader loader = workers.make_loader(train_set);
  distributed::TrainingStep step = workers.make_step([&] { return models::make_model(options.model); });
  if (options.sync_batch_norm) distributed::convert_sync_batch_norm(step.module(), workers.group());
  const auto optimizer = workers.make_optimizer(
      step, [&](std::vector<Tensor> parameters) { return make_optimizer(options, std::move(parameters)); });
  const auto loss = [](nn::Module& net, const data::Batch& part) { return cross_entropy(net(part.x), part.y); };

  training::Run run(step, *optimizer, loader, loss, run_options);
  run.set_schedule(make_schedule(options, run.total_steps()), momentum_schedule(options));
  run.set_evaluation(training::classification(test_set));
  return run.train().exit_status();
}

}  // namespace
}  // namespace lockstep::apps

int main(int argc, char** argv) {
  using namespace lockstep;
  apps::Options options;
  training::Program program("mnist_train",
                            "Trains a small network on MNIST, on one device, several devices, or several processes.",
                            LOCKSTEP_VERSION);
  apps::add_options(program, options);
  program.run().epochs = 3;
  program.run().unit = "images";
  const auto check = [&](const training::WorkerOptions& workers, training::RunOptions& run) {
    apps::check(options, workers);
    run.settings = {{"model", options.model}, {"dataset", options.dataset}};
  };
  const auto body = [&](training::Workers& workers, const training::RunOptions& run) {
    return apps::train_mnist(options, workers, run);
  };
  return program.main(argc, argv, body, check);
}
