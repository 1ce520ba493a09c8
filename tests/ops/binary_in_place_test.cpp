#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/error.h"
#include "lockstep/core/factories.h"
#include "tests/support/tensor_testing.h"

namespace lockstep {
namespace {

using testing::error_of;
using testing::expect_close;
using testing::make_input;
using testing::make_leaf;
using testing::make_strided;

struct InPlace {
  const char* name;
  void (*run)(const Tensor& target, const Tensor& other);
  Tensor (*same)(const Tensor& target, const Tensor& other);
};

const std::vector<InPlace> kInPlace = {
    {"add", [](const Tensor& t, const Tensor& o) { t.add_(o); },
     [](const Tensor& t, const Tensor& o) { return t + o; }},
    {"add_alpha", [](const Tensor& t, const Tensor& o) { t.add_(o, 0.5); },
     [](const Tensor& t, const Tensor& o) { return add(t, o, 0.5); }},
    {"add_scalar", [](const Tensor& t, const Tensor&) { t.add_(3.0); },
     [](const Tensor& t, const Tensor&) { return t + 3.0; }},
    {"plus", [](const Tensor& t, const Tensor& o) { t += o; }, [](const Tensor& t, const Tensor& o) { return t + o; }},
    {"minus", [](const Tensor& t, const Tensor& o) { t -= o; }, [](const Tensor& t, const Tensor& o) { return t - o; }},
    {"minus_scalar", [](const Tensor& t, const Tensor&) { t -= 3; },
     [](const Tensor& t, const Tensor&) { return t - 3; }},
    {"mul", [](const Tensor& t, const Tensor& o) { t.mul_(o); },
     [](const Tensor& t, const Tensor& o) { return t * o; }},
    {"mul_scalar", [](const Tensor& t, const Tensor&) { t.mul_(3.0); },
     [](const Tensor& t, const Tensor&) { return t * 3.0; }},
    {"times", [](const Tensor& t, const Tensor& o) { t *= o; }, [](const Tensor& t, const Tensor& o) { return t * o; }},
    {"divide", [](const Tensor& t, const Tensor& o) { t /= o; },
     [](const Tensor& t, const Tensor& o) { return t / o; }},
    {"divide_scalar", [](const Tensor& t, const Tensor&) { t /= 3; },
     [](const Tensor& t, const Tensor&) { return t / 3; }},
    {"itself", [](const Tensor& t, const Tensor&) { t.mul_(t); }, [](const Tensor& t, const Tensor&) { return t * t; }},
};

class InPlaceOps : public ::testing::TestWithParam<InPlace> {};
INSTANTIATE_TEST_SUITE_P(Binary, InPlaceOps, ::testing::ValuesIn(kInPlace),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(InPlaceOps, EqualTheOpsThatReturnNewTensors) {
  for (DType dtype : {kFloat32, kFloat64, kFloat16})
    for (const Shape& other : {Shape{3, 700}, Shape{700}, Shape{3, 1}, Shape{}}) {
      const Tensor t = make_input({3, 700}, 1, dtype, 0.5, 2.0), o = make_input(other, 2, dtype, 0.5, 2.0);
      const Tensor expected = GetParam().same(t, o);
      for (const Tensor& target : {t.clone(), make_strided(t)}) {
        GetParam().run(target, o);
        EXPECT_EQ(target.to_vector<double>(), expected.to_vector<double>());
      }
    }
}

TEST_P(InPlaceOps, Gradients) {
  const auto function = [](const std::vector<Tensor>& in) {
    const Tensor target = in[0].clone();
    GetParam().run(target, in[1]);
    return target;
  };
  gradcheck(function, {make_leaf({2, 3}, 1, kFloat64, 0.5, 2.0), make_leaf({3}, 2, kFloat64, 0.5, 2.0)});
  gradcheck(function, {make_leaf({2, 3}, 1, kFloat64, 0.5, 2.0), make_input({3}, 2, kFloat64, 0.5, 2.0)});
}

TEST_P(InPlaceOps, RefuseLeavesAndRepeatedElements) {
  const Tensor leaf = make_leaf({3}), other = make_leaf({3});
  EXPECT_NE(error_of([&] { GetParam().run(leaf, other); }).find("a leaf that requires gradients"), std::string::npos);
  const Tensor repeated = make_input({4}).as_strided({3, 4}, {0, 1}, 0);
  EXPECT_NE(error_of([&] { GetParam().run(repeated, make_input({4})); }).find("repeats its elements"),
            std::string::npos);
}

struct Refusal {
  const char* what;
  void (*run)();
};

class InPlaceRefused : public ::testing::TestWithParam<Refusal> {};
INSTANTIATE_TEST_SUITE_P(
    Binary, InPlaceRefused,
    ::testing::Values(
        Refusal{"[add_] an operand of shape [2, 3]",
                [] {
                  make_input({3}).add_(make_input({2, 3}));
                }},
        Refusal{"[add_] a float64 result does not go into a int64 tensor",
                [] { tensor<std::int64_t>({1}).add_(make_input({1})); }},
        Refusal{"[add_] a float32 result does not go into a int64 tensor", [] { tensor<std::int64_t>({1}).add_(0.5); }},
        Refusal{"[+=] a int64 result does not go into a bool tensor", [] { tensor<bool>({true}) += 1; }},
        Refusal{"[/=] true division", [] { tensor<std::int64_t>({1}) /= 2; }},
        Refusal{"[add_] a leaf that requires gradients", [] { make_leaf({4}).slice(0, 0, 2).add_(make_leaf({2})); }},
        Refusal{"[MulBackward] a tensor of shape [3] that backward needs was changed in place", [] {
                  const Tensor x = make_leaf({3}), y = make_input({3});
                  const Tensor out = x * y;
                  y.add_(1.0);
                  out.backward(ones({3}, {.dtype = kFloat64}));
                }}));

TEST_P(InPlaceRefused, SaysWhy) {
  const std::string message = error_of(GetParam().run);
  EXPECT_NE(message.find(GetParam().what), std::string::npos) << message;
}

TEST(InPlace, IntegersTakeIntegersAlone) {
  const Tensor x = tensor<std::int64_t>({1, 2}), floats = ones({2}), yes = tensor<bool>({true});
  const auto refused = [](const Tensor& into, const char* op, const char* result, const std::function<void()>& run) {
    EXPECT_EQ(error_of(run), fmt::format("[{}] a {} result does not go into a {} tensor; convert the tensor with to() "
                                         "first",
                                         op, result, name(into.dtype())));
  };
  refused(x, "add_", "float32", [&] { x.add_(2.0); });
  refused(x, "mul_", "float32", [&] { x.mul_(2.0); });
  refused(x, "exp_", "float32", [&] { x.exp_(); });
  refused(yes, "exp_", "float32", [&] { yes.exp_(); });
  refused(x, "log_", "float32", [&] { x.log_(); });
  refused(x, "sqrt_", "float32", [&] { x.sqrt_(); });
  refused(x, "rsqrt_", "float32", [&] { x.rsqrt_(); });
  refused(x, "sigmoid_", "float32", [&] { x.sigmoid_(); });
  refused(x, "tanh_", "float32", [&] { x.tanh_(); });
  refused(x, "reciprocal_", "float32", [&] { x.reciprocal_(); });
  refused(x, "pow_", "float32", [&] { x.pow_(0.5); });
  refused(x, "clamp_", "float32", [&] { x.clamp_(-1.5, 4.5); });
  refused(x, "clamp_min_", "float32", [&] { x.clamp_min_(1.0); });
  refused(x, "addcmul_", "float32", [&] { x.addcmul_(floats, x); });
  refused(x, "addcdiv_", "float32", [&] { x.addcdiv_(floats, floats); });
  EXPECT_EQ(x.to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 2}));
  x.add_(3).mul_(2).neg_().abs_().square_().floor_().round_().pow_(1.0).clamp_(0.0, 80.0).clamp_min_(70).relu_();
  x.addcmul_(x, x).sub_(1);
  EXPECT_EQ(x.to_vector<std::int64_t>(), (std::vector<std::int64_t>{70 * 71 - 1, 80 * 81 - 1}));
}

TEST(InPlace, OverlappingOperandsReadTheOldValues) {
  const Tensor x = arange(std::int64_t{8});
  rows(x, 1, 7).add_(rows(x, 0, 7));
  EXPECT_EQ(x.to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 1, 3, 5, 7, 9, 11, 13}));
}

TEST(InPlace, ProductsOfHalfTypesAreRoundedWithTheSum) {
  const auto number = [](double value, DType dtype) { return full({1}, value, {.dtype = dtype}); };
  const auto half = [&](double value) { return number(value, kFloat16); };
  const auto is = [](const Tensor& x, double value) { EXPECT_EQ(x.item<double>(), value) << x; };
  is(addcmul(half(-60000), half(300), half(300)), 30000);
  is(addcdiv(half(-60000), half(60000), half(0.5)), 60000);
  is(half(0).addcmul_(half(300), half(300), 0.1), 9000);
  is(half(-60000).addcdiv_(half(60000), half(0.5)), 60000);
  const auto brain = [&](double value) { return number(value, kBFloat16); };
  is(addcmul(brain(-1), brain(1 + 0x1p-7), brain(1 + 0x1p-6)), 0x1.8p-6 + 0x1p-13);
  const Tensor x = half(-60000).requires_grad_(), a = half(300).requires_grad_(), b = half(300);
  const Tensor out = addcmul(x, a, b, 0.5);
  is(out, -15000);
  EXPECT_EQ(out.dtype(), kFloat16);
  out.backward();
  is(x.grad(), 1);
  is(a.grad(), 150);
}

TEST(InPlace, ProductsAreAddedToPartsOfThemselves) {
  for (const DType dtype : {kFloat64, kFloat32, kFloat16}) {
    const Tensor x = arange(5, dtype), y = ones({2, 700}, {.dtype = dtype});
    x.slice(0, 1, 5).addcmul_(x.slice(0, 0, 4), x.slice(0, 1, 5), 2);
    expect_close(x, tensor<double>({0, 1, 6, 15, 28}).to(dtype), 0, 0);
    y.t().addcdiv_(arange(700, dtype).unsqueeze(1), full({}, 2.0, {.dtype = kFloat64}));
    expect_close(y, (arange(700, dtype) / 2 + 1).expand({2, 700}), 0, 0);
    EXPECT_NE(error_of([&] { x.addcmul_(y, y); }).find("[addcmul_]"), std::string::npos);
  }
}

TEST(InPlace, ErrorsNameTheFunctionThatWasCalled) {
  const Tensor x = zeros({2}), other = zeros({3});
  const auto begins = [](const char* op, const std::function<void()>& run) {
    EXPECT_EQ(error_of(run).find(fmt::format("[{}] ", op)), 0U) << error_of(run);
  };
  begins("sub_", [&] { x.sub_(other); });
  begins("div_", [&] { x.div_(other); });
  begins("div_", [] { tensor<std::int64_t>({1}).div_(2); });
  begins("neg_", [] { Tensor().neg_(); });
  begins("clamp_max", [] { clamp_max(tensor<std::int32_t>({1}), std::int64_t{1} << 40); });
  begins("hardtanh", [] { hardtanh(tensor<std::int32_t>({1}), 0.0, 1e12); });
  const Tensor row = ones({1, 1, 3}), volume = ones({1, 1, 3, 3, 3});
  begins("conv_transpose1d", [&] { conv_transpose1d(row, row, {}, {.stride = 0}); });
  begins("conv_transpose3d", [&] { conv_transpose3d(volume, volume, {}, {.stride = {1, 0, 1}}); });
  const Tensor leaf = make_leaf({2}), mask = tensor<bool>({true, false});
  begins("masked_fill_", [&] { leaf.masked_fill_(mask, 1.0); });
  begins("index_put_", [&] { leaf.index_put_({tensor<std::int64_t>({0})}, zeros({1}, {.dtype = kFloat64})); });
}

}  // namespace
}  // namespace lockstep
