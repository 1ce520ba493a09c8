// What is tried of a pipeline's layers before it runs, their evaluation, and layers that fail while it runs.

#include <chrono>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/container.h"
#include "tests/distributed/parallel/pipeline_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

// Neither the buffers nor the random numbers of the rank that measures.
TEST(PipelineLayers, MeasuringChangesNothing) {
  nn::Sequential net;
  net.add<nn::BatchNorm1d>(kFeatures).add<nn::Dropout>(0.5).add<nn::Linear>(kFeatures, kClasses);
  manual_seed(3);
  measure_layers(pipeline_layers(net), make_batch(8).x, nullptr, 2);
  const std::vector<float> drawn = randn({2}).to_vector<float>();
  manual_seed(3);
  EXPECT_EQ(drawn, randn({2}).to_vector<float>());
  for (const nn::NamedTensor& each : net.named_buffers())
    EXPECT_EQ(each.tensor.sum().item<double>(), each.name == "0.running_var" ? kFeatures : 0.0) << each.name;
}

// Autocast is the step's: an evaluation gives what the model gives, in the types of its weights.
TEST(PipelineLayers, AreEvaluatedInTheTypesOfTheirWeights) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    const NoGradGuard values_only;
    nn::Sequential net;
    net.add<nn::Linear>(kFeatures, 4).add<nn::Linear>(4, kClasses);
    set_weights(net);
    const auto measure = [](const Tensor& output) { return std::vector<double>{output.abs().sum().item<double>()}; };
    const Tensor x = make_batch(8).x;
    const std::vector<double> expected = measure(net(x));  // before the stages keep their own layers alone
    PipelineParallel pipeline(net, pipeline_layers(net), {.group = group, .autocast = kBFloat16});
    EXPECT_EQ(pipeline.evaluate(x, measure), expected);
  });
}

// What is no std::exception ends the neighbours as well, and not only at their deadline.
TEST(PipelineLayers, MayThrowAnything) {
  const auto begin = std::chrono::steady_clock::now();
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    nn::Sequential net;
    net.add<nn::Linear>(kFeatures, 4).add<nn::Linear>(4, kClasses);
    set_weights(net);
    std::vector<PipelineLayer> layers = pipeline_layers(net);
    layers[1].forward = [](const Tensor&) -> Tensor { throw 42; };
    PipelineParallel pipeline(net, layers, {.group = group});
    TrainingStep step(net, {.group = make_single_process_group(), .model_part = pipeline.part()});
    const auto train = [&] { step(make_batch(8), mean_loss); };
    if (group->rank() == 1)
      EXPECT_THROW(train(), int);
    else
      EXPECT_THROW(train(), ProcessGroupError);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace lockstep::distributed
