#pragma once

// What the tests of whole programs share.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/support/golden.h"

namespace lockstep::testing {

/// The data of a program of scripts/golden_models.py, in the dtype of a test.
class Program {
 public:
  Program(const std::string& name, DType dtype, const std::string& file = "programs")
      : file_(file), name_(name), dtype_(dtype) {}

  Tensor operator[](const std::string& key) const {
    const Tensor& tensor = GoldenFile::open(file_).get(name_, key);
    return tensor.is_floating_point() ? tensor.to(dtype_) : tensor.clone();
  }
  /// Gives the module the recorded weights, all of which it must have under the recorded names.
  void start(nn::Module& net) const {
    std::size_t found = 0;
    for (const nn::NamedTensor& p : net.named_parameters()) {
      const Tensor& recorded = GoldenFile::open(file_).get(name_, "start." + p.name);
      ASSERT_EQ(p.tensor.sizes(), recorded.sizes()) << p.name;
      nn::replace_value(p.tensor, recorded.clone());
      ++found;
    }
    std::size_t recorded = 0;
    for (const auto& [key, tensor] : GoldenFile::open(file_).tensors_of(name_)) recorded += key.starts_with("start.");
    EXPECT_EQ(found, recorded);
    net.to(dtype_);
  }
  /// Ten steps give the recorded losses.
  void expect_losses(const std::function<double()>& step, double tolerance_of_double = 1e-7) const {
    const double tolerance = dtype_ == kFloat64 ? tolerance_of_double : 2e-3;
    const std::vector<double> losses = GoldenFile::open(file_).get(name_, "losses").to_vector<double>();
    ASSERT_EQ(losses.size(), 10u);
    for (std::size_t i = 0; i < losses.size(); ++i)
      ASSERT_NEAR(step(), losses[i], std::fabs(losses[i]) * tolerance) << name_ << ", step " << i;
  }
  /// The same for a loss and an optimizer.
  void expect_losses(optim::Optimizer& optimizer, const std::function<Tensor()>& loss,
                     double tolerance_of_double = 1e-7) const {
    expect_losses(
        [&] {
          optimizer.zero_grad();
          const Tensor value = loss();
          value.backward();
          optimizer.step();
          return value.item<double>();
        },
        tolerance_of_double);
  }

 private:
  std::string file_;
  std::string name_;
  DType dtype_;
};

/// Runs under both dtypes.
class Programs : public ::testing::TestWithParam<DType> {};

}  // namespace lockstep::testing
