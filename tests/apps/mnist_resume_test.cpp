// mnist_train going on from a checkpoint.

#include <gtest/gtest.h>

#include "tests/apps/train_support.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;

// As a learning rate does; where none is given, the checkpoint's goes on.
TEST(MnistTrain, AMomentumThatIsGivenCountsFromTheResumptionOn) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const std::string checkpoint = directory.file("checkpoint.safetensors");
  const auto common =
      dataset() + std::vector<std::string>{"--model", "mlp", "--schedule", "constant", "--batch-size", "16"};
  const auto hash = [&](const std::vector<std::string>& more) {
    const ProcessResult result = train(common + more);
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out.substr(result.out.find("weights_sha256="));
  };
  const std::string whole = hash({"--max-steps", "12", "--momentum", "0.5"});
  hash({"--max-steps", "8", "--momentum", "0.5", "--checkpoint", checkpoint});
  const std::vector<std::string> rest{"--max-steps", "12", "--resume", checkpoint};
  EXPECT_EQ(hash(rest), whole);
  EXPECT_EQ(hash(rest + std::vector<std::string>{"--momentum", "0.5"}), whole);
  EXPECT_NE(hash(rest + std::vector<std::string>{"--momentum", "0.8"}), whole);
}

// A run broken off and resumed ends with the bits of one that was not.
TEST(MnistTrain, ResumeGoesOnAsIfNothingHadHappened) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const std::string checkpoint = directory.file("checkpoint.safetensors");
  // A constant rate: the length of the run must not enter.
  const auto common = dataset() + std::vector<std::string>{"--model", "lenet", "--schedule", "constant"};
  const auto hash = [](const ProcessResult& result) {
    EXPECT_EQ(result.status, 0) << result.err;
    return result.out.substr(result.out.find("weights_sha256="));
  };
  const std::string whole = hash(train(common + std::vector<std::string>{"--max-steps", "40"}));
  hash(train(common + std::vector<std::string>{"--max-steps", "25", "--checkpoint", checkpoint}));
  EXPECT_EQ(hash(train(common + std::vector<std::string>{"--max-steps", "40", "--resume", checkpoint})), whole);
}

}  // namespace
}  // namespace lockstep
