// What a pipeline meets that is not as usual: batches that do not divide, stages without work, failures of a stage.

#include <fmt/core.h>

#include <chrono>
#include <mutex>
#include <thread>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/node.h"
#include "lockstep/autograd/record.h"
#include "lockstep/nn/container.h"
#include "tests/distributed/parallel/pipeline_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;
using enum PipelineSchedule;

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

// --- batches ---------------------------------------------------------------------------------------------------------

// 3 samples and fewer, for 5 micro-batches or 8 shards: some micro-batches, and some ranks, have none.
TEST(PipelineBatches, SmallerThanMicroBatches) {
  for (const std::int64_t samples : {2, 3}) {
    const Trained one =
        train_on_mesh({.adam = false, .steps = 5, .samples = samples}, make_single_process_group(), {}, true);
    const Training sums{.adam = false, .accumulate = 5, .sums = true, .steps = 5, .samples = samples};
    const Trained of_sums = train_on_mesh({.adam = false, .sums = true, .steps = 5, .samples = samples},
                                          make_single_process_group(), {}, true);
    const Training shards{.shards = 8, .clip = 0.01, .dropout = 0.1, .steps = 5, .samples = samples};
    const Trained lockstep = train_on_mesh(shards, make_single_process_group(), {}, true);
    for (const MeshSizes& sizes : {MeshSizes{.pipeline = 3}, MeshSizes{.data = 2, .pipeline = 2}, MeshSizes{.data = 4}})
      run_in(sizes.data * sizes.pipeline, [&](const ProcessGroupPtr& group) {
        EXPECT_LE(
            difference_of(train_on_mesh({.adam = false, .accumulate = 5, .steps = 5, .samples = samples}, group, sizes),
                          one),
            1e-6)
            << samples << " samples, " << to_string(sizes);
        EXPECT_LE(difference_of(train_on_mesh(sums, group, sizes), of_sums), 1e-6)
            << samples << " samples, sums, " << to_string(sizes);
        EXPECT_EQ(difference_of(train_on_mesh(shards, group, sizes), lockstep), 0.0)
            << samples << " samples, " << to_string(sizes);
      });
  }
}

TEST(PipelineBatches, AnyNumberOfMicroBatchesInterleaved) {
  const Trained one = train_on_mesh({.adam = false, .steps = 4}, make_single_process_group(), {}, true);
  for (const std::int64_t micro_batches : {1, 2, 3, 5, 7})
    run_in(3, [&](const ProcessGroupPtr& group) {
      EXPECT_LE(difference_of(
                    train_on_mesh(
                        {.adam = false, .accumulate = micro_batches, .schedule = interleaved, .chunks = 2, .steps = 4},
                        group, {.pipeline = 3}),
                    one),
                1e-6)
          << micro_batches;
    });
}

// Six micro-batches of 4 MB are on their way at once, in both directions.
TEST(PipelineLinks, CarryLargeMessagesOnEveryTransport) {
  constexpr std::int64_t kWide = 4096;
  for (const Link link : {Link::shm, Link::gloo})
    lockstep::testing::run_ranks(3, link, [&](ProcessGroup& group) {
      nn::Sequential net;
      for (int i = 0; i < 6; ++i) net.add<nn::LayerNorm>(Shape{kWide});
      const PipelineParallel pipeline(net, pipeline_layers(net),
                                      {.group = group.shared_from_this(), .schedule = gpipe});
      TrainingStep step(net, {.group = make_single_process_group(), .accumulate = 6, .model_part = pipeline.part()});
      const Tensor x = make_input({6 * 256, kWide}, 3, kFloat32);
      for (int i = 0; i < 2; ++i) {
        const Tensor loss = step({x, {}}, [](nn::Module& last, const data::Batch& part) {
          return (last.forward(part.x) * last.forward(part.x)).mean();
        });
        EXPECT_NEAR(loss.item<double>(), 1.0, 1e-3) << name_of(link);
      }
      if (group.rank() > 0) {
        EXPECT_EQ(pipeline.bytes_sent(), (group.rank() == 1 ? 2 : 1) * 2 * 6 * 256 * kWide * 4);
      }
    });
}

// --- models ----------------------------------------------------------------------------------------------------------

/// Batch norm, a layer without parameters at an end, a frozen one, a parameter that nobody uses.
struct Mixed : nn::Module {
  Mixed() { frozen.set_requires_grad(false); }
  nn::Linear first{this, "first", kFeatures, 8};
  nn::BatchNorm1d norm{this, "norm", 8};
  nn::Linear frozen{this, "frozen", 8, 8};
  nn::Linear unused{this, "unused", 4, 4};
  nn::Linear last{this, "last", 8, kClasses};
  Tensor forward(Tensor x) override { return last(relu(frozen(norm(first(x))))) * 2.0; }
  std::vector<PipelineLayer> layers() {
    return {{"first", {&first}},
            {"norm", {&norm}},
            {"frozen", {&frozen, &unused}, [this](const Tensor& x) { return relu(frozen(x)); }},
            {"last", {&last}},
            {"scale", {}, [](const Tensor& x) { return x * 2.0; }}};
  }
};

Values train_mixed(const ProcessGroupPtr& world, const MeshSizes& sizes, std::int64_t shards, bool plain,
                   bool recompute = false) {
  const Mesh mesh(world, sizes);
  Mixed model;
  set_weights(model);
  std::optional<PipelineParallel> pipeline;
  if (!plain) {
    std::vector<std::int64_t> each(static_cast<std::size_t>(sizes.pipeline), 1);
    each.front() = 5 - sizes.pipeline + 1;
    pipeline.emplace(
        model, model.layers(),
        PipelineParallelOptions{.group = mesh.pipeline(), .layers_of_chunks = each, .recompute = recompute});
  }
  TrainingStep step(model,
                    {.group = mesh.data(), .logical_shards = shards, .model_part = plain ? nullptr : pipeline->part()});
  optim::SGD optimizer(plain ? model.parameters() : pipeline->parameters(),
                       {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
  for (std::uint32_t i = 0; i < 8; ++i) {
    step(make_batch(12 - i % 3, i), mean_loss);
    optimizer.step();
  }
  Values values = values_of(plain ? model.state() : pipeline->full_state());
  model.eval();
  const data::Batch batch = make_batch(6, 99);
  const NoGradGuard values_only;
  const auto measure = [&](const Tensor& output) {
    return std::vector<double>{cross_entropy(output, batch.y).item<double>(), static_cast<double>(output.numel())};
  };
  values.push_back(plain ? measure(model(batch.x)) : pipeline->evaluate(batch.x, measure));
  return values;
}

// Running statistics, frozen and unused parameters and stages without any, and an evaluation, which all ranks hear of.
TEST(PipelineModels, OfAllKinds) {
  const Values one = train_mixed(make_single_process_group(), {}, 4, true);
  ASSERT_GT(one.size(), 10u);
  for (const MeshSizes& sizes : {MeshSizes{.pipeline = 2}, MeshSizes{.pipeline = 3}, MeshSizes{.pipeline = 5},
                                 MeshSizes{.data = 2, .pipeline = 2}})
    run_in(sizes.data * sizes.pipeline, [&](const ProcessGroupPtr& group) {
      EXPECT_EQ(largest_difference(train_mixed(group, sizes, 4, false), one), 0.0) << to_string(sizes);
    });
}

// The second pass counts no batch: running statistics are part of what is compared.
TEST(PipelineModels, WithBatchNormRecomputedHaveTheSameBits) {
  const Values one = train_mixed(make_single_process_group(), {}, 4, true);
  for (const MeshSizes& sizes :
       {MeshSizes{.pipeline = 2}, MeshSizes{.pipeline = 3}, MeshSizes{.data = 2, .pipeline = 2}})
    run_in(sizes.data * sizes.pipeline, [&](const ProcessGroupPtr& group) {
      EXPECT_EQ(largest_difference(train_mixed(group, sizes, 4, false, true), one), 0.0) << to_string(sizes);
      EXPECT_EQ(largest_difference(train_mixed(group, sizes, 0, false, true), train_mixed(group, sizes, 0, false)), 0.0)
          << to_string(sizes) << ", without lockstep";
    });
}

TEST(PipelineModels, ASequentialIsAPlan) {
  const auto make = [] {
    auto net = std::make_unique<nn::Sequential>();
    net->add<nn::Linear>(kFeatures, 7).add<nn::ReLU>().add<nn::Linear>(7, kClasses);
    (*net)[0].register_forward_hook([](auto&, const Tensor&, Tensor& out) { out = out * 2.0; });
    set_weights(*net);
    return net;
  };
  const auto train = [&](nn::Module& net, const TrainingStepOptions& options, std::vector<Tensor> parameters) {
    TrainingStep step(net, options);
    optim::SGD optimizer(std::move(parameters), {.lr = 0.1});
    for (std::uint32_t i = 0; i < 5; ++i) {
      step(make_batch(8, i), mean_loss);
      optimizer.step();
    }
  };
  const auto alone = make();
  train(*alone, {.logical_shards = 4}, alone->parameters());
  run_in(2, [&](const ProcessGroupPtr& group) {
    const auto net = make();
    const auto layers = pipeline_layers(*net);
    const PipelineParallel pipeline(*net, layers,
                                    {.group = group, .costs = measure_layers(layers, make_batch(8).x, group)});
    EXPECT_EQ(pipeline.layers_of_chunks().size(), 2u);
    train(*net, {.group = make_single_process_group(), .logical_shards = 4, .model_part = pipeline.part()},
          pipeline.parameters());
    EXPECT_EQ(largest_difference(values_of(pipeline.full_state()), weights_of(*alone)), 0.0);
  });
}

// A program that trains the upper layers alone gives its optimizer what requires gradients; a stage without such has a
// tensor of no elements that does.
TEST(PipelineModels, AStageMayBeFrozen) {
  const auto train = [](const ProcessGroupPtr& group) {
    nn::Sequential net;
    net.add<nn::Linear>(kFeatures, 7).add<nn::ReLU>().add<nn::Linear>(7, kClasses);
    set_weights(net);
    net[0].set_requires_grad(false);
    const PipelineParallel pipeline(net, pipeline_layers(net), {.group = group});
    TrainingStep step(net, {.group = make_single_process_group(), .logical_shards = 4, .model_part = pipeline.part()});
    std::vector<Tensor> trained = pipeline.parameters();
    std::erase_if(trained, [](const Tensor& each) { return !each.requires_grad(); });
    optim::AdamW optimizer(trained, {.lr = 0.1});
    for (std::uint32_t i = 0; i < 5; ++i) {
      step(make_batch(8, i), mean_loss);
      optimizer.step();
    }
    return values_of(pipeline.full_state());
  };
  const Values alone = train(make_single_process_group());
  run_in(2, [&](const ProcessGroupPtr& group) { EXPECT_EQ(largest_difference(train(group), alone), 0.0); });
}

// A rank keeps its own layers' parameters alone.
TEST(PipelineModels, AreDivided) {
  run_in(2, [&](const ProcessGroupPtr& group) {
    Chain model;
    std::int64_t whole = 0;
    for (const Tensor& p : model.parameters()) whole += p.numel();
    const PipelineParallel pipeline(model, model.layers(), {.group = group});
    std::int64_t here = 0;
    for (const Tensor& p : model.parameters()) here += p.numel();
    EXPECT_LT(here, whole * 6 / 10);
    std::vector<std::string> names;
    for (const nn::NamedTensor& each : pipeline.named_parameters()) names.push_back(each.name);
    EXPECT_NE(std::ranges::find(names, "table.weight"), names.end()) << "tied: on both";
    EXPECT_EQ(std::ranges::find(names, group->rank() == 0 ? "norm.weight" : "blocks.0.up.weight"), names.end());
  });
}

// --- what does not fit -----------------------------------------------------------------------------------------------

TEST(PipelineErrors, ComeAtConstruction) {
  Chain model(0.0, 1);
  const auto of = [&](const PipelineParallelOptions& options, std::vector<PipelineLayer> layers) {
    return error_of([&] { PipelineParallel(model, std::move(layers), options); });
  };
  expect_in(of({.schedule = interleaved}, model.layers()), "expected 2 or more with interleaved");
  expect_in(of({.chunks = 2}, model.layers()), "1 with the others");
  expect_in(of({.schedule = interleaved, .chunks = 4}, model.layers()),
            "the model has 3 layers, fewer than the 4 that 1 stage(s) of 4 chunk(s) need");
  expect_in(of({.layers_of_chunks = {2}}, model.layers()), "expected 1 numbers above 0, and 3 layers");
  expect_in(of({.costs = {1.0}}, model.layers()), "1 costs were given for 3 layers");
  std::vector<PipelineLayer> layers = model.layers();
  layers.erase(layers.begin() + 1);
  expect_in(of({}, layers), "'blocks.0.norm1.weight' belongs to no layer of the plan");
  layers = model.layers();
  layers[0].forward = {};
  expect_in(of({}, layers), "layer 'table' has 2 modules and no forward");
  Net other;
  layers = model.layers();
  layers[0].modules.push_back(&other);
  expect_in(of({}, layers), "has a tensor [5, 6] that the module does not have");
  EXPECT_EQ(model.table.weight.size(0), kVocabulary) << "nothing has changed";
  run_in(4, [&](const ProcessGroupPtr& group) {
    Chain small(0.0, 1);
    expect_in(error_of([&] { PipelineParallel(small, small.layers(), {.group = group}); }),
              "the model has 3 layers, fewer than the 4 that 4 stage(s)");
  });
  run_in(2, [&](const ProcessGroupPtr& group) {
    Chain small(0.0, 1);
    expect_in(error_of([&] {
                PipelineParallel(small, small.layers(),
                                 {.group = group, .schedule = group->rank() == 0 ? gpipe : one_forward_one_backward});
              }),
              "the ranks were given different plans");
  });
  expect_in(error_of([&] {
              const PipelineParallel pipeline(model, model.layers());
              TrainingStep(model, {.model_part = pipeline.part()});
            }),
            "a part of a model was given without a group");
  const PipelineParallel whole(model, model.layers());
  TrainingStep step(model, {.group = make_single_process_group(), .model_part = whole.part()});
  expect_in(error_of([&] { step.join(tokens_of(2, 1), mean_loss); }), "is not for a model that is spread over ranks");
}

// --- failures --------------------------------------------------------------------------------------------------------

/// What each rank of a pipeline of `stages` ends with if `trouble` is called before each forward of layer `layer`, with
/// the number of the micro-batch; and how many seconds all took.
std::vector<std::string> errors_with(int stages, const std::string& layer,
                                     const std::function<void(std::int64_t micro_batch)>& trouble,
                                     const std::function<void(std::int64_t micro_batch)>& loss_trouble = {},
                                     Milliseconds timeout = Milliseconds(20'000)) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::string> errors =
      lockstep::testing::errors_of_ranks(stages, Link::in_process, timeout, [&](ProcessGroup& group) {
        Chain model;
        set_weights(model);
        std::vector<PipelineLayer> layers = model.layers();
        std::int64_t calls = 0, losses = 0;
        for (PipelineLayer& each : layers)
          if (each.name == layer)
            each.forward = [&, module = each.modules.front()](const Tensor& x) {
              trouble(calls++);
              return module->forward(x);
            };
        const PipelineParallel pipeline(model, layers, {.group = group.shared_from_this()});
        TrainingStep step(model,
                          {.group = make_single_process_group(), .accumulate = 5, .model_part = pipeline.part()});
        for (std::uint32_t i = 0; i < 2; ++i)
          step(tokens_of(10, i + 1), [&](nn::Module& net, const data::Batch& part) {
            if (loss_trouble) loss_trouble(losses++);
            return cross_entropy(linear(net.forward(part.x), model.table.weight), part.y.reshape({-1}));
          });
      });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_LT(seconds, 15.0) << "nobody waits for long";
  return errors;
}

TEST(PipelineFailures, OfALayerNameStageMicroBatchAndLayer) {
  const auto errors = errors_with(3, "blocks.2", [](std::int64_t micro_batch) {
    if (micro_batch == 3) throw Error("the oven is cold");
  });
  ASSERT_EQ(errors.size(), 3u);
  const auto cause = std::ranges::find_if(errors, [](const std::string& e) {
    return e.find("[pipeline] stage 1 of 3, micro-batch 3, forward of layer 'blocks.2': the oven is cold") == 0;
  });
  EXPECT_EQ(cause - errors.begin(), 1) << errors[1];
  for (const int rank : {0, 2}) expect_in(errors[static_cast<std::size_t>(rank)], "the oven is cold");
}

TEST(PipelineFailures, OfTheLossNameIt) {
  const auto errors = errors_with(
      3, "none", [](std::int64_t) {},
      [](std::int64_t micro_batch) {
        if (micro_batch == 6) throw std::runtime_error("no target");
      });
  expect_in(errors[2], "[pipeline] stage 2 of 3, micro-batch 1, the loss behind forward of");
  for (const std::string& error : errors) expect_in(error, "no target");
}

/// Throws in its n-th backward.
struct Trap final : Node {
  static inline std::atomic<int> left = 0;
  const char* name() const override { return "Trap"; }
  TensorList apply(TensorList grads) override {
    if (--left == 0) throw Error("the trap has shut");
    return grads;
  }
};

TEST(PipelineFailures, OfABackwardNameIt) {
  Trap::left = 4;
  const auto errors =
      lockstep::testing::errors_of_ranks(2, Link::in_process, Milliseconds(20'000), [](ProcessGroup& g) {
        Chain model;
        set_weights(model);
        std::vector<PipelineLayer> layers = model.layers();
        layers[1].forward = [&](const Tensor& x) {
          const Tensor y = model.blocks[0](x);
          const Tensor out = y.detach();
          record<Trap>(out, {&y});
          return out;
        };
        const PipelineParallel pipeline(model, layers, {.group = g.shared_from_this()});
        TrainingStep step(model,
                          {.group = make_single_process_group(), .accumulate = 5, .model_part = pipeline.part()});
        step(tokens_of(10, 1), [&](nn::Module& net, const data::Batch& part) {
          return cross_entropy(linear(net.forward(part.x), model.table.weight), part.y.reshape({-1}));
        });
      });
  expect_in(errors[0], "[pipeline] stage 0 of 2, micro-batch 3, backward of layers 'table' to ");
  for (const std::string& error : errors) expect_in(error, "the trap has shut");
}

// A stage that hangs is named by those that wait for it, at their deadline.
TEST(PipelineFailures, AStageThatStallsIsNamedAtTheDeadline) {
  const auto errors = errors_with(
      3, "blocks.2",
      [](std::int64_t micro_batch) {
        if (micro_batch == 2) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      },
      {}, Milliseconds(800));
  // Its neighbours wait side by side; the first one to give up has the message.
  const bool told = std::ranges::any_of(errors, [](const std::string& error) {
    return error.find("micro-batch ") != std::string::npos && error.find("from stage 1, layers") != std::string::npos &&
           error.find("timed out waiting for rank 1") != std::string::npos;
  });
  EXPECT_TRUE(told) << fmt::format("{}\n{}\n{}", errors[0], errors[1], errors[2]);
  for (const std::string& error : errors) EXPECT_FALSE(error.empty());
}

}  // namespace
}  // namespace lockstep::distributed
