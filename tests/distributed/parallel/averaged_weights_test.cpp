// Moving averages of weights: by their formula, and the same bits however the model is divided.

#include "lockstep/distributed/parallel/averaged_weights.h"

#include <cmath>
#include <thread>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/checkpoint.h"
#include "lockstep/distributed/parallel/evaluate.h"
#include "lockstep/distributed/pipeline_parallel/mesh_model.h"
#include "lockstep/nn/container.h"
#include "tests/distributed/parallel/sharding_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;
using lockstep::testing::TemporaryPath;

Values values_of(const std::vector<nn::NamedTensor>& tensors) {
  Values values;
  for (const nn::NamedTensor& each : tensors) values.push_back(each.tensor.to_vector<double>());
  return values;
}

TEST(AveragedWeights, FollowTheirFormula) {
  for (const bool equal : {false, true}) {
    Net net;
    set_weights(net);
    optim::SGD sgd(net.parameters(), optim::SGDOptions{.lr = 0.5});
    AveragedWeights average(net, equal ? AveragedWeights::equal() : optim::Schedule([](std::int64_t) { return 0.75; }));
    EXPECT_EQ(largest_difference(values_of({average.state().front()}), {weights_of(net).front()}), 0.0);
    Values expected;
    for (std::uint32_t i = 0; i < 6; ++i) {
      net.zero_grad();
      mean_loss(net, make_batch(8, i)).backward();
      sgd.step();
      average.update();
      const Values now = weights_of(net);
      if (i == 0) expected = now;
      const double share = equal ? 1.0 / (i + 1.0) : 0.25;
      for (std::size_t p = 0; p < now.size(); ++p)
        for (std::size_t k = 0; k < now[p].size(); ++k) expected[p][k] += share * (now[p][k] - expected[p][k]);
    }
    const Values before = weights_of(net);
    EXPECT_GT(largest_difference(before, expected), 1e-3);
    {
      const auto held = average.hold();
      EXPECT_LT(largest_difference(weights_of(net), expected), 1e-6);
      EXPECT_NE(error_of([&] { average.update(); }).find("update() was called while"), std::string::npos);
      EXPECT_NE(error_of([&] { static_cast<void>(average.hold()); }).find("hold() was called while"),
                std::string::npos);
      copy_values(full({5}, 7.0), net.fc1.bias.detach());
    }
    EXPECT_EQ(largest_difference(weights_of(net), before), 0.0) << "what is written meanwhile is gone";
  }
  Net net;
  EXPECT_NE(error_of([&] { AveragedWeights(net, 1.5); }).find("from 0 to 1, found 1.5"), std::string::npos);
  AveragedWeights wrong(net, [](std::int64_t) { return -1.0; });
  wrong.update();
  EXPECT_NE(error_of([&] { wrong.update(); }).find("found -1 in update 1"), std::string::npos);
}

struct CountingTower : Tower {
  nn::Buffer seen{this, "seen", zeros({2})};
};

/// A training that keeps an average, from the beginning or from a checkpoint, and what it ends with.
Values train(const ProcessGroupPtr& group, int zero, const std::string& load, const std::string& save) {
  CountingTower tower;
  set_tower(tower);
  tower.blocks[1].set_requires_grad(false);
  TrainingStep step(tower, {.group = group, .logical_shards = 4, .zero = zero >= 2 ? zero : 0});
  auto adamw = std::make_unique<optim::AdamW>(tower.parameters(), optim::AdamWOptions{.lr = 0.01});
  std::unique_ptr<optim::Optimizer> optimizer = std::move(adamw);
  if (zero == 1) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), group);
  if (zero >= 2) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
  AveragedWeights average(tower, 0.9, {.use_buffers = true});
  std::uint32_t first = 0;
  if (!load.empty()) {
    first = static_cast<std::uint32_t>(load_checkpoint(load, tower, *optimizer, *group).step);
    average.load(nn::SafetensorsFile(load));
  }
  for (std::uint32_t i = first; i < 5; ++i) {
    const RandomKeyGuard key(i, 0);
    step(make_batch(9, i + 1), tower_loss);
    optimizer->step();
    fill_values(tower.seen, i + 1);
    average.update();
    if (i == 2 && !save.empty())
      save_checkpoint(save, tower, *optimizer, {.step = 3, .tensors = average.state()}, *group);
  }
  EXPECT_EQ(average.updates(), 5);
  Values all = values_of(average.state());
  const auto add_weights = [&] {
    const WholeParameters whole = step.whole_parameters();
    const Values weights = weights_of(tower);
    all.insert(all.end(), weights.begin(), weights.end());
  };
  {
    const auto held = average.hold();
    add_weights();
  }
  add_weights();
  return all;
}

TEST(AveragedWeights, AreTheSameHoweverTheModelIsDivided) {
  const TemporaryPath saved_alone;
  const Values one = train(make_single_process_group(), 0, {}, saved_alone.text());
  for (const int zero : {0, 1, 2, 3}) {
    const TemporaryPath saved;
    run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
      EXPECT_EQ(largest_difference(train(group, zero, {}, saved.text()), one), 0.0) << "ZeRO-" << zero;
      EXPECT_EQ(largest_difference(train(group, zero, saved_alone.text(), {}), one), 0.0) << "ZeRO-" << zero;
    });
    EXPECT_EQ(largest_difference(train(make_single_process_group(), 0, saved.text(), {}), one), 0.0);
  }
}

struct Normed : nn::Module {
  nn::Linear fc{this, "fc", 2, 3};
  nn::BatchNorm1d norm{this, "norm", 3};
  Tensor forward(Tensor x) override { return norm(fc(x)); }
};

TEST(AveragedWeights, OfBuffersToo) {
  Normed model;
  AveragedWeights average(model, 0.5, {.use_buffers = true}), without(model, 0.5);
  Values expected;
  for (int i = 0; i < 3; ++i) {
    model(testing::make_input({4, 2}, static_cast<std::uint32_t>(i), kFloat32));  // writes the running statistics
    average.update();
    without.update();
    const Values now = values_of(model.named_buffers());
    if (i == 0) expected = now;
    for (std::size_t b = 0; b < now.size(); ++b)
      for (std::size_t k = 0; k < now[b].size(); ++k)
        expected[b][k] =
            model.named_buffers()[b].tensor.is_floating_point() ? (expected[b][k] + now[b][k]) / 2 : now[b][k];
  }
  const Values before = values_of(model.named_buffers());
  EXPECT_GT(largest_difference(before, expected), 1e-4);
  {
    const auto held = average.hold();
    EXPECT_LT(largest_difference(values_of(model.named_buffers()), expected), 1e-6);
  }
  EXPECT_EQ(largest_difference(values_of(model.named_buffers()), before), 0.0);
  {
    const auto held = without.hold();
    EXPECT_EQ(largest_difference(values_of(model.named_buffers()), before), 0.0);
  }
  const TemporaryPath path;
  nn::TrainingState state;
  state.tensors = average.state();
  nn::save_checkpoint(path.text(), model, optim::SGD(model.parameters()), state);
  AveragedWeights loaded(model, 0.5, {.use_buffers = true});
  loaded.load(nn::SafetensorsFile(path.text()));
  const auto held = loaded.hold();
  EXPECT_LT(largest_difference(values_of(model.named_buffers()), expected), 1e-6);
}

TEST(AveragedWeights, ZerosKeepTheirSign) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Tower tower;
    copy_values(full({kClasses}, -0.0), tower.shift.detach());
    copy_values(full({7}, 0.0), tower.in.bias.detach());
    const TrainingStep step(tower, {.group = group, .zero = 3});
    AveragedWeights average(tower, 0.9);
    average.update();
    for (const nn::NamedTensor& each : average.state())
      for (const double value : each.tensor.to_vector<double>()) {
        if (each.name == "average.shift") {
          EXPECT_TRUE(value == 0.0 && std::signbit(value));
        }
        if (each.name == "average.in.bias") {
          EXPECT_TRUE(value == 0.0 && !std::signbit(value));
        }
      }
  });
}

// Weights come back though what was whole meanwhile had the averages.
TEST(AveragedWeights, MayBeLetGoOfBeforeWhatIsWhole) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    Tower tower;
    set_tower(tower);
    TrainingStep step(tower, {.group = group, .zero = 3});
    const auto weights = [&] {
      const WholeParameters whole = step.whole_parameters();
      return weights_of(tower);
    };
    AveragedWeights average(tower, 0.9);
    {
      const WholeParameters whole = step.whole_parameters();
      EXPECT_NE(error_of([&] {
                  static_cast<void>(average.hold());
                }).find("[AveragedWeights] hold() was called while whole_parameters() are held"),
                std::string::npos);
      copy_values(full({kClasses}, 9.0), tower.shift.detach());
    }
    const Values before = weights();
    std::optional<AveragedWeights::Held> held(average.hold());
    {
      const WholeParameters whole = step.whole_parameters();
      EXPECT_GT(largest_difference(weights_of(tower), before), 8.0);
      held.reset();
    }
    EXPECT_EQ(largest_difference(weights(), before), 0.0);
  });
}

// In eight bits of mantissa an average of this decay would stand still.
TEST(AveragedWeights, OfHalfTypesAreFloat32) {
  Net net;
  set_weights(net);
  net.to(kBFloat16);
  AveragedWeights average(net, 0.999);
  average.update();
  const NoGradGuard values_only;
  net.fc1.bias.fill_(0.5);
  const double before = average.state()[1].tensor.select(0, 2).item<double>();
  for (int i = 0; i < 10; ++i) {
    average.update();
    const auto held = average.hold();  // rounds what the module has, and not the averages
  }
  EXPECT_EQ(average.state()[1].tensor.dtype(), kFloat32);
  EXPECT_NEAR(average.state()[1].tensor.select(0, 2).item<double>(), 0.5 + (before - 0.5) * std::pow(0.999, 10), 1e-6);
}

// Of a model on a mesh they are read as the whole.
TEST(AveragedWeights, OfAMeshAreThoseOfOneProcess) {
  const auto make = [] {
    auto model = std::make_unique<nn::Sequential>();
    model->add<nn::Linear>(kFeatures, 4);
    model->add<nn::ReLU>();
    model->add<nn::Linear>(4, 4);
    model->add<nn::ReLU>();
    model->add<nn::Linear>(4, kClasses);
    return model;
  };
  const auto train_on = [&](const ProcessGroupPtr& group, const MeshSizes& sizes) {
    const Mesh mesh(group, sizes);
    const auto model = make();
    set_weights(*model);
    const TensorParallel divided(*model, {{"0", TensorSplit::column}, {"2", TensorSplit::row}},
                                 {.group = mesh.tensor(), .logical_shards = 2});
    const PipelineParallel pipeline(
        *model, pipeline_layers(*model),
        {.group = mesh.pipeline(),
         .layers_of_chunks = sizes.pipeline == 2 ? std::vector<std::int64_t>{3, 2} : std::vector<std::int64_t>{}});
    TrainingStep step(*model, {.group = mesh.data(), .logical_shards = 2, .model_part = pipeline.part()});
    const MeshModel whole(*model, mesh, &pipeline, &divided, make, [](std::vector<Tensor> parameters) {
      return std::make_unique<optim::SGD>(std::move(parameters), optim::SGDOptions{.lr = 0.2});
    });
    const auto optimizer = whole.make_optimizer();
    AveragedWeights average(*model, 0.5);
    for (std::uint32_t i = 0; i < 4; ++i) {
      step(make_batch(8, i), mean_loss);
      optimizer->step();
      average.update();
    }
    if (group->world_size() > 1) {
      EXPECT_NE(error_of([&] { average.state(); }).find("save MeshModel::whole()"), std::string::npos);
    }
    const auto held = average.hold();
    return whole.sha256().first;
  };
  const std::string one = train_on(make_single_process_group(), {});
  run_on({4, Link::in_process}, [&](const ProcessGroupPtr& group) {
    EXPECT_EQ(train_on(group, {.pipeline = 2, .tensor = 2}), one);
    EXPECT_EQ(train_on(group, {.data = 2, .tensor = 2}), one);
  });
}

TEST(AveragedWeights, ACheckpointWithoutThemSaysSo) {
  const TemporaryPath path;
  Net net;
  optim::SGD sgd(net.parameters(), optim::SGDOptions{.lr = 0.5});
  AveragedWeights average(net, 0.9);
  nn::save_checkpoint(path.text(), net, sgd, {.step = 1});
  EXPECT_NE(error_of([&] { average.load(nn::SafetensorsFile(path.text())); }).find("holds no average of 'fc1.weight'"),
            std::string::npos);
  Tower tower;
  optim::SGD other(tower.parameters(), optim::SGDOptions{.lr = 0.5});
  AveragedWeights of_tower(tower, 0.9);
  nn::save_checkpoint(path.text(), tower, other, {.step = 1, .tensors = of_tower.state()});
  tower.to(kFloat64);
  AveragedWeights wider(tower, 0.9);
  EXPECT_NE(error_of([&] { wider.load(nn::SafetensorsFile(path.text())); }).find("float32 [7, 6], expected float64"),
            std::string::npos);
}

TEST(AveragedWeights, SayThatWhatWasWrittenWhileTheyWereHeldIsLost) {
  Net net;
  set_weights(net);
  AveragedWeights average(net, 0.9);
  const auto warning_of = [&](const std::function<void()>& body) {
    ::testing::internal::CaptureStderr();
    {
      const auto held = average.hold();
      body();
    }
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warning_of([&] { static_cast<void>(mean_loss(net, make_batch(8)).item<double>()); }), "");
  optim::SGD sgd(net.parameters(), optim::SGDOptions{.lr = 0.5});
  const std::string warning = warning_of([&] {
    mean_loss(net, make_batch(8)).backward();
    sgd.step();
  });
  EXPECT_NE(warning.find("what was written is lost"), std::string::npos) << warning;
}

// Of divided parameters; what a rank has on its way when another one is gone must not end the process.
TEST(AveragedWeights, AreLetGoOfWhereAnotherRankHasFailed) {
  const auto store = std::make_shared<HashStore>();
  const auto boxes = std::make_shared<lockstep::testing::Mailboxes>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const ProcessGroupPtr group =
          make_transport_group("in_process", {.rank = rank, .world_size = 2, .timeout = Milliseconds(1'500)},
                               std::make_unique<lockstep::testing::InProcessTransport>(boxes, rank), store);
      Tower tower;
      set_tower(tower);
      TrainingStep step(tower, {.group = group, .zero = 3});
      const auto optimizer = zero_redundancy<optim::SGD>(step, {.lr = 0.1});
      step(make_batch(8), tower_loss);
      optimizer->step();
      AveragedWeights average(tower, 0.9);
      const auto evaluate_held = [&] {
        const auto held = average.hold();
        if (rank == 1) throw Error("a mistake of the user's");
        const data::Batch batch = make_batch(8);
        const auto set = std::make_shared<data::TensorDataset>(batch.x, batch.y);
        evaluate(tower, set, 1,
                 [&](const data::Batch& part) { return std::vector<double>{tower_loss(tower, part).item<double>()}; },
                 {.batch_size = 4, .group = group.get()});
      };
      EXPECT_NE(error_of(evaluate_held), "");
    });
  for (std::thread& thread : threads) thread.join();
}

// Averages of different numbers of steps are no one's.
TEST(AveragedWeights, OfRanksThatWereUpdatedMoreOftenThanOthersAreAnError) {
  run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
    Tower tower;
    set_tower(tower);
    const TrainingStep step(tower, {.group = group, .zero = 3});
    AveragedWeights average(tower, 0.9);
    average.update();
    if (group->rank() == 1) average.update();
    const std::string error = error_of([&] { average.state(); });
    EXPECT_NE(error.find("found 1 on one and 2 on another"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace lockstep::distributed
