#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/support/golden.h"

namespace lockstep::testing {
namespace {

struct LeNet : nn::Module {
  nn::Conv2d conv1{this, "conv1", 1, 10, 5};
  nn::Conv2d conv2{this, "conv2", 10, 20, 5};
  nn::Linear fc1{this, "fc1", 320, 50}, fc2{this, "fc2", 50, 10};

  Tensor forward(Tensor x) override {
    x = relu(max_pool2d(conv1(x), 2));
    x = relu(max_pool2d(conv2(x), 2));
    return fc2(relu(fc1(x.flatten(1))));
  }
};

/// float64 agrees to rounding; float32 rounding grows over the steps.
struct Precision {
  DType dtype;
  double tolerance;
  double training_tolerance;
};

class GoldenModel : public ::testing::TestWithParam<Precision> {
 protected:
  GoldenModel() {
    nn::load(model_, LOCKSTEP_SOURCE_DIR "/tests/golden/model_weights.safetensors");
    model_.to(GetParam().dtype);
  }
  Tensor loss() { return cross_entropy(model_(images_), labels_); }

  const GoldenFile& file_ = GoldenFile::open("model");
  LeNet model_;
  Tensor images_ = cast_values(file_.get("batch", "images"), GetParam().dtype);
  Tensor labels_ = file_.get("batch", "labels");
};

TEST_P(GoldenModel, LogitsAndGradientsEqualPyTorch) {
  expect_golden(model_(images_).detach(), file_.get("first", "logits"), "logits", GetParam().tolerance);
  loss().backward();
  std::size_t compared = 0;
  for (const nn::NamedTensor& p : model_.named_parameters()) {
    // Recorded in float32.
    expect_golden(p.tensor.grad(), file_.get("first", "grad." + p.name), p.name, std::max(GetParam().tolerance, 1e-6));
    ++compared;
  }
  EXPECT_EQ(compared, 8u);
}

TEST_P(GoldenModel, TenTrainingStepsEqualPyTorch) {
  optim::SGD optimizer(model_.parameters(), {.lr = 0.05, .momentum = 0.9});
  const std::vector<double> losses = file_.get("training", "losses").to_vector<double>();
  ASSERT_EQ(losses.size(), 10u);
  for (std::size_t step = 0; step < losses.size(); ++step) {
    optimizer.zero_grad();
    const Tensor value = loss();
    value.backward();
    optimizer.step();
    EXPECT_NEAR(value.item(), losses[step], losses[step] * GetParam().training_tolerance) << "step " << step;
  }
  for (const nn::NamedTensor& p : model_.named_parameters()) {
    double squares = 0.0;
    for (double value : p.tensor.to_vector<double>()) squares += value * value;
    const double norm = file_.get("training", "norm." + p.name).item();
    EXPECT_NEAR(std::sqrt(squares), norm, norm * GetParam().training_tolerance) << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Nn, GoldenModel,
                         ::testing::Values(Precision{kFloat64, 1e-9, 1e-9}, Precision{kFloat32, 1e-5, 1e-4}),
                         [](const auto& info) { return std::string(name(info.param.dtype)); });

// The recorded optimizers and schedules are parameters of the tests of this program, under their own names.
TEST(GoldenOptimFile, EveryRecordedCaseIsTested) {
  std::set<std::string> tested;
  const ::testing::UnitTest& program = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < program.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *program.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const std::string test = suite.GetTestInfo(j)->name();
      tested.insert(test.substr(test.rfind('/') + 1));
    }
  }
  const GoldenFile& file = GoldenFile::open("optim");
  int seen = 0;
  for (const std::string& recorded : file.cases()) {
    if (file.tensors_of(recorded).contains("norm")) continue;  // gradient clipping: one test for all
    EXPECT_TRUE(tested.contains(recorded)) << recorded << " was recorded but is not tested";
    ++seen;
  }
  EXPECT_EQ(seen, 53);
}

}  // namespace
}  // namespace lockstep::testing
