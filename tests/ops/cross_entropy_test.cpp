#include "lockstep/autograd/ops/cross_entropy/cross_entropy.h"

#include <gtest/gtest.h>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/nll_loss/nll_loss.h"
#include "lockstep/autograd/ops/softmax/softmax.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

Tensor with_shape(const Tensor& t, const Shape& sizes) {
  return t.as_strided(sizes, contiguous_strides(sizes), 0);
}

Tensor labels(std::int64_t rows, std::int64_t classes) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < rows; ++i) values.push_back((i * 7 + 3) % classes);
  return tensor(values);
}

struct Case {
  Reduction reduction;
  bool weighted;
  double smoothing;
};

class CrossEntropy : public ::testing::TestWithParam<Case> {
 protected:
  CrossEntropyOptions options(std::int64_t classes, std::int64_t ignore_index) const {
    const auto [reduction, weighted, smoothing] = GetParam();
    return {.reduction = reduction,
            .ignore_index = ignore_index,
            .label_smoothing = smoothing,
            .weight = weighted ? make_input({classes}, 2, kFloat64, 0.5, 2.5) : Tensor()};
  }
};

INSTANTIATE_TEST_SUITE_P(Options, CrossEntropy,
                         ::testing::Values(Case{Reduction::none, false, 0.0}, Case{Reduction::none, false, 0.1},
                                           Case{Reduction::none, true, 0.0}, Case{Reduction::none, true, 0.1},
                                           Case{Reduction::mean, false, 0.0}, Case{Reduction::mean, false, 0.1},
                                           Case{Reduction::mean, true, 0.0}, Case{Reduction::mean, true, 0.1},
                                           Case{Reduction::sum, false, 0.0}, Case{Reduction::sum, false, 0.1},
                                           Case{Reduction::sum, true, 0.0}, Case{Reduction::sum, true, 0.1}));

TEST_P(CrossEntropy, GradientMatchesCentralDifferences) {
  const auto check = [&](const Shape& sizes, const Tensor& target) {
    gradcheck([&](const auto& in) { return cross_entropy(in[0], target, options(5, 2)); },
              {make_leaf(sizes, 3, kFloat64, -2, 2)});
  };
  check({5}, scalar_tensor(4, {.dtype = kInt64}));
  check({7, 5}, labels(7, 5));
  check({2, 5, 3}, with_shape(labels(6, 5), {2, 3}));
}

// Of images, vectors run over the pixels; the same logits as rows give the same bits.
TEST_P(CrossEntropy, OfPixelsEqualsThatOfRows) {
  struct Sizes {
    std::int64_t n, classes, h, w;
  };
  for (const auto [n, classes, h, w] : {Sizes{3, 5, 7, 11}, Sizes{2, 1, 3, 3}, Sizes{1, 21, 40, 33}, Sizes{2, 16, 9, 5},
                                        Sizes{1, 100, 13, 10}, Sizes{2, 256, 5, 9}, Sizes{1, 300, 4, 5}})
    for (const DType dtype : {kFloat32, kFloat64}) {
      const Tensor rows = make_leaf({n * h * w, classes}, 3, dtype, -4, 4);
      const Tensor target = labels(n * h * w, classes);
      const Tensor pixels = rows.detach().view({n, h, w, classes}).permute({0, 3, 1, 2}).clone();
      pixels.set_requires_grad(true);
      CrossEntropyOptions given = options(classes, 2);
      if (given.weight.defined()) given.weight = given.weight.to(dtype);
      const Tensor by_rows = cross_entropy(rows, target, given);
      const Tensor by_pixels = cross_entropy(pixels, target.view({n, h, w}), given);
      EXPECT_TRUE(equal(by_rows, by_pixels.reshape(by_rows.sizes()))) << classes;
      const Tensor weight = by_rows.dim() == 0 ? ones({}, options_of(rows)) : make_input(by_rows.sizes(), 5, dtype);
      by_rows.backward(weight);
      by_pixels.backward(weight.reshape(by_pixels.sizes()));
      EXPECT_TRUE(equal(rows.grad(), pixels.grad().permute({0, 2, 3, 1}).reshape(rows.sizes()))) << classes;
    }
}

TEST_P(CrossEntropy, EqualsLogSoftmaxThenNll) {
  if (GetParam().smoothing > 0) return;  // nll_loss has no smoothing; the values recorded from PyTorch cover it
  for (const std::int64_t classes : {1, 2, 10, 17, 1000, 1500}) {
    const CrossEntropyOptions o = options(classes, 3);
    const Tensor a = make_leaf({9, classes}, 1, kFloat64, -5, 5), b = make_leaf({9, classes}, 1, kFloat64, -5, 5);
    const Tensor fused = cross_entropy(a, labels(9, classes), o);
    const Tensor plain = nll_loss(log_softmax(b, 1), labels(9, classes),
                                  {.reduction = o.reduction, .ignore_index = 3, .weight = o.weight});
    expect_close(fused, plain, 1e-12, 1e-12);
    const Tensor upstream = make_input(fused.sizes(), 8);
    fused.backward(upstream);
    plain.backward(upstream);
    expect_close(a.grad(), b.grad(), 1e-12, 1e-12);
  }
}

TEST_P(CrossEntropy, OtherDtypesAndStridedInputsAgreeWithFloat64) {
  for (const std::int64_t classes : {10, 1500}) {
    const Tensor target = labels(70, classes);
    const Tensor exact_x = make_leaf({70, classes}, 1, kFloat64, -4, 4);
    CrossEntropyOptions o = options(classes, 3);
    const Tensor exact = cross_entropy(exact_x, target, o);
    exact.backward(make_input(exact.sizes(), 8));
    const Tensor weight = o.weight;
    for (const DType dtype : {kFloat32, kFloat16, kBFloat16}) {
      const double tolerance = dtype == kFloat32 ? 1e-5 : dtype == kFloat16 ? 5e-3 : 4e-2;
      if (weight.defined()) o.weight = cast_values(weight, dtype);
      const Tensor x = make_leaf({70, classes}, 1, dtype, -4, 4);
      const Tensor loss = cross_entropy(x, target, o);
      EXPECT_EQ(loss.dtype(), dtype);
      expect_close(loss, exact, tolerance, tolerance);
      loss.backward(make_input(exact.sizes(), 8, dtype));
      expect_close(x.grad(), exact_x.grad(), 5 * tolerance, 5 * tolerance);
      expect_close(cross_entropy(make_strided(x), make_strided(target), o), loss, 0, 0);
    }
  }
}

TEST_P(CrossEntropy, BitsDoNotDependOnTheNumberOfThreads) {
  for (const Shape& sizes : {Shape{5000, 10}, Shape{30, 2000}, Shape{4, 7, 900}}) {
    Shape target_sizes = sizes;
    target_sizes.erase(1);
    const Tensor target = with_shape(labels(target_sizes.numel(), sizes[1]), target_sizes);
    check_threads({.name = "",
                   .inputs = [&] { return TensorList{make_leaf(sizes, 4, kFloat64, -5, 5)}; },
                   .run =
                       [&](const TensorList& in) {
                         CrossEntropyOptions o = options(sizes[1], 2);
                         if (o.weight.defined()) o.weight = cast_values(o.weight, in[0].dtype());
                         return TensorList{cross_entropy(in[0], target, o)};
                       }});
  }
}

TEST_P(CrossEntropy, IgnoredRowsGetZeroGradientEvenIfTheyHoldNan) {
  const Tensor x = make_leaf({3, 4}, 1, kFloat32);
  x.data<float>()[5] = std::nanf("");
  CrossEntropyOptions o = options(4, -100);
  if (o.weight.defined()) o.weight = cast_values(o.weight, kFloat32);
  const Tensor loss = cross_entropy(x, tensor<std::int64_t>({0, -100, 3}), o);
  loss.backward(ones_like(loss));
  const std::vector<double> grad = x.grad().to_vector<double>();
  for (int i = 4; i < 8; ++i) EXPECT_EQ(grad[static_cast<std::size_t>(i)], 0.0);
  EXPECT_FALSE(std::isnan(loss.to_vector<double>()[0]));
  EXPECT_NE(grad[0], 0.0);
}

TEST(CrossEntropyValues, LogitsOfAnySizeKeepTheirPrecision) {
  const Tensor x = tensor<float>({30000.f, 30001.f, -3e38f});
  x.set_requires_grad(true);
  const Tensor loss = cross_entropy(x, scalar_tensor(0, {.dtype = kInt64}));
  EXPECT_NEAR(loss.item(), 1.3132616875, 1e-6);
  loss.backward();
  expect_close(x.grad(), tensor<double>({-0.7310585786, 0.7310585786, 0}), 1e-6, 1e-7);
}

TEST(CrossEntropyValues, NothingThatCountsGivesNanForTheMeanAndZeroForTheSum) {
  const Tensor ignored = tensor<std::int64_t>({-100, -100});
  const Tensor none = empty({0}, {.dtype = kInt64});
  for (const double smoothing : {0.0, 0.1}) {
    EXPECT_TRUE(std::isnan(cross_entropy(make_input({2, 3}), ignored, {.label_smoothing = smoothing}).item()));
    EXPECT_TRUE(std::isnan(cross_entropy(make_input({0, 3}), none, {.label_smoothing = smoothing}).item()));
    const CrossEntropyOptions sum{.reduction = Reduction::sum, .label_smoothing = smoothing};
    EXPECT_EQ(cross_entropy(make_input({2, 3}), ignored, sum).item(), 0.0);
    EXPECT_EQ(cross_entropy(make_input({0, 3}), none, sum).item(), 0.0);
  }
}

TEST(CrossEntropyValues, AnIgnoreIndexInsideTheClassesIsIgnored) {
  const Tensor x = make_input({3, 4});
  const Tensor some =
      cross_entropy(x, tensor<std::int64_t>({1, 0, 2}), {.reduction = Reduction::none, .ignore_index = 0});
  EXPECT_EQ(some.to_vector<double>()[1], 0.0);
  EXPECT_GT(some.to_vector<double>()[0], 0.0);
}

TEST(CrossEntropyGraph, RunsTwiceWhenTheGraphIsKept) {
  const Tensor x = make_leaf({3, 4});
  const Tensor loss = cross_entropy(x, labels(3, 4));
  loss.backward({}, true);
  const std::vector<double> once = x.grad().to_vector<double>();
  loss.backward();
  EXPECT_NEAR(x.grad().to_vector<double>()[0], 2 * once[0], 1e-15);
}

TEST(CrossEntropyErrors, NameTheProblem) {
  const Tensor x = make_input({2, 3});
  const Tensor good = tensor<std::int64_t>({0, 1});
  const Tensor planes = make_input({2, 3, 2, 2});
  const struct {
    std::function<void()> body;
    const char* message;
  } cases[] = {
      {[&] {
         cross_entropy(x, tensor<std::int64_t>({0, 200}));
       },
       "[cross_entropy] target of row 1 is 200, expected a class index in [0, 3) for 3 classes or ignore_index (-100)"},
      {[&] {
         cross_entropy(planes, full({2, 2, 2}, 7, {.dtype = kInt64}));
       },
       "target of sample 0, position 0 is 7"},
      {[&] { cross_entropy(x, ones({2})); }, "a float32 target holds a probability for each class"},
      {[&] { cross_entropy(planes, good); }, "expected a target of shape [2, 2, 2]"},
      {[&] { cross_entropy(x, good, {.label_smoothing = 1.5}); }, "label_smoothing is 1.5, expected a value in [0, 1]"},
      {[&] { cross_entropy(x, good, {.label_smoothing = std::nan("")}); }, "expected a value in [0, 1]"},
      {[&] {
         cross_entropy(x, move_values(good, {kCPU, 1}));
       },
       "the target is on cpu:1"},
  };
  for (const auto& c : cases) {
    const std::string message = error_of(c.body);
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::testing
