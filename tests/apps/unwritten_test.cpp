// Programs of several processes whose work is done, and of which something could not be written.

#include <algorithm>

#include "tests/apps/train_support.h"

namespace lockstep::testing {
namespace {

// One line says what, and one that the work is done: not a line a rank, and no report of a rank that has failed.
TEST(Unwritten, IsToldOnceByTheRankThatWrites) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const ProcessResult result =
      train(dataset() + std::vector<std::string>{"--device", "cpu", "--model", "mlp", "--nproc", "3", "--max-steps",
                                                 "3", "--metrics", "/dev/full"});
  EXPECT_EQ(result.status, 73);
  EXPECT_FALSE(weights_of(result.out).empty()) << result.out;
  const std::string lacks = "mnist_train: [run] the metrics file '/dev/full' could not be written, and lacks lines";
  const std::string done = "has done its work, and could not write all that came of it where it should be (status 73";
  EXPECT_NE(result.err.find(lacks), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(lacks), result.err.rfind(lacks)) << result.err;
  EXPECT_GT(result.err.find("mnist_train: rank 0 (pid "), result.err.find(lacks)) << result.err;
  EXPECT_NE(result.err.find(done), std::string::npos) << result.err;
  // The first is the warning, while the training goes on.
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 3) << result.err;
}

}  // namespace
}  // namespace lockstep::testing
