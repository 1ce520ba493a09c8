// Several devices of one process where programs do more with them than one forward and its backward at a time.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/distributed/parallel/data_parallel.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;
using lockstep::testing::expect_close;

std::vector<Device> cpus(std::initializer_list<int> indices) {
  std::vector<Device> devices;
  for (int i : indices) devices.emplace_back(kCPU, i);
  return devices;
}

/// One layer, and a function of its result.
struct Ends : nn::Module {
  explicit Ends(std::function<Tensor(const Tensor&)> end) : end(std::move(end)) {}
  nn::Linear fc{this, "fc", kFeatures, kClasses};
  std::function<Tensor(const Tensor&)> end;
  Tensor forward(Tensor x) override { return end(fc(x)); }
};

DataParallel ending(std::function<Tensor(const Tensor&)> end) {
  return DataParallel([end] { return std::make_unique<Ends>(end); }, cpus({0, 1}));
}

TEST(Devices, AResultOfAnIntegerTypeNeedsNoGradient) {
  DataParallel parallel = ending([](const Tensor& y) { return y.argmax(1); });
  const Tensor x = make_batch(5).x.requires_grad_(), labels = parallel(x);
  EXPECT_EQ(labels.to_vector<std::int64_t>(), parallel.module()(x).to_vector<std::int64_t>());
  EXPECT_FALSE(labels.requires_grad());
}

}  // namespace
}  // namespace lockstep::distributed
