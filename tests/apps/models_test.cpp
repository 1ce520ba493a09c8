#include "apps/models/models.h"

#include <gtest/gtest.h>

#include "lockstep/core/random.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::models {
namespace {

using namespace lockstep::testing;

struct Known {
  const char* name;
  std::int64_t parameters;
  std::size_t tensors;
};

class EachModel : public ::testing::TestWithParam<Known> {};
INSTANTIATE_TEST_SUITE_P(Models, EachModel,
                         ::testing::Values(Known{"lenet", 21840, 8}, Known{"cnn", 1199882, 8}, Known{"mlp", 669706, 6}),
                         [](const auto& info) { return info.param.name; });

TEST_P(EachModel, HasItsSizeAndGivesLogits) {
  const auto model = make_model(GetParam().name);
  EXPECT_EQ(model->num_parameters(), GetParam().parameters);
  EXPECT_EQ(model->parameters().size(), GetParam().tensors);
  const Tensor x = make_input({3, 1, 28, 28}, 1, kFloat32);
  const Tensor logits = model->forward(x);
  EXPECT_EQ(logits.sizes(), (Shape{3, 10}));
  logits.backward(ones({3, 10}));
  for (const nn::NamedTensor& p : model->named_parameters()) EXPECT_TRUE(p.tensor.grad().defined()) << p.name;
}

TEST_P(EachModel, DependsOnTheSeedAlone) {
  manual_seed(4);
  const std::string first = nn::weights_sha256(*make_model(GetParam().name));
  EXPECT_NE(nn::weights_sha256(*make_model(GetParam().name)), first);
  manual_seed(4);
  EXPECT_EQ(nn::weights_sha256(*make_model(GetParam().name)), first);
}

TEST_P(EachModel, IsKnownByItsWeights) {
  const TemporaryPath weights, checkpoint;
  const auto model = make_model(GetParam().name);
  nn::save(*model, weights.text());
  EXPECT_EQ(model_of(nn::SafetensorsFile(weights.text())), GetParam().name);
  const optim::SGD optimizer(model->parameters(), {.momentum = 0.9});
  nn::save_checkpoint(checkpoint.text(), *model, optimizer, {});
  EXPECT_EQ(model_of(nn::SafetensorsFile(checkpoint.text())), GetParam().name);
}

TEST(Models, UnknownOnesAreErrors) {
  EXPECT_EQ(model_names(), (std::vector<std::string>{"lenet", "cnn", "mlp", "lenet-bn"}));
  EXPECT_EQ(error_of([] { make_model("resnet"); }), "there is no model 'resnet'; expected lenet, cnn, mlp, lenet-bn");
  const TemporaryPath path;
  nn::save_safetensors({{"conv1.weight", ones({10, 1, 5, 4})}}, path.text());
  const std::string error = error_of([&] { model_of(nn::SafetensorsFile(path.text())); });
  EXPECT_NE(error.find(path.text()), std::string::npos) << error;
  EXPECT_NE(error.find("holds the weights of none of the models lenet, cnn, mlp, lenet-bn"), std::string::npos)
      << error;
}

}  // namespace
}  // namespace lockstep::models
