// Clipping where gradients are divided over ranks: by several optimizers together, and refused where it would take a
// part for the whole.

#include <algorithm>
#include <atomic>

#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/pipeline_parallel/mesh_model.h"
#include "tests/distributed/parallel/sharding_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

// Clipped as if they were whole they would stay as they are, without a word.
TEST(Clipping, GradientsThatAreElsewhereAreNotClippedHere) {
  for (const int zero : {2, 3})
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      Tower tower;
      set_tower(tower);
      TrainingStep step(tower, {.group = group, .zero = zero});
      const auto optimizer = make_adamw(step);
      step(make_batch(8), tower_loss);
      const std::vector<Tensor> all = tower.parameters();
      for (const std::string& error :
           {error_of([&] { optim::clip_grad_norm_(all, 1.0); }), error_of([&] { optim::clip_grad_value_(all, 1.0); }),
            error_of([&] { static_cast<void>(optim::grad_norm(all)); })}) {
        EXPECT_NE(error.find("parameter 0 of shape [7, 6] has no gradient of its own"), std::string::npos) << error;
        EXPECT_NE(error.find("over 2 rank(s)"), std::string::npos) << error;
      }
      optimizer->step();
    });
}

// By value, and by one norm of all optimizers: the values of whole gradients, by one optimizer or two.
TEST(Clipping, SeveralOptimizersAreClippedTogether) {
  const auto train = [](const ProcessGroupPtr& group, int zero, bool two, bool by_value) {
    Tower tower;
    set_tower(tower);
    TrainingStep step(tower, {.group = group, .logical_shards = 4, .zero = zero >= 2 ? zero : 0});
    std::vector<std::vector<Tensor>> lists(two ? 2 : 1);
    for (const Tensor& p : tower.parameters()) lists[two && p.dim() > 1 ? 1 : 0].push_back(p);
    std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
    for (const std::vector<Tensor>& list : lists) {
      optimizers.push_back(std::make_unique<optim::SGD>(list, optim::SGDOptions{.lr = 0.5, .momentum = 0.9}));
      if (zero > 1)
        optimizers.back() = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizers.back()), step);
      else if (zero == 1)
        optimizers.back() = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizers.back()), group);
    }
    std::vector<double> norms;
    for (std::uint32_t i = 0; i < 3; ++i) {
      step(make_batch(7, i + 1), tower_loss);
      std::vector<std::reference_wrapper<optim::Optimizer>> all;
      for (const auto& each : optimizers) all.emplace_back(*each);
      if (by_value)
        for (optim::Optimizer& each : all) each.clip_grad_value_(0.02);
      else
        norms.push_back(clip_grad_norm_(all, 0.05));
      for (optim::Optimizer& each : all) each.step();
    }
    const WholeParameters whole = step.whole_parameters();
    Values values = weights_of(tower);
    values.push_back(norms);
    return values;
  };
  const ProcessGroupPtr alone = make_single_process_group();
  for (const bool by_value : {false, true}) {
    const Values one = train(alone, 0, false, by_value), two = train(alone, 0, true, by_value);
    EXPECT_LT(largest_difference(one, two), 1e-6) << "in another order the squares round otherwise";
    run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
      for (const int zero : {0, 1, 2, 3}) {
        EXPECT_EQ(largest_difference(train(group, zero, true, by_value), two), 0.0) << "ZeRO-" << zero;
        EXPECT_EQ(largest_difference(train(group, zero, false, by_value), one), 0.0) << "ZeRO-" << zero;
      }
    });
  }
  EXPECT_GT(largest_difference(train(alone, 0, true, false), train(alone, 0, true, true)), 1e-3) << "they must differ";
  EXPECT_NE(error_of([] { clip_grad_norm_({}, 1.0); }).find("at least one optimizer"), std::string::npos);
}

// Those of another optimizer may lie in the same memory.
TEST(Clipping, AnOptimizerMultipliesAndVisitsItsOwnGradientsAlone) {
  const auto gradients = [](const ProcessGroupPtr& group, int zero) {
    Tower tower;
    set_tower(tower);
    TrainingStep step(tower, {.group = group, .logical_shards = 4, .zero = zero});
    const std::vector<Tensor> all = tower.parameters();
    std::vector<std::vector<Tensor>> lists(2);
    for (std::size_t i = 0; i < all.size(); ++i) lists[i % 2].push_back(all[i]);
    std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
    for (const std::vector<Tensor>& list : lists) {
      optimizers.push_back(std::make_unique<optim::SGD>(list, optim::SGDOptions{.lr = 0.5}));
      if (zero > 1) optimizers.back() = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizers.back()), step);
    }
    step(make_batch(7), tower_loss);
    optimizers[1]->multiply_gradients(0.25);
    Values values(all.size());
    for (const auto& each : optimizers)
      each->visit_gradients([&](const Tensor& parameter, const Tensor& grad) {
        const auto place = std::ranges::find_if(all, [&](const Tensor& other) { return other.is_same(parameter); });
        const std::vector<double> found = grad.to_vector<double>();
        std::vector<double>& of_one = values[static_cast<std::size_t>(place - all.begin())];
        of_one.insert(of_one.end(), found.begin(), found.end());
      });
    return values;
  };
  const Values expected = gradients(make_single_process_group(), 0);
  run_on({3, Link::in_process}, [&](const ProcessGroupPtr& group) {
    for (const int zero : {2, 3}) EXPECT_EQ(gradients(group, zero), expected) << "ZeRO-" << zero;
  });
}

// Each rank would scale by the norm of its own part, and what all ranks have alike would drift apart.
TEST(Clipping, PartsOfAModelAreNotTakenForTheWhole) {
  const auto expect_refused = [](const nn::Module& model, optim::Optimizer& optimizer, const char* what) {
    for (const std::string& error : {error_of([&] { optim::clip_grad_norm_(model.parameters(), 1.0); }),
                                     error_of([&] { static_cast<void>(optim::grad_norm(model.parameters())); }),
                                     error_of([&] { optimizer.clip_grad_norm_(1.0); })}) {
      EXPECT_NE(error.find(what), std::string::npos) << error;
      EXPECT_NE(error.find("MeshModel"), std::string::npos) << error;
    }
    EXPECT_NO_THROW(optim::clip_grad_value_(model.parameters(), 1.0)) << "element by element";
  };
  std::atomic<double> norm_of_stages = 0.0, norm_of_layers = 0.0;
  for (const int zero : {0, 1, 2})
    for (const bool staged : {false, true})
      run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
        const Mesh mesh(group, staged ? MeshSizes{.pipeline = 2} : MeshSizes{.tensor = 2});
        nn::Sequential model;
        model.add<nn::Linear>(kFeatures, 4);
        model.add<nn::ReLU>();
        model.add<nn::Linear>(4, kClasses);
        const std::vector<TensorRule> plan{{"0", TensorSplit::column}, {"2", TensorSplit::row}};
        std::optional<TensorParallel> divided;
        std::optional<PipelineParallel> pipeline;
        if (staged)
          pipeline.emplace(model, pipeline_layers(model), PipelineParallelOptions{.group = mesh.pipeline()});
        else
          divided.emplace(model, plan, TensorParallelOptions{.group = mesh.tensor()});
        TrainingStep step(
            model,
            {.group = mesh.data(), .model_part = staged ? pipeline->part() : nullptr, .zero = zero >= 2 ? zero : 0});
        std::unique_ptr<optim::Optimizer> optimizer = std::make_unique<optim::SGD>(
            staged ? pipeline->parameters() : model.parameters(), optim::SGDOptions{.lr = 0.1});
        if (zero == 1) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), mesh.data());
        if (zero == 2) optimizer = std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
        step(make_batch(8), mean_loss);
        const char* const what = staged ? "is one of a model that is spread over 2 stages"
                                        : "is this rank's part of a layer that 2 ranks hold together";
        if (zero < 2)
          expect_refused(model, *optimizer, what);
        else
          EXPECT_NE(error_of([&] { optimizer->clip_grad_norm_(1.0); }).find(what), std::string::npos);
        const auto clip = [&](optim::Optimizer* with) {
          return staged ? pipeline->clip_grad_norm(0.01, nullptr, with) : divided->clip_grad_norm(0.01, with);
        };
        if (zero == 2) {
          EXPECT_NE(error_of([&] { clip(nullptr); }).find("with the step's optimizer"), std::string::npos);
        }
        // Undivided gradients are all scaled, whatever the optimizer has.
        const std::vector<Tensor> here = staged ? pipeline->parameters() : model.parameters();
        optim::SGD of_one({here.back()}, {.lr = 0.1});
        const double norm = clip(zero == 0 ? &of_one : optimizer.get());
        if (zero == 0) (staged ? norm_of_stages : norm_of_layers) = norm;
        EXPECT_GT(norm, 0.01);
        EXPECT_EQ(norm, staged ? norm_of_stages : norm_of_layers) << "ZeRO-" << zero;
        EXPECT_NEAR(clip(optimizer.get()), 0.01, 1e-6) << "ZeRO-" << zero << ": clipped by the first call";
        optimizer->step();
      });
}

}  // namespace
}  // namespace lockstep::distributed
