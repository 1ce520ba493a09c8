// Models that are no chains of alike blocks on meshes, with what is divided over `data` besides: an encoder-decoder, a
// recurrent net, a user's optimizer, tied, frozen and unused parameters; many ranks; the user's own collectives.

#include "lockstep/distributed/pipeline_parallel/mesh_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/nn/rnn.h"
#include "lockstep/nn/transformer.h"
#include "tests/distributed/parallel/pipeline_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;
using lockstep::testing::errors_of_ranks;

int ranks_of(const MeshSizes& sizes) {
  return sizes.data * sizes.pipeline * sizes.tensor;
}

/// What a test of a model is told: how to make it, how it is a chain, and what it is trained with.
struct Kind {
  std::function<std::unique_ptr<nn::Module>()> make;
  std::function<std::vector<PipelineLayer>(nn::Module&)> layers;
  std::vector<TensorRule> plan;
  std::function<data::Batch(std::int64_t n, std::uint32_t seed)> batch;
  std::function<Tensor(const Tensor& output, const data::Batch& part)> loss;
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor>)> optimizer = [](std::vector<Tensor> parameters) {
    return make_optimizer(true, std::move(parameters));
  };
};

/// The weights after some steps on a mesh in lockstep mode, of whole batches and one that is smaller than the mesh.
Values train(const Kind& kind, const ProcessGroupPtr& world, const MeshSizes& sizes, int zero) {
  const Mesh mesh(world, sizes);
  const std::unique_ptr<nn::Module> model = kind.make();
  set_weights(*model);
  const TensorParallel divided(*model, kind.plan, {.group = mesh.tensor(), .logical_shards = 2});
  std::optional<PipelineParallel> pipeline;
  if (sizes.pipeline > 1)
    pipeline.emplace(*model, kind.layers(*model), PipelineParallelOptions{.group = mesh.pipeline()});
  TrainingStep step(*model, {.group = mesh.data(),
                             .logical_shards = 4,
                             .model_part = pipeline ? pipeline->part() : nullptr,
                             .zero = zero >= 2 ? zero : 0});
  const MeshModel whole(*model, mesh, pipeline ? &*pipeline : nullptr, &divided, kind.make, kind.optimizer);
  std::unique_ptr<optim::Optimizer> optimizer = whole.make_optimizer();
  if (zero == 1)
    optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), mesh.data());
  else if (zero > 1)
    optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
  for (std::uint32_t i = 0; i < 4; ++i) {
    step(kind.batch(i == 2 ? 1 : 7 - i, i + 1),
         [&](nn::Module& net, const data::Batch& part) { return kind.loss(net.forward(part.x), part); });
    whole.clip_grad_norm(0.5, *optimizer);
    optimizer->step();
    // The user's own, on the job's ranks and on groups of the mesh, change nothing.
    const Tensor mine = tensor({1.0 + world->rank()}), sum = copy_contiguous(mine), of_data = copy_contiguous(mine);
    const WorkPtr work = world->all_reduce(sum);
    mesh.data()->all_reduce(of_data)->wait();
    work->wait();
    EXPECT_EQ(sum.item<double>(), world->world_size() * (world->world_size() + 1) / 2.0);
    if (i == 1) mesh.pipeline()->split(0, mesh.pipeline()->rank())->barrier()->wait();
  }
  const WholeParameters held = step.whole_parameters();
  return values_of(pipeline ? pipeline->full_state(&divided) : divided.full_state());
}

void expect_one_result(const Kind& kind, const std::vector<std::pair<MeshSizes, int>>& cases) {
  const Values one = train(kind, make_single_process_group(), {}, 0);
  for (const auto& [sizes, zero] : cases)
    run_in(ranks_of(sizes), [&, sizes = sizes, zero = zero](const ProcessGroupPtr& group) {
      EXPECT_EQ(largest_difference(train(kind, group, sizes, zero), one), 0.0) << to_string(sizes) << ", zero " << zero;
    });
}

// --- an encoder and a decoder ----------------------------------------------------------------------------------------

/// Tokens to tokens, with one table for both languages and the projection to the vocabulary.
struct Translator final : nn::Module {
  nn::Embedding table{this, "table", kVocabulary, kWidth};
  nn::Transformer transformer{
      this,
      "transformer",
      kWidth,
      kHeads,
      {.encoder_layers = 2, .decoder_layers = 2, .layer = {.dim_feedforward = 24, .dropout = 0.1}}};

  /// What goes from layer to layer is both sides, one behind the other.
  static Tensor source(const Tensor& x) { return x.narrow(1, 0, x.size(1) / 2); }
  static Tensor target(const Tensor& x) { return x.narrow(1, x.size(1) / 2, x.size(1) - x.size(1) / 2); }
  std::vector<PipelineLayer> layers() {
    std::vector<PipelineLayer> all{{"table", {&table}}};
    for (std::size_t i = 0; i < 2; ++i)
      all.push_back({"encoder." + std::to_string(i), {&transformer.encoder.layers[i]}, [this, i](const Tensor& x) {
                       return cat({transformer.encoder.layers[i](source(x)), target(x)}, 1);
                     }});
    all.push_back({"memory", {transformer.encoder.norm.get()}, [this](const Tensor& x) {
                     return cat({(*transformer.encoder.norm)(source(x)), target(x)}, 1);
                   }});
    for (std::size_t i = 0; i < 2; ++i)
      all.push_back({"decoder." + std::to_string(i), {&transformer.decoder.layers[i]}, [this, i](const Tensor& x) {
                       const Tensor memory = source(x);
                       return cat({memory, transformer.decoder.layers[i](target(x), memory, {.is_causal = true})}, 1);
                     }});
    all.push_back({"head", {transformer.decoder.norm.get(), &table}, [this](const Tensor& x) {
                     return (*transformer.decoder.norm)(target(x)).reshape({-1, kWidth});
                   }});
    return all;
  }
  Tensor forward(Tensor x) override {
    for (const PipelineLayer& layer : layers()) x = layer.forward ? layer.forward(x) : table(x);
    return x;
  }
};

TEST(MeshModelsOfAnyKind, EncoderAndDecoder) {
  const Kind kind{.make = [] { return std::make_unique<Translator>(); },
                  .layers = [](nn::Module& model) { return dynamic_cast<Translator&>(model).layers(); },
                  .plan = {{"transformer.*.layers.*.self_attn", TensorSplit::heads},
                           {"transformer.decoder.layers.*.multihead_attn", TensorSplit::heads},
                           {"transformer.*.layers.*.linear1", TensorSplit::column},
                           {"transformer.*.layers.*.dropout", TensorSplit::column},
                           {"transformer.*.layers.*.linear2", TensorSplit::row}},
                  .batch = [](std::int64_t n, std::uint32_t seed) { return tokens_of(n, seed); },
                  .loss =
                      [](const Tensor& output, const data::Batch& part) {
                        const Tensor y = part.y.narrow(1, kLength / 2, kLength / 2).reshape({-1});
                        return cross_entropy(output, remainder(y, kWidth));
                      }};
  expect_one_result(kind, {{{.tensor = 2}, 0},
                           {{.pipeline = 3}, 0},
                           {{.data = 2, .pipeline = 2}, 2},
                           {{.data = 2, .pipeline = 2, .tensor = 2}, 3}});
}

// Within rounding of one that knows of no shards: divided heads attend to others as whole ones do.
TEST(MeshModelsOfAnyKind, DividedHeadsAttendToOthers) {
  const Tensor query = make_input({3, 5, kWidth}, 1, kFloat32), key = make_input({3, 7, kWidth}, 2, kFloat32);
  const Tensor mask = make_input({3 * kHeads, 5, 7}, 3, kFloat32);
  const auto compute = [&](nn::MultiheadAttention& attention) {
    const Tensor x = copy_contiguous(query), y = copy_contiguous(key);
    x.set_requires_grad(true);
    y.set_requires_grad(true);
    const Tensor out = attention(x, y, y, {.attn_mask = mask});
    (out * out).sum().backward();
    return Values{out.to_vector<double>(), x.grad().to_vector<double>(), y.grad().to_vector<double>()};
  };
  struct Holder final : nn::Module {
    nn::MultiheadAttention attention{this, "attention", kWidth, kHeads};
  };
  Holder whole;
  set_weights(whole);
  const Values expected = compute(whole.attention);
  for (const int ranks : {1, 2, 4})
    run_in(ranks, [&](const ProcessGroupPtr& group) {
      Holder model;
      set_weights(model);
      const TensorParallel divided(model, {{"attention", TensorSplit::heads}}, {.group = group, .logical_shards = 4});
      EXPECT_LE(largest_difference(compute(model.attention), expected), 1e-5) << ranks;
    });
}

// --- a recurrent net -------------------------------------------------------------------------------------------------

struct Recurrent final : nn::Module {
  nn::Embedding table{this, "table", kVocabulary, kWidth};
  nn::LSTM first{this, "first", kWidth, 12}, second{this, "second", 12, 12};
  nn::Linear unused{this, "unused", 3, 3};
  nn::Linear frozen{this, "frozen", 12, 12};
  nn::Linear head{this, "head", 12, kVocabulary};
  Recurrent() { frozen.set_requires_grad(false); }

  std::vector<PipelineLayer> layers() {
    return {{"table", {&table}, [this](const Tensor& x) { return table(x).transpose(0, 1); }},
            {"first", {&first, &unused}, [this](const Tensor& x) { return first(x).first; }},
            {"second", {&second}, [this](const Tensor& x) { return second(x).first; }},
            {"frozen", {&frozen}, [this](const Tensor& x) { return tanh(frozen(x)); }},
            {"head", {&head}, [this](const Tensor& x) {
               return head(x.transpose(0, 1)).reshape({-1, kVocabulary});
             }}};
  }
  Tensor forward(Tensor x) override {
    for (const PipelineLayer& layer : layers()) x = layer.forward(x);
    return x;
  }
};

/// A user's own rule: a step along the gradient's sign, the shorter the longer the way so far.
class SignDescent final : public optim::Optimizer {
 public:
  explicit SignDescent(std::vector<Tensor> parameters) { add_parameters(std::move(parameters), 0); }
  double lr(std::size_t) const override { return lr_; }
  void set_lr(double lr, std::size_t) override { lr_ = lr; }
  double momentum(std::size_t) const override { return 0.0; }
  void set_momentum(double, std::size_t) override {}
  const char* name() const override { return "SignDescent"; }

 private:
  std::vector<std::string> names_of_state(int) const override { return {"way"}; }
  void check_options(std::size_t) const override {}
  void check_rates(std::size_t, double, double) const override {}
  std::map<std::string, double> settings(std::size_t) const override { return {}; }
  void scalars(std::size_t, std::int64_t, double* out) const override { out[0] = lr_; }
  void update(const Tensor&, const Plan& plan) override {
    for (const Run& run : plan.runs) {
      auto *const value = static_cast<float*>(run.parameter), *const way = static_cast<float*>(run.state[0]);
      const auto* const grad = static_cast<const float*>(run.gradient);
      for (std::int64_t i = 0; i < run.numel; ++i) {
        way[i] += std::abs(grad[i]);
        value[i] -= static_cast<float>(run.scalars[0]) * (grad[i] > 0.0F ? 1.0F : -1.0F) / (1.0F + way[i]);
      }
    }
  }

  double lr_ = 0.01;
};

const Kind& recurrent() {
  static const Kind kind{.make = [] { return std::make_unique<Recurrent>(); },
                         .layers = [](nn::Module& model) { return dynamic_cast<Recurrent&>(model).layers(); },
                         .plan = {},
                         .batch = [](std::int64_t n, std::uint32_t seed) { return tokens_of(n, seed); },
                         .loss = [](const Tensor& output,
                                    const data::Batch& part) { return cross_entropy(output, part.y.reshape({-1})); }};
  return kind;
}

TEST(MeshModelsOfAnyKind, RecurrentNetsWithUnusedAndFrozenLayers) {
  expect_one_result(recurrent(), {{{.pipeline = 5}, 0},
                                  {{.data = 2, .pipeline = 3}, 1},
                                  {{.data = 3, .pipeline = 2}, 2},
                                  {{.data = 2, .pipeline = 4}, 3},
                                  {{.data = 4, .tensor = 2}, 3}});
}

TEST(MeshModelsOfAnyKind, UnderAUsersOptimizer) {
  Kind kind = recurrent();
  kind.optimizer = [](std::vector<Tensor> parameters) { return std::make_unique<SignDescent>(std::move(parameters)); };
  expect_one_result(kind, {{{.data = 2, .pipeline = 2}, 1}, {{.data = 2, .pipeline = 3}, 3}});
}

// The last stage has but the tied table, whose gradient comes from the first.
TEST(MeshModelsOfAnyKind, AStageWithNothingOfItsOwn) {
  Kind kind = recurrent();
  kind.make = [] { return std::make_unique<Chain>(0.1, 1); };
  kind.layers = [](nn::Module& model) {
    auto& chain = dynamic_cast<Chain&>(model);
    std::vector<PipelineLayer> layers = chain.layers();
    layers.back().modules = {&chain.norm};
    layers.push_back({"head", {&chain.table}, [&chain](const Tensor& x) { return linear(x, chain.table.weight); }});
    return layers;
  };
  Values first;
  for (const int zero : {0, 1, 2, 3})
    run_in(zero == 0 ? 4 : 8, [&](const ProcessGroupPtr& group) {
      const Values found = train(kind, group, {.data = zero == 0 ? 1 : 2, .pipeline = 4}, zero);
      if (zero == 0 && group->rank() == 0) first = found;
      EXPECT_EQ(zero == 0 ? 0.0 : largest_difference(found, first), 0.0) << zero;
    });
}

TEST(MeshModelsOfAnyKind, OnSixteenRanks) {
  expect_one_result(recurrent(), {{{.data = 4, .pipeline = 4}, 3}, {{.data = 4, .pipeline = 2, .tensor = 2}, 2}});
}

// --- what is refused, and failures -----------------------------------------------------------------------------------

TEST(DividedStages, RefuseOptimizersOfWholeParameters) {
  run_in(2, [](const ProcessGroupPtr& group) {
    const Mesh mesh(group, {.pipeline = 2});
    Chain model;
    const PipelineParallel pipeline(model, model.layers(), {.group = mesh.pipeline()});
    const auto make = [](std::vector<Tensor> parameters) {
      return std::make_unique<optim::Adafactor>(std::move(parameters));
    };
    EXPECT_NE(error_of([&] {
                MeshModel(
                    model, mesh, &pipeline, nullptr, [] { return std::make_unique<Chain>(); }, make);
              }).find("[MeshModel] Adafactor takes norms or products of whole parameters"),
              std::string::npos);
    EXPECT_NE(error_of([&] { make(pipeline.parameters())->step(); }).find("the model is divided over ranks"),
              std::string::npos);
  });
}

TEST(DividedStages, AreReadWholeOrNotAtAll) {
  run_in(4, [](const ProcessGroupPtr& group) {
    const Mesh mesh(group, {.data = 2, .pipeline = 2});
    Chain model;
    const PipelineParallel pipeline(model, model.layers(), {.group = mesh.pipeline()});
    EXPECT_NE(error_of([&] {
                TrainingStep(
                    model,
                    {.group = mesh.data(), .model_part = pipeline.part(), .zero = 3, .shard_units = {"blocks.0"}});
              }).find("a stage of a pipeline gathers its layers once a step"),
              std::string::npos);
    TrainingStep step(model, {.group = mesh.data(), .model_part = pipeline.part(), .zero = 3});
    const auto train = [&] {
      step(tokens_of(4, 1), [](nn::Module& net, const data::Batch& part) { return net.forward(part.x).mean(); });
    };
    EXPECT_NE(error_of([&] {
                pipeline.named_parameters().front().tensor.to_vector<double>();
              }).find("hold the step's whole_parameters() on all ranks"),
              std::string::npos);
    train();
    EXPECT_NE(error_of(train).find("no ZeroRedundancyOptimizer was made with this step"), std::string::npos);
    const auto optimizer = std::make_unique<ZeroRedundancyOptimizer>(make_optimizer(true, pipeline.parameters()), step);
    train();
    optimizer->step();
    const WholeParameters held = step.whole_parameters();
    const double length = [&] {
      const std::vector<double> found =
          pipeline.evaluate(tokens_of(2, 1).x, [](const Tensor& x) { return std::vector{x.mean().item<double>()}; });
      return found.front();
    }();
    EXPECT_TRUE(std::isfinite(length));
  });
}

// A stage that fails in the middle ends those that wait for its blocks too, long before the deadline.
TEST(DividedStages, AFailureEndsAllRanks) {
  for (const int zero : {2, 3}) {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<std::string> errors =
        errors_of_ranks(8, Link::in_process, Milliseconds(20'000), [&](ProcessGroup& group) {
          const Mesh mesh(group.shared_from_this(), {.data = 4, .pipeline = 2});
          Chain model;
          set_weights(model);
          std::vector<PipelineLayer> layers = model.layers();
          int calls = 0;
          layers[1].forward = [&](const Tensor& x) {
            if (mesh.position().data == 1 && ++calls == 2) throw Error("the oven is cold");
            return model.blocks[0](x);
          };
          const PipelineParallel pipeline(model, layers, {.group = mesh.pipeline()});
          TrainingStep step(model,
                            {.group = mesh.data(), .accumulate = 2, .model_part = pipeline.part(), .zero = zero});
          ZeroRedundancyOptimizer optimizer(make_optimizer(true, pipeline.parameters()), step);
          for (std::uint32_t i = 0; i < 2; ++i) {
            step(tokens_of(16, i + 1),
                 [](nn::Module& net, const data::Batch& part) { return net.forward(part.x).mean(); });
            optimizer.step();
          }
        });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15)) << "nobody waits for long";
    for (const std::string& error : errors) EXPECT_NE(error.find("the oven is cold"), std::string::npos) << error;
  }
}

// What a rank of a stage keeps between steps: its share of values, gradients and the optimizer's state.
TEST(DividedStages, KeepTheirShare) {
  run_in(8, [](const ProcessGroupPtr& group) {
    const Mesh mesh(group, {.data = 4, .pipeline = 2});
    Chain model;
    const PipelineParallel pipeline(model, model.layers(), {.group = mesh.pipeline()});
    std::int64_t of_stage = 0, kept = 0;
    for (const nn::NamedTensor& each : pipeline.named_parameters()) of_stage += each.tensor.numel();
    TrainingStep step(model, {.group = mesh.data(), .model_part = pipeline.part(), .zero = 3});
    ZeroRedundancyOptimizer optimizer(make_optimizer(true, pipeline.parameters()), step);
    step(tokens_of(8, 1), [](nn::Module& net, const data::Batch& part) { return net.forward(part.x).mean(); });
    optimizer.step();
    for (const nn::NamedTensor& each : pipeline.named_parameters())
      EXPECT_TRUE(each.tensor.storage()->is_pending()) << each.name << " is kept whole";
    optimizer.visit_state([&](const std::string&, std::int64_t, const Tensor& values) { kept += values.numel(); });
    EXPECT_LE(static_cast<double>(kept), 1.1 * 2.0 * static_cast<double>(of_stage) / 4.0);
  });
}

// Without gradients from the loss no stage would learn anything.
TEST(DividedStages, RefuseALossThatNoLayerReaches) {
  const auto errors = errors_of_ranks(2, Link::in_process, Milliseconds(20'000), [](ProcessGroup& group) {
    Chain model;
    set_weights(model);
    const PipelineParallel pipeline(model, model.layers(), {.group = group.shared_from_this()});
    TrainingStep step(model, {.group = make_single_process_group(), .accumulate = 2, .model_part = pipeline.part()});
    step(tokens_of(4, 1), [](nn::Module& net, const data::Batch& part) { return net.forward(part.x).mean().detach(); });
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("the loss does not depend on what the layers have given"), std::string::npos) << error;
}

}  // namespace
}  // namespace lockstep::distributed
