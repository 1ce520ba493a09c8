// Adafactor and Muon, whose formulas take whole parameters, and ASGD's average.

#include "lockstep/nn/optim/whole_tensors.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/nn/optim/gradients_in_parts.h"
#include "lockstep/nn/optim/rmsprop.h"
#include "tests/support/golden.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::optim {
namespace {

using namespace lockstep::testing;

struct Case {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(std::vector<Tensor>)> make;
  double bound;  ///< of weights up to 1, in the golden's five steps
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};

Case adafactor(const char* name, AdafactorOptions options) {
  return {name, [=](std::vector<Tensor> p) { return std::make_unique<Adafactor>(std::move(p), options); }, 1e-12};
}

// Two digits of five steps: each rounds to bfloat16 some ten times.
Case muon(const char* name, MuonOptions options) {
  return {name, [=](std::vector<Tensor> p) { return std::make_unique<Muon>(std::move(p), options); },
          5 * options.lr * 0.02};
}

const Case kCases[] = {
    adafactor("adafactor", {}),
    adafactor("adafactor_matrix", {.lr = 0.1}),
    adafactor("adafactor_volume", {.lr = 0.5, .weight_decay = 0.1, .maximize = true}),
    muon("muon_wide", {.lr = 0.02}),
    muon("muon_tall", {.lr = 0.02, .weight_decay = 0.3, .momentum = 0.8, .nesterov = false}),
    muon("muon_rms", {.lr = 0.05, .ns_steps = 3, .scale = MuonScale::match_rms_adamw}),
    muon("muon_spectral", {.lr = 0.05, .a = 2.0, .b = -1.5, .c = 0.5, .scale = MuonScale::spectral_unclamped}),
};

class WholeTensors : public ::testing::TestWithParam<Case> {
 protected:
  Tensor start(DType dtype) const {
    const Tensor values = GoldenFile::open("optim").get(GetParam().name, "start");
    return cast_values(values, dtype).clone().requires_grad_();
  }
  Tensor gradient(std::int64_t step, DType dtype) const {
    return cast_values(GoldenFile::open("optim").get(GetParam().name, "grads").select(0, step), dtype).clone();
  }
  std::unique_ptr<Optimizer> make(const Tensor& p) const { return GetParam().make({p}); }
};
INSTANTIATE_TEST_SUITE_P(Cases, WholeTensors, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(WholeTensors, MatchesPyTorch) {
  const Tensor after = GoldenFile::open("optim").get(GetParam().name, "after");
  for (const DType dtype : {kFloat64, kFloat32}) {
    const Tensor p = start(dtype);
    const auto optimizer = make(p);
    for (std::int64_t step = 0; step < 5; ++step) {
      p.set_grad(gradient(step, dtype));
      optimizer->step();
      const double bound = std::max(GetParam().bound, dtype == kFloat64 ? 0.0 : 1e-5);
      expect_close(p, cast_values(after.select(0, step), dtype), 0.0, bound);
    }
  }
}

TEST_P(WholeTensors, BitsDependOnNeitherLayoutNorThreads) {
  const auto weights = [&](bool strided, int threads) {
    const int before = num_threads();
    set_num_threads(threads);
    const Tensor dense = make_input({90, 170}, 3, kFloat32);
    const Tensor p = strided ? make_strided(dense) : dense;
    p.set_requires_grad(true);
    const auto optimizer = make(p);
    for (std::uint32_t step = 0; step < 3; ++step) {
      const Tensor grad = make_input({90, 170}, 10 + step, kFloat32);
      p.set_grad(strided ? make_strided(grad) : grad);
      optimizer->step();
    }
    set_num_threads(before);
    return p.to_vector<double>();
  };
  const std::vector<double> one = weights(false, 1);
  EXPECT_EQ(weights(false, 3), one);
  EXPECT_EQ(weights(true, 2), one);
}

TEST_P(WholeTensors, GoesOnFromItsSavedState) {
  const Tensor a = start(kFloat32), b = start(kFloat32);
  const auto first = make(a), second = make(b);
  for (std::int64_t step = 0; step < 2; ++step) {
    a.set_grad(gradient(step, kFloat32));
    first->step();
  }
  copy_values(a, b);
  first->set_lr(0.03);
  second->load_state(first->state());
  EXPECT_EQ(second->lr(), 0.03);
  a.set_grad(gradient(2, kFloat32));
  b.set_grad(gradient(2, kFloat32));
  first->step();
  second->step();
  EXPECT_EQ(b.to_vector<double>(), a.to_vector<double>());
  const Tensor other = make_leaf({3, 3}, 1, kFloat32);
  EXPECT_NE(error_of([&] { make(other)->load_state(first->state()); }).find("does not fit"), std::string::npos);
}

TEST_P(WholeTensors, ComputesHalvesInFloat) {
  for (const DType dtype : {kFloat16, kBFloat16}) {
    const Tensor p = start(dtype);
    const auto optimizer = make(p);
    p.set_grad(gradient(0, dtype));
    optimizer->step();
    EXPECT_EQ(p.dtype(), dtype);
    for (const nn::NamedTensor& each : optimizer->state().tensors)
      EXPECT_TRUE(each.name == "steps" || each.tensor.dtype() == kFloat32) << each.name;
    EXPECT_LT((p.detach().to(kFloat32) - start(kFloat32)).abs().max().item<double>(), 1.0);
  }
}

TEST_P(WholeTensors, PassesOverWhatHasNoGradientOrNoElements) {
  const Tensor a = make_leaf({3, 4}, 1, kFloat32), b = make_leaf({3, 4}, 2, kFloat32), none = make_leaf({0, 4}, 3);
  const std::vector<double> before = b.to_vector<double>();
  const auto optimizer = GetParam().make({a, b, none});
  a.set_grad(ones({3, 4}));
  none.set_grad(zeros({0, 4}, {.dtype = none.dtype()}));
  optimizer->step();
  EXPECT_EQ(b.to_vector<double>(), before);
  EXPECT_EQ(optimizer->state().tensors.front().tensor.to_vector<double>(), (std::vector<double>{1, 0, 0}));
}

// The bits of a rounded step are its sign's and length's, not those of zeros: a gradient of zeros moves nothing.
TEST(Muon, BringsSingularValuesNearOne) {
  const Tensor p = zeros({20, 30}).requires_grad_();
  Muon optimizer({p}, {.lr = 1.0, .weight_decay = 0.0});
  p.set_grad(make_input({20, 30}, 5, kFloat32));
  optimizer.step();
  const Tensor values = linalg::svdvals(p.detach());
  EXPECT_GT(values.min().item<double>(), 0.4);
  EXPECT_LT(values.max().item<double>(), 1.4);
  const Tensor still = ones({4, 4}).requires_grad_();
  Muon other({still}, {.weight_decay = 0.0});
  still.set_grad(zeros({4, 4}));
  other.step();
  EXPECT_TRUE(still.equal(ones({4, 4})));
}

TEST(Muon, IsForMatricesOfWhichItHasTheWhole) {
  EXPECT_EQ(error_of([] { Muon({make_leaf({5}, 1, kFloat32)}); }),
            "[Muon] expected matrices, found a parameter of shape [5]; give the others to an AdamW beside it");
  EXPECT_EQ(error_of([] {
              Muon({make_leaf({5, 5}, 1, kFloat32)}, {.ns_steps = 100});
            }),
            "[Muon] expected 0 <= ns_steps < 100, found 100");
  const Tensor p = make_leaf({5, 5}, 1, kFloat32);
  Muon optimizer({p});
  p.set_grad(ones({5, 5}));
  const detail::GradientsInParts part({p}, detail::GradientsInParts::Kind::part, "is a part");
  EXPECT_EQ(
      error_of([&] { optimizer.step(); }),
      "[Muon] it takes norms or products of whole parameters, and the model is divided over ranks; expected whole "
      "parameters and gradients here, or an optimizer that updates each element by itself, such as AdamW");
}

TEST(Adafactor, KeepsRowsAndColumns) {
  const Tensor p = make_leaf({3, 4, 5}, 1, kFloat32), q = make_leaf({6}, 2, kFloat32);
  std::vector<std::string> seen;
  for (const nn::NamedTensor& each : Adafactor({p, q}).state().tensors)
    seen.push_back(each.name + " " + to_string(each.tensor.sizes()));
  EXPECT_EQ(seen,
            (std::vector<std::string>{"steps [2]", "row_var.0 [3, 4, 1]", "col_var.0 [3, 1, 5]", "variance.1 [6]"}));
}

TEST(ASGD, HasTheAverageInItsState) {
  const GoldenFile& golden = GoldenFile::open("optim");
  const Tensor p = golden.get("asgd_averaged", "start").to(kFloat64).clone().requires_grad_();
  ASGD optimizer({p}, {.lr = 0.1, .lambd = 0.2, .alpha = 0.5, .t0 = 1, .weight_decay = 0.1});
  for (std::int64_t step = 0; step < 5; ++step) {
    p.set_grad(golden.get("asgd_averaged", "grads").select(0, step).to(kFloat64).clone());
    optimizer.step();
  }
  const nn::NamedTensor average = optimizer.state().tensors.back();
  EXPECT_EQ(average.name, "ax.0");
  expect_close(average.tensor, golden.get("asgd_averaged", "average"), 1e-12, 1e-14);
}

}  // namespace
}  // namespace lockstep::optim
