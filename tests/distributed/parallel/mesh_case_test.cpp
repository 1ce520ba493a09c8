// Models of all kinds on meshes, and what is unusual there: frozen layers, ranks that disagree, batches without
// samples, graphs that are used twice, gradients that are not finite.

#include <fmt/core.h>

#include <cmath>
#include <numeric>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/distributed/pipeline_parallel/mesh_model.h"
#include "lockstep/nn/optim/grad_scaler.h"
#include "tests/distributed/parallel/pipeline_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;
using lockstep::testing::errors_of_ranks;
using lockstep::testing::run_ranks;

int ranks_of(const MeshSizes& sizes) {
  return sizes.data * sizes.pipeline * sizes.tensor;
}

// --- models that are no transformers ---------------------------------------------------------------------------------

/// A convolutional net with batch norm and a head whose layers are divided; or, of vectors, a perceptron whose first
/// layer is, and reads what needs no gradient.
struct Classifier : nn::Module {
  explicit Classifier(bool convolves)
      : convolves(convolves), up(this, "up", convolves ? 4 * 3 * 3 : kFeatures, 8), down(this, "down", 8, kClasses) {
    if (!convolves) return;
    conv.emplace(this, "conv", 1, 4, 3, nn::Conv2dOptions{.padding = 1});
    norm.emplace(this, "norm", 4);
  }
  bool convolves;
  std::optional<nn::Conv2d> conv;
  std::optional<nn::BatchNorm2d> norm;
  nn::Linear up, down;

  Tensor look(const Tensor& x) {
    return convolves ? max_pool2d(relu((*norm)((*conv)(x.view({x.size(0), 1, 6, 6})))), 2).reshape({-1, 36}) : x;
  }
  Tensor forward(Tensor x) override { return down(relu(up(look(x)))); }
  std::vector<PipelineLayer> layers() {
    std::vector<PipelineLayer> all;
    if (convolves) all.push_back({"look", {&*conv, &*norm}, [this](const Tensor& x) { return look(x); }});
    all.push_back({"up", {&up}, [this](const Tensor& x) { return relu(up(x)); }});
    all.push_back({"down", {&down}});
    return all;
  }
};

const std::vector<TensorRule> kHead{{"up", TensorSplit::column}, {"down", TensorSplit::row}};

data::Batch batch_of(bool convolves, std::int64_t n, std::uint32_t seed) {
  data::Batch batch = make_batch(n, seed);
  if (convolves) batch.x = make_input({n, 36}, seed, kFloat32);
  return batch;
}

Values train_classifier(bool convolves, const ProcessGroupPtr& world, const MeshSizes& sizes) {
  const Mesh mesh(world, sizes);
  Classifier model(convolves);
  set_weights(model);
  const TensorParallel divided(model, kHead, {.group = mesh.tensor(), .logical_shards = 2});
  std::optional<PipelineParallel> pipeline;
  if (sizes.pipeline > 1) pipeline.emplace(model, model.layers(), PipelineParallelOptions{.group = mesh.pipeline()});
  TrainingStep step(model,
                    {.group = mesh.data(), .logical_shards = 4, .model_part = pipeline ? pipeline->part() : nullptr});
  const MeshModel whole(
      model, mesh, pipeline ? &*pipeline : nullptr, &divided, [&] { return std::make_unique<Classifier>(convolves); },
      [](const std::vector<Tensor>& parameters) { return make_optimizer(true, parameters); });
  const auto optimizer = whole.make_optimizer();
  // The last batch of an epoch is smaller than the mesh.
  for (std::uint32_t i = 0; i < 6; ++i) {
    step(batch_of(convolves, i == 3 ? 1 : 9 - i, i), mean_loss);
    whole.clip_grad_norm(0.5, *optimizer);
    optimizer->step();
  }
  return values_of(pipeline ? pipeline->full_state(&divided) : divided.full_state());
}

TEST(MeshModels, ConvolutionalNetsAndPerceptronsToo) {
  for (const bool convolves : {false, true}) {
    const Values one = train_classifier(convolves, make_single_process_group(), {});
    for (const MeshSizes& sizes :
         {MeshSizes{.tensor = 2}, MeshSizes{.pipeline = 2}, MeshSizes{.data = 2, .pipeline = 2, .tensor = 2},
          MeshSizes{.data = 4}, MeshSizes{.data = 3, .tensor = 2}})
      run_in(ranks_of(sizes), [&](const ProcessGroupPtr& group) {
        EXPECT_EQ(largest_difference(train_classifier(convolves, group, sizes), one), 0.0)
            << to_string(sizes) << (convolves ? ", convolutional" : "");
      });
  }
}

// --- frozen layers ---------------------------------------------------------------------------------------------------

Values train_frozen(const std::vector<std::string>& trained, const ProcessGroupPtr& world, const MeshSizes& sizes,
                    int zero) {
  const Mesh mesh(world, sizes);
  Chain model(0.1, 3);
  set_weights(model);
  for (const nn::NamedTensor& each : model.named_parameters())
    each.tensor.set_requires_grad(
        std::ranges::any_of(trained, [&](const std::string& name) { return each.name.starts_with(name); }));
  const TensorParallel divided(model, kChainPlan, {.group = mesh.tensor(), .logical_shards = 2});
  std::optional<PipelineParallel> pipeline;
  if (sizes.pipeline > 1) pipeline.emplace(model, model.layers(), PipelineParallelOptions{.group = mesh.pipeline()});
  TrainingStep step(model, {.group = mesh.data(),
                            .logical_shards = 4,
                            .model_part = pipeline ? pipeline->part() : nullptr,
                            .zero = zero >= 2 ? zero : 0});
  std::unique_ptr<optim::Optimizer> optimizer =
      make_optimizer(true, pipeline ? pipeline->parameters() : model.parameters());
  if (zero > 0) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
  auto* const sharded = dynamic_cast<ZeroRedundancyOptimizer*>(optimizer.get());
  for (std::uint32_t i = 0; i < 4; ++i) {
    step(tokens_of(7 - i % 2, i + 1), [&](nn::Module& net, const data::Batch& part) {
      return divided.cross_entropy(net.forward(part.x), model.table.weight, part.y.reshape({-1}));
    });
    if (pipeline)
      pipeline->clip_grad_norm(0.05, &divided, sharded);
    else
      divided.clip_grad_norm(0.05);
    optimizer->step();
  }
  const WholeParameters whole = step.whole_parameters();
  return values_of(pipeline ? pipeline->full_state(&divided) : divided.full_state());
}

// All but a first, middle or last layer; with the state of the optimizer divided too, of which a stage may have none.
TEST(MeshModels, MayHaveFrozenLayers) {
  for (const std::vector<std::string>& trained :
       std::vector<std::vector<std::string>>{{"norm"}, {"blocks.1"}, {"blocks.2.up", "norm"}, {"table"}}) {
    const Values one = train_frozen(trained, make_single_process_group(), {}, 0);
    for (const auto& [sizes, zero] : {std::pair{MeshSizes{.pipeline = 2}, 0},
                                      {{.pipeline = 3}, 0},
                                      {{.data = 2, .pipeline = 2}, 1},
                                      {{.data = 2, .pipeline = 2}, 2},
                                      {{.data = 2, .pipeline = 3}, 3},
                                      {{.pipeline = 2, .tensor = 2}, 0}})
      run_in(ranks_of(sizes), [&, sizes = sizes, zero = zero](const ProcessGroupPtr& group) {
        EXPECT_EQ(largest_difference(train_frozen(trained, group, sizes, zero), one), 0.0)
            << to_string(sizes) << ", trained: " << trained.front();
      });
  }
}

// --- ranks that disagree ---------------------------------------------------------------------------------------------

TEST(MeshErrors, OfRanksThatDisagreeEndAll) {
  const auto all_know = [](const std::vector<std::string>& errors, const char* what) {
    for (const std::string& error : errors) EXPECT_NE(error.find(what), std::string::npos) << error;
  };
  all_know(errors_of_ranks(4, Link::in_process, Milliseconds(3000),
                           [](ProcessGroup& group) {
                             const bool odd = group.rank() == 1;
                             const Mesh mesh(group.shared_from_this(), odd ? MeshSizes{.data = 2, .pipeline = 2}
                                                                           : MeshSizes{.data = 2, .tensor = 2});
                             group.barrier()->wait();
                           }),
           "rank 1 was given data=2,pipeline=2,tensor=1, rank 0 data=2,pipeline=1,tensor=2");
  all_know(errors_of_ranks(2, Link::in_process, Milliseconds(3000),
                           [](ProcessGroup& group) {
                             Classifier model(false);
                             const bool odd = group.rank() == 1;
                             const TensorParallel divided(
                                 model, odd ? std::vector<TensorRule>{{"up", TensorSplit::column}} : kHead,
                                 {.group = group.shared_from_this()});
                             model(make_batch(4).x).sum().backward();
                             group.barrier()->wait();
                           }),
           "the ranks were given different plans: '2 shards: up 0/1");
  all_know(errors_of_ranks(
               2, Link::in_process, Milliseconds(3000),
               [](ProcessGroup& group) {
                 Chain model(0.0, 1);
                 const PipelineParallel pipeline(model, model.layers(), {.group = group.shared_from_this()});
                 TrainingStep step(
                     model, {.group = make_single_process_group(), .accumulate = 2, .model_part = pipeline.part()});
                 step(tokens_of(group.rank() == 0 ? 8 : 6, 1), [&](nn::Module& net, const data::Batch& part) {
                   const Tensor y = net.forward(part.x);
                   return (y * y).mean();
                 });
                 group.barrier()->wait();
               }),
           "[pipeline] stage 0 of 2 was given 8 sample(s), the last stage 6; give all stages the same batch");
  // Of other values, which are a warning, as the last stage's inputs may be anything.
  const auto log_of = [](bool same) {
    ::testing::internal::CaptureStderr();
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Chain model(0.0, 1);
      const PipelineParallel pipeline(model, model.layers(), {.group = group});
      TrainingStep step(model, {.group = make_single_process_group(), .accumulate = 2, .model_part = pipeline.part()});
      for (std::uint32_t i = 0; i < 3; ++i)
        step(tokens_of(8, same || i == 0 || group->rank() == 0 ? i : i + 9),
             [&](nn::Module& net, const data::Batch& part) { return net.forward(part.x).square().mean(); });
    });
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string log = log_of(false), what = "the first of 2 stages was given another batch of 8 samples";
  EXPECT_NE(log.find("at step 1 " + what), std::string::npos) << log;
  EXPECT_EQ(log.find("another batch", log.find(what) + what.size()), std::string::npos) << "once: " << log;
  EXPECT_EQ(log_of(true), "");
  // Whichever stage hears of it first.
  const std::vector<std::string> errors = errors_of_ranks(2, Link::in_process, Milliseconds(3000), [](ProcessGroup& g) {
    Chain model(0.0, 1);
    const PipelineParallel pipeline(model, model.layers(), {.group = g.shared_from_this()});
    TrainingStep step(
        model,
        {.group = make_single_process_group(), .accumulate = g.rank() == 0 ? 4 : 2, .model_part = pipeline.part()});
    step(tokens_of(8, 1), [](nn::Module& net, const data::Batch& part) { return net.forward(part.x).square().mean(); });
  });
  all_know(errors, "[pipeline] stage 0 computes 8 samples in 4 micro-batches, and stage 1 computes 8 in 2");
}

// --- graphs ----------------------------------------------------------------------------------------------------------

// Two forwards before their backwards, a forward without gradients between, a graph that is used twice.
TEST(MeshModels, GraphsAreUsedInAnyOrder) {
  for (const Tokens tokens : {Tokens::all, Tokens::own_between_layers, Tokens::own, Tokens::own_or_columns}) {
    const auto gradients = [&](const ProcessGroupPtr& group) {
      Transformer model;
      set_weights(model);
      const TensorParallel parallel(model, plan_of(tokens), options_of(tokens, group, 2));
      const Tensor first = loss_of(parallel, model, tokens_of(3, 1)),
                   second = loss_of(parallel, model, tokens_of(2, 2));
      {
        const NoGradGuard values_only;
        loss_of(parallel, model, tokens_of(1, 3));
      }
      second.backward({}, /*retain_graph=*/true);
      first.backward();
      second.backward();
      Values found;
      for (const Tensor& p : model.parameters()) found.push_back(parallel.whole_of(p, p.grad()).to_vector<double>());
      return found;
    };
    const Values one = gradients(make_single_process_group());
    run_in(2, [&](const ProcessGroupPtr& group) { EXPECT_EQ(largest_difference(gradients(group), one), 0.0); });
  }
}

TEST(MeshErrors, TokensThatDoNotDivideAreNamedOnAllRanks) {
  for (const int world : {1, 2})
    run_in(world, [](const ProcessGroupPtr& group) {
      Transformer model;
      const TensorParallel parallel(model, plan_by_tokens(),
                                    {.group = group, .logical_shards = 2, .sequence_parallel = true});
      EXPECT_EQ(error_of([&] {
                  parallel.own_tokens(zeros({2, 7, kWidth}));
                }),
                "[TensorParallel] the tokens of [2, 7, 16] cannot be divided evenly into 2 tensor shards");
      EXPECT_NE(
          error_of([&] { TensorParallel(model, plan_by_tokens(), {.group = group}); }).find("set sequence_parallel"),
          std::string::npos);
      EXPECT_NE(error_of([&] {
                  TensorParallel(model, {{"up", TensorSplit::sequence}}, {.group = group, .sequence_parallel = true});
                }).find("layer 'up' is a lockstep::nn::Linear; a nn::LayerNorm, nn::RMSNorm or nn::Dropout"),
                std::string::npos);
    });
}

TEST(MeshErrors, PlansWithoutDividedLayersNameEveryParameter) {
  run_in(2, [](const ProcessGroupPtr& group) {
    const auto message = [&](std::vector<TensorRule> plan, std::int64_t shards = 2) {
      Transformer model;
      try {
        TensorParallel(model, plan, options_of(Tokens::own, group, shards));
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    const std::vector<TensorRule> plan = plan_of(Tokens::own);
    EXPECT_EQ(message(plan), "");
    for (std::size_t i = 0; i < plan.size(); ++i) {
      std::vector<TensorRule> shorter = plan;
      shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(i));
      const bool drops = plan[i].layers.find("drop") != std::string::npos;
      const std::string left_out = drops ? "'" + plan[i].layers + "', a " : "parameter '" + plan[i].layers + ".";
      EXPECT_NE(message(shorter).find("leaves out " + left_out), std::string::npos) << plan[i].layers;
    }
    EXPECT_NE(message(plan, 8).find("the 4 heads of 'attention' cannot be divided evenly into 8"), std::string::npos);
    EXPECT_NE(message({{"table", TensorSplit::vocabulary}}).find("have 'table' as alike"), std::string::npos);
    std::vector<TensorRule> twice = plan;
    twice.push_back({"attention.out_proj", TensorSplit::sequence});
    EXPECT_NE(message(twice).find("'attention.out_proj' more than once"), std::string::npos);
    EXPECT_NE(message({{.layers = "up", .split = TensorSplit::column, .gathers = true}}).find("all_tokens()"),
              std::string::npos);
    Transformer model;
    EXPECT_NE(error_of([&] {
                TensorParallel(model, {{"up", TensorSplit::alike}}, {.group = group});
              }).find("set context_parallel"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                TensorParallel(model, plan, {.group = group, .sequence_parallel = true, .context_parallel = true});
              }).find("choose one"),
              std::string::npos);
  });
}

// --- gradients that are not finite -----------------------------------------------------------------------------------

// Of one stage's, or one tensor rank's, layers alone: no rank makes the step.
TEST(MeshScaler, AllRanksLeaveOutAStep) {
  for (const MeshSizes& sizes :
       {MeshSizes{.pipeline = 2}, MeshSizes{.tensor = 2}, MeshSizes{.data = 2, .pipeline = 2, .tensor = 2}})
    for (const bool zero : {false, true})
      run_in(ranks_of(sizes), [&](const ProcessGroupPtr& group) {
        const Mesh mesh(group, sizes);
        Classifier model(false);
        set_weights(model);
        const TensorParallel divided(model, kHead, {.group = mesh.tensor()});
        const PipelineParallel pipeline(model, model.layers(), {.group = mesh.pipeline()});
        TrainingStep step(model, {.group = mesh.data(), .model_part = pipeline.part()});
        const MeshModel whole(
            model, mesh, &pipeline, &divided, [&] { return std::make_unique<Classifier>(false); },
            [](const std::vector<Tensor>& parameters) { return make_optimizer(false, parameters); });
        std::unique_ptr<optim::Optimizer> optimizer = whole.make_optimizer();
        if (zero) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), mesh.data());
        optim::GradScaler scaler({.init_scale = 1024.0});
        const auto train = [&](bool overflows) {
          step(make_batch(8), [&](nn::Module& net, const data::Batch& part) -> LossValue {
            return scaler.scale(mean_loss(net, part));
          });
          if (overflows && group->rank() == group->world_size() - 1)
            for (const Tensor& p : pipeline.parameters()) p.grad().fill_(HUGE_VAL);
          const bool made = scaler.step(*optimizer);
          scaler.update();
          return made;
        };
        EXPECT_TRUE(train(false)) << to_string(sizes);
        EXPECT_FALSE(train(true)) << to_string(sizes);
        EXPECT_EQ(scaler.scale_factor(), 512.0) << to_string(sizes);
        EXPECT_TRUE(train(false)) << to_string(sizes);
      });
}

// --- hardly any parameters -------------------------------------------------------------------------------------------

TEST(ShardingModels, OfFewerElementsThanRanks) {
  struct Tiny : nn::Module {
    nn::Linear one{this, "one", kFeatures, 1, {.bias = false}};
    nn::Linear two{this, "two", 1, 1};
    Tensor forward(Tensor x) override { return two(relu(one(x))); }
  };
  const auto train = [](const ProcessGroupPtr& group, int zero) {
    Tiny model;
    set_weights(model);
    TrainingStep step(model, {.group = group, .logical_shards = 8, .zero = zero});
    std::unique_ptr<optim::Optimizer> optimizer = make_optimizer(true, model.parameters());
    if (zero > 0) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
    for (std::uint32_t i = 0; i < 3; ++i) {
      step(make_batch(i == 1 ? 3 : 9, i),
           [](nn::Module& net, const data::Batch& part) { return (net.forward(part.x) * net.forward(part.x)).mean(); });
      optimizer->clip_grad_norm_(0.1);
      optimizer->step();
    }
    const WholeParameters whole = step.whole_parameters();
    return values_of(model.state());
  };
  const Values one = train(make_single_process_group(), 0);
  for (const int zero : {2, 3})
    run_in(8, [&](const ProcessGroupPtr& group) { EXPECT_EQ(largest_difference(train(group, zero), one), 0.0); });
}

// Costs by a rank's own parameters would differ where a size does not divide, and so would the stages.
TEST(MeshModels, RanksThatHoldLayersTogetherCutTheSameStages) {
  run_in(4, [](const ProcessGroupPtr& group) {
    const Mesh mesh(group, {.pipeline = 2, .tensor = 2});
    nn::Sequential model;
    model.add<nn::Linear>(8, 5);
    model.add<nn::Linear>(5, 8);
    model.add<nn::Linear>(8, 8);
    model.add<nn::Linear>(8, 6);
    const std::vector<TensorRule> plan{{"0", TensorSplit::column}, {"1", TensorSplit::row}};
    const TensorParallel divided(model, plan, {.group = mesh.tensor(), .logical_shards = 2});
    EXPECT_EQ(TensorParallel::average_numel(model[0].parameters()[0]), 20.0);
    EXPECT_EQ(TensorParallel::average_numel(model[2].parameters()[0]), 64.0) << "whole";
    std::vector<PipelineLayer> layers;
    const std::vector<PipelineLayer> single = pipeline_layers(model);
    layers.push_back({.name = "0 and 1",
                      .modules = {single[0].modules[0], single[1].modules[0]},
                      .forward = [&](const Tensor& x) { return model[1].forward(relu(model[0].forward(x))); }});
    layers.insert(layers.end(), single.begin() + 2, single.end());
    const PipelineParallel pipeline(model, layers, {.group = mesh.pipeline()});
    const std::vector<std::int64_t>& counts = pipeline.layers_of_chunks();
    const std::string own(reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof(counts[0]));
    for (const std::string& theirs : group->all_gather_object(own)) EXPECT_EQ(theirs, own);
  });
}

}  // namespace
}  // namespace lockstep::distributed
