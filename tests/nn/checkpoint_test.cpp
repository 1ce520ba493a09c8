#include "lockstep/nn/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/nn.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

using namespace lockstep::testing;

struct Net : Module {
  Linear fc1{this, "fc1", 4, 8};
  BatchNorm1d norm{this, "norm", 8};
  Dropout drop{this, "drop", 0.3};
  Linear fc2{this, "fc2", 8, 3};
  Tensor forward(Tensor x) override { return fc2(drop(relu(norm(fc1(x))))); }
};

using MakeOptimizer = std::unique_ptr<optim::Optimizer> (*)(std::vector<Tensor>);

/// A run of `total` steps whose data and random numbers are functions of the step.
struct Job {
  Net net;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::LRScheduler scheduler;
  std::int64_t step = 0;
  std::vector<double> losses;

  explicit Job(MakeOptimizer make)
      : net(),
        optimizer(make(net.parameters())),
        scheduler(*optimizer, optim::OneCycle{.max_lr = 0.1, .total_steps = 20}) {}

  void train_until(std::int64_t end) {
    for (; step < end; ++step) {
      const RandomKeyGuard key(static_cast<std::uint64_t>(step), 0);
      const Tensor x = make_input({6, 4}, static_cast<std::uint32_t>(step), kFloat32);
      const Tensor y = tensor<std::int64_t>({0, 1, 2, 0, 1, 2});
      optimizer->zero_grad();
      const Tensor loss = cross_entropy(net(x), y);
      loss.backward();
      optim::clip_grad_norm_(net.parameters(), 1.0);
      optimizer->step();
      scheduler.step();
      losses.push_back(loss.item<double>());
    }
  }
};

std::unique_ptr<optim::Optimizer> make_sgd(std::vector<Tensor> p) {
  return std::make_unique<optim::SGD>(std::move(p), optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
}
std::unique_ptr<optim::Optimizer> make_plain_sgd(std::vector<Tensor> p) {
  return std::make_unique<optim::SGD>(std::move(p), optim::SGDOptions{.lr = 0.1, .momentum = 0.5});
}
std::unique_ptr<optim::Optimizer> make_adam(std::vector<Tensor> p) {
  return std::make_unique<optim::Adam>(std::move(p));
}
std::unique_ptr<optim::Optimizer> make_adamw(std::vector<Tensor> p) {
  return std::make_unique<optim::AdamW>(std::move(p));
}

class Resume : public ::testing::TestWithParam<MakeOptimizer> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Resume, ::testing::Values(make_sgd, make_plain_sgd, make_adam, make_adamw));

TEST_P(Resume, GivesTheSameBitsAsAnUndisturbedRun) {
  const TemporaryPath path;
  Job a(GetParam());
  Job b(GetParam());
  copy_parameters_and_buffers(a.net, b.net);
  manual_seed(7);
  a.train_until(20);
  b.train_until(9);
  save_checkpoint(path.text(), b.net, *b.optimizer, {.seed = 7, .step = b.step, .epoch = 2}, &b.scheduler);

  Job c(GetParam());  // other weights, until the checkpoint is loaded
  const TrainingState state = load_checkpoint(path.text(), c.net, *c.optimizer, &c.scheduler);
  manual_seed(state.seed);
  c.step = state.step;
  EXPECT_EQ(c.scheduler.position(), 9);
  c.train_until(20);

  std::vector<double> losses = b.losses;
  losses.insert(losses.end(), c.losses.begin(), c.losses.end());
  EXPECT_EQ(losses, a.losses);
  EXPECT_EQ(weights_sha256(c.net), weights_sha256(a.net));
  EXPECT_NE(weights_sha256(b.net), weights_sha256(a.net));
}

class Checkpoint : public ::testing::Test {
 protected:
  std::string path() const { return path_.text(); }
  Net net;
  optim::Adam adam{net.parameters()};

 private:
  TemporaryPath path_;
};

TEST_F(Checkpoint, KeepsTheSettings) {
  const TrainingState saved{.seed = 0xffffffffffffffffull,
                            .step = 123456789012345,
                            .epoch = 4,
                            .logical_shards = 8,
                            .fingerprint = "gcc 12, avx2",
                            .extra = {{"model", "lenet"}, {"step", "x"}}};
  save_checkpoint(path(), net, adam, saved);
  const TrainingState read = read_training_state(path());
  EXPECT_EQ(read.seed, saved.seed);
  EXPECT_EQ(read.step, saved.step);
  EXPECT_EQ(read.epoch, saved.epoch);
  EXPECT_EQ(read.logical_shards, saved.logical_shards);
  EXPECT_EQ(read.fingerprint, saved.fingerprint);
  EXPECT_EQ(read.extra, saved.extra);
}

TEST_F(Checkpoint, OfALaterStepIsNotOverwritten) {
  save_checkpoint(path(), net, adam, {.step = 1000});
  const std::string error = error_of([&] { save_checkpoint(path(), net, adam, {.step = 100}); });
  EXPECT_NE(error.find(path() + " holds step 1000"), std::string::npos) << error;
  EXPECT_NE(error.find("is at step 100;"), std::string::npos) << error;
  EXPECT_EQ(read_training_state(path()).step, 1000);
  EXPECT_NE(error_of([&] { require_no_later_checkpoint(path(), 0); }), "");
  // One that has gone on from it is not behind it; other files, and none, are nobody's progress.
  save_checkpoint(path(), net, adam, {.step = 1000});
  save_checkpoint(path(), net, adam, {.step = 1010});
  EXPECT_EQ(read_training_state(path()).step, 1010);
  save(net, path());
  save_checkpoint(path(), net, adam, {.step = 1});
  require_no_later_checkpoint("/nowhere/at/all", 0);
}

TEST_F(Checkpoint, ServesAsAWeightsFile) {
  save_checkpoint(path(), net, adam, {});
  Net other;
  load(other, path());
  EXPECT_EQ(weights_sha256(other), weights_sha256(net));
}

TEST_F(Checkpoint, ARefusedFileChangesNothing) {
  Net other;
  const std::string before = weights_sha256(other);
  optim::SGD sgd(net.parameters(), {.momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  save_checkpoint(path(), net, sgd, {});
  optim::Adam of_another_type(other.parameters());
  EXPECT_NE(error_of([&] { load_checkpoint(path(), other, of_another_type); }).find("is that of SGD"),
            std::string::npos);
  EXPECT_EQ(weights_sha256(other), before);

  optim::SGD of_other_settings(other.parameters(), {.momentum = 0.9});
  const std::string error = error_of([&] { load_checkpoint(path(), other, of_other_settings); });
  EXPECT_NE(error.find("it was saved with nesterov 1, this optimizer was constructed with 0; it was saved with "
                       "weight_decay 0.1, this optimizer was constructed with 0"),
            std::string::npos)
      << error;
  EXPECT_EQ(weights_sha256(other), before);

  const SafetensorsFile good(path());
  std::vector<NamedTensor> tensors;
  for (const SafetensorsEntry& entry : good.entries()) {
    tensors.push_back({entry.name, good.read(entry.name)});
    if (entry.name == "__optimizer__.steps") tensors.back().tensor.fill_(-1);
  }
  save_safetensors(tensors, path(), good.metadata());
  optim::SGD same(other.parameters(), {.momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  EXPECT_NE(error_of([&] { load_checkpoint(path(), other, same); }).find("a parameter has done -1 steps"),
            std::string::npos);
  EXPECT_EQ(weights_sha256(other), before);
}

// A net of two parts, each with an optimizer and a scheduler of its own.
struct TwoOptimizers {
  Net net;
  optim::SGD sgd{net.fc1.parameters(), {.lr = 0.1, .momentum = 0.9}};
  optim::AdamW adam{{{{net.fc2.weight}, {.lr = 0.01}}, {{net.fc2.bias}, {.lr = 0.02, .weight_decay = 0.0}}}};
  optim::LRScheduler first{sgd, optim::StepLR{.lr = 0.1, .gamma = 0.5}};
  optim::LRScheduler second{adam, {optim::StepLR{.lr = 0.01, .gamma = 0.1}, optim::StepLR{.lr = 0.02}}};

  void train() {
    sgd.zero_grad();
    adam.zero_grad();
    net(make_input({6, 4}, 1, kFloat32)).sum().backward();
    sgd.step();
    adam.step();
    first.step();
    second.step();
  }
};

TEST_F(Checkpoint, KeepsSeveralOptimizers) {
  TwoOptimizers a, b;
  a.net.eval();
  b.net.eval();
  a.train();
  a.train();
  a.first.step();  // the positions differ
  save_checkpoint(path(), a.net, {a.sgd, a.adam}, {}, {&a.first, &a.second});
  load_checkpoint(path(), b.net, {b.sgd, b.adam}, {&b.first, &b.second});
  EXPECT_EQ(b.first.position(), 3);
  EXPECT_EQ(b.second.position(), 2);
  EXPECT_EQ(b.adam.lr(1), a.adam.lr(1));
  a.train();
  b.train();
  EXPECT_EQ(weights_sha256(a.net), weights_sha256(b.net));
  Net weights_alone;
  load(weights_alone, path());
}

TEST_F(Checkpoint, KeepsWhatAPlateauHasSeen) {
  const std::vector<double> measures{1.0, 0.9, 0.95, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.6, 0.6, 0.6};
  const optim::ReduceLROnPlateauOptions options{.factor = 0.5, .patience = 2, .cooldown = 2};
  const auto rates = [&](std::size_t stop) {
    std::vector<double> out;
    const auto go_on = [&](optim::SGD& sgd, optim::ReduceLROnPlateau& plateau, std::size_t from, std::size_t to) {
      for (std::size_t i = from; i < to; ++i) {
        plateau.step(measures[i]);
        out.push_back(sgd.lr());
      }
    };
    optim::SGD sgd(net.parameters(), {.lr = 1.0});
    optim::ReduceLROnPlateau plateau(sgd, options);
    go_on(sgd, plateau, 0, stop);
    save_checkpoint(path(), net, sgd, {}, &plateau);
    optim::SGD resumed(net.parameters(), {.lr = 1.0});
    optim::ReduceLROnPlateau resumed_plateau(resumed, options);
    load_checkpoint(path(), net, resumed, &resumed_plateau);
    EXPECT_EQ(resumed_plateau.state(), plateau.state());
    go_on(resumed, resumed_plateau, stop, measures.size());
    return out;
  };
  const std::vector<double> undisturbed = rates(measures.size());
  for (std::size_t stop = 0; stop < measures.size(); ++stop) EXPECT_EQ(rates(stop), undisturbed) << stop;

  optim::SGD sgd(net.parameters(), {.lr = 1.0});
  optim::LRScheduler other(sgd, optim::StepLR{.lr = 1.0});
  EXPECT_NE(error_of([&] { load_checkpoint(path(), net, sgd, &other); }).find("[LRScheduler] the state to load has no"),
            std::string::npos);
  optim::ReduceLROnPlateau plateau(sgd, options);
  save_checkpoint(path(), net, {sgd}, {}, {&other, &plateau});
  plateau.step(3.0);
  load_checkpoint(path(), net, {sgd}, {&other, &plateau});
  EXPECT_EQ(plateau.state().at("best"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(SafetensorsFile(path()).metadata().at("lockstep.schedule_position"), "0");
}

TEST_F(Checkpoint, OfOtherOptimizersChangesNothing) {
  TwoOptimizers a, b;
  a.train();
  save_checkpoint(path(), a.net, {a.sgd, a.adam}, {});
  const std::string before = weights_sha256(b.net);
  EXPECT_NE(error_of([&] {
              load_checkpoint(path(), b.net, b.sgd);
            }).find("holds the state of 2 optimizers (SGD, AdamW), and 1 were given"),
            std::string::npos);
  b.adam.param_groups()[1].options.weight_decay = 0.5;  // the second does not fit: the first must not be loaded
  EXPECT_NE(error_of([&] {
              load_checkpoint(path(), b.net, {b.sgd, b.adam});
            }).find("saved with param_groups.1.weight"),
            std::string::npos);
  EXPECT_EQ(b.sgd.state().tensors.front().tensor.to_vector<double>(), (std::vector<double>{0, 0}));
  EXPECT_EQ(weights_sha256(b.net), before);
  EXPECT_NE(error_of([&] {
              load_checkpoint(path(), b.net, {b.adam, b.sgd});
            }).find("[AdamW] the state to load is that of SGD"),
            std::string::npos);
}

// Layers of one shape, which only their names tell apart.
struct Twins : Module {
  std::unique_ptr<Linear> a, b;
  explicit Twins(bool b_first) {
    if (b_first) b = std::make_unique<Linear>(this, "b", 3, 3);
    a = std::make_unique<Linear>(this, "a", 3, 3);
    if (!b_first) b = std::make_unique<Linear>(this, "b", 3, 3);
  }
  Tensor forward(Tensor x) override { return (*b)(relu((*a)(x))); }
  std::string after_a_step(optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    forward(make_input({5, 3}, 1, kFloat32)).square().sum().backward();
    optimizer.step();
    std::string hashes;
    for (const auto& layer : {a.get(), b.get()}) hashes += weights_sha256(*layer);
    return hashes;
  }
};

TEST_F(Checkpoint, FindsTheStateOfParametersInAnotherOrder) {
  for (const MakeOptimizer make : {make_sgd, make_adam}) {
    Twins saved(false);
    const auto optimizer = make(saved.parameters());
    saved.after_a_step(*optimizer);
    optimizer->zero_grad();  // another number of steps for one of them
    saved.a->weight.set_grad(full({3, 3}, 0.5));
    optimizer->step();
    save_checkpoint(path(), saved, *optimizer, {});
    const std::string expected = saved.after_a_step(*optimizer);

    Twins declared_otherwise(true);
    const auto first = make(declared_otherwise.parameters());
    load_checkpoint(path(), declared_otherwise, *first);
    EXPECT_EQ(declared_otherwise.after_a_step(*first), expected);

    Twins given_otherwise(false);
    std::vector<Tensor> parameters = given_otherwise.parameters();
    std::ranges::reverse(parameters);
    const auto second = make(parameters);
    load_checkpoint(path(), given_otherwise, *second);
    EXPECT_EQ(given_otherwise.after_a_step(*second), expected);

    // As older files: by their places.
    const SafetensorsFile file(path());
    std::vector<NamedTensor> tensors;
    for (const SafetensorsEntry& entry : file.entries()) tensors.push_back({entry.name, file.read(entry.name)});
    Metadata metadata = file.metadata();
    EXPECT_EQ(metadata.at("lockstep.optimizer_parameters"), "a.weight\na.bias\nb.weight\nb.bias\n");
    metadata.erase("lockstep.optimizer_parameters");
    save_safetensors(tensors, path(), metadata);
    Twins older(false);
    const auto third = make(older.parameters());
    load_checkpoint(path(), older, *third);
    EXPECT_EQ(older.after_a_step(*third), expected);
  }
}

TEST_F(Checkpoint, KnowsTheParametersOfGroupsAndOfEachOptimizer) {
  struct Pair {
    Twins net{false};
    optim::SGD first, second;
    explicit Pair(bool turned)
        : first({{turned ? std::vector<Tensor>{net.b->weight, net.a->weight}
                         : std::vector<Tensor>{net.a->weight, net.b->weight},
                  {.lr = 0.1, .momentum = 0.9}},
                 {{}, {.lr = 0.2, .momentum = 0.9}}}),
          second(turned ? std::vector<Tensor>{net.b->bias, net.a->bias} : std::vector<Tensor>{net.a->bias, net.b->bias},
                 {.lr = 0.1, .momentum = 0.9}) {}
    std::string after_a_step() {
      net.after_a_step(first);
      return net.after_a_step(second);
    }
  } saved(false), turned(true), other(false);
  saved.after_a_step();
  save_checkpoint(path(), saved.net, {saved.first, saved.second}, {});
  load_checkpoint(path(), turned.net, {turned.first, turned.second});
  EXPECT_EQ(turned.after_a_step(), saved.after_a_step());

  const std::string error = error_of([&] { load_checkpoint(path(), other.net, {other.second, other.second}); });
  EXPECT_NE(error.find("of other parameters: the file's optimizer alone has a.weight, b.weight; this one alone has "
                       "a.bias, b.bias; give the optimizer those that it was saved with"),
            std::string::npos)
      << error;
  Linear apart(3, 3);
  optim::SGD more({saved.net.a->bias, apart.bias}, {.momentum = 0.9});
  EXPECT_NE(error_of([&] {
              load_checkpoint(path(), saved.net, {saved.first, more});
            }).find("alone has b.bias; this one alone has one that is not the module's;"),
            std::string::npos);
}

TEST_F(Checkpoint, ErrorsSayWhatIsWrong) {
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  save(net, path());
  contains(error_of([&] { load_checkpoint(path(), net, adam); }), path() + " is a safetensors file, but no training");
  contains(error_of([&] { read_training_state(path()); }), "no training checkpoint");
  save(net, path(), {{"lockstep.checkpoint", "2"}});
  contains(error_of([&] { read_training_state(path()); }), "is of version 2, expected 1");
  save(net, path(), {{"lockstep.checkpoint", "1"}});
  contains(error_of([&] { read_training_state(path()); }), "has no metadata 'lockstep.seed'");
  save(net, path(), {{"lockstep.checkpoint", "1"}, {"lockstep.seed", "1x"}});
  contains(error_of([&] { read_training_state(path()); }), "metadata 'lockstep.seed' is '1x', expected a number");

  save_checkpoint(path(), net, adam, {});
  optim::SGD sgd(net.parameters());
  contains(error_of([&] { load_checkpoint(path(), net, sgd); }), path() + ": [SGD] the state to load is that of Adam");
  optim::LRScheduler scheduler(adam, optim::StepLR{});
  contains(error_of([&] { load_checkpoint(path(), net, adam, &scheduler); }), "holds no schedule's position");
  struct Wider : Module {
    Linear fc1{this, "fc1", 5, 8};
    Linear fc3{this, "fc3", 1, 1, {.bias = false}};
  } wider;
  optim::Adam wider_adam(wider.parameters());
  const std::string error = error_of([&] { load_checkpoint(path(), wider, wider_adam); });
  contains(error, "missing fc3.weight; unexpected ");
  contains(error, "wrong shape or dtype fc1.weight (file: float32 [8, 4], model: float32 [8, 5])");
  EXPECT_EQ(error.find("__optimizer__"), std::string::npos) << error;
}

}  // namespace
}  // namespace lockstep::nn
