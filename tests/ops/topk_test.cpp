#include "lockstep/autograd/ops/topk/topk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/index/index.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

struct Case {
  std::string name;
  Shape sizes;
  std::int64_t k, dim;
  bool largest;
};
class TopKValues : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Ops, TopKValues,
                         ::testing::Values(Case{"vector", {9}, 3, 0, true}, Case{"smallest", {4, 9}, 4, 1, false},
                                           Case{"first_dimension", {7, 3}, 2, 0, true},
                                           Case{"all", {2, 5}, 5, -1, true}, Case{"middle", {2, 6, 3}, 2, 1, false},
                                           Case{"none", {3, 4}, 0, 1, true}, Case{"scalar", {}, 1, 0, true},
                                           Case{"no_rows", {0, 4}, 2, 1, true}, Case{"many", {30, 1000}, 20, 1, true}),
                         [](const auto& info) { return info.param.name; });
TEST_P(TopKValues, ValuesAndGradients) {
  const Case& c = GetParam();
  check_op({.name = "",
            .inputs = [&] { return TensorList{make_leaf(c.sizes)}; },
            .run = [&](const TensorList& in) { return TensorList{topk(in[0], c.k, c.dim, c.largest).values}; },
            .halves = false,  // which merge neighbours, so that others are taken
            .expected =
                [&](const TensorList& in) {
                  if (c.sizes.empty()) return TensorList{copy_contiguous(in[0].detach())};
                  const Tensor turned = copy_contiguous(in[0].detach().transpose(c.dim, -1));
                  const std::int64_t length = turned.size(-1);
                  for (double* row = turned.data<double>(); row != turned.data<double>() + turned.numel();
                       row += length)
                    std::sort(row, row + length, [&](double a, double b) { return c.largest ? a > b : a < b; });
                  return TensorList{copy_contiguous(turned.narrow(-1, 0, c.k).transpose(c.dim, -1))};
                }});
}

TEST(TopK, TiesGoToTheFirstAndNanIsTheLargest) {
  const Tensor x = tensor<float>({1, 3, NAN, 3, 0, 3});
  EXPECT_EQ(topk(x, 4).indices.to_vector<std::int64_t>(), (std::vector<std::int64_t>{2, 1, 3, 5}));
  EXPECT_EQ(topk(x, 3, 0, false).indices.to_vector<std::int64_t>(), (std::vector<std::int64_t>{4, 0, 1}));
}

// A few of a long row are picked out as they come by: rising, falling and mixed rows, with many ties and NaN.
TEST(TopK, FewOfManyAreTheFirstOfASort) {
  manual_seed(6);
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kInt32, kInt64, kUInt8})
    for (const std::int64_t length : {64, 200, 1500}) {
      Tensor mixed = (randn({length}) * 20 + 100).to(kInt32).to(kFloat32);
      if (is_floating_point(dtype)) mixed = mixed.masked_fill(mixed > 130, NAN);
      const Tensor rows = stack({mixed, arange(length).to(kFloat32), arange(length, 0, -1).to(kFloat32)}).to(dtype);
      for (const std::int64_t k : {1, 3, 40})
        for (const bool largest : {true, false}) {
          const TopK found = topk(rows, k, 1, largest), all = sort(rows, 1, largest);
          EXPECT_TRUE(found.indices.equal(all.indices.narrow(1, 0, k))) << name(dtype) << length << " " << k;
        }
    }
}

// Long rows are sorted by the bytes of their values, short ones by comparing.
TEST(Sort, LongRowsAreStableInEveryDtype) {
  manual_seed(4);
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8}) {
    SCOPED_TRACE(name(dtype));
    for (const std::int64_t length : {63, 64, 700}) {
      Tensor wide = randint(dtype == kUInt8 ? 0 : -100, 100, {2, length}).to(kFloat64);  // with ties
      if (is_floating_point(dtype)) {
        double* values = wide.data<double>();
        for (std::int64_t i = 0; i < wide.numel(); ++i) values[i] *= 0.37;
        values[3] = values[40] = NAN;
        values[5] = values[length + 60] = INFINITY;
        values[8] = -INFINITY;
        values[9] = values[50] = 0.0;
        values[10] = values[30] = -0.0;
      } else if (dtype == kInt64) {
        wide = wide * 0x1p40;
      }
      const Tensor x = wide.to(dtype), exact = x.to(kFloat64);
      for (const bool descending : {false, true}) {
        const std::vector<std::int64_t> found = argsort(x, 1, descending).to_vector<std::int64_t>();
        for (std::int64_t row = 0; row < 2; ++row) {
          const double* values = exact.data<double>() + row * length;
          std::vector<std::int64_t> expected(static_cast<std::size_t>(length));
          std::iota(expected.begin(), expected.end(), 0);
          std::stable_sort(expected.begin(), expected.end(), [&](std::int64_t i, std::int64_t j) {
            const double a = values[descending ? j : i], b = values[descending ? i : j];
            return a < b || (b != b && a == a);
          });
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), found.begin() + row * length))
              << length << (descending ? " descending" : "");
        }
      }
    }
  }
}

TEST(Median, OfNothing) {
  const Tensor x = zeros({0, 3});
  x.set_requires_grad(true);
  const Tensor all = median(x);
  EXPECT_TRUE(std::isnan(all.item<float>()));
  all.backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  const auto [values, indices] = median(x, 1);
  EXPECT_EQ(values.sizes(), Shape({0}));
  EXPECT_EQ(indices.dtype(), kInt64);
  EXPECT_EQ(median(x, 1, true).indices.sizes(), Shape({0, 1}));
  EXPECT_NE(error_of([&] { median(x, 0); }).find("expected elements along dimension 0, found sizes [0, 3]"),
            std::string::npos);
  EXPECT_THROW(median(zeros({0}, {.dtype = kInt64})), Error);
}

// Against the stable order, of which they are places.
TEST(OrderStatistics, ArePlacesOfTheStableOrder) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kInt64, kInt32, kUInt8, kBool})
    for (const Shape& sizes :
         {Shape{1}, Shape{2}, Shape{101}, Shape{64}, Shape{5, 12, 3}, Shape{2, 900}, Shape{0, 4}}) {
      SCOPED_TRACE(std::string(name(dtype)) + to_string(sizes));
      const Tensor x = cast_values(make_input(sizes, 5, kFloat64, dtype == kUInt8 ? 0 : -9, 9), kInt64).to(dtype);
      for (int d = 0; d < x.dim(); ++d) {
        if (x.size(d) == 0) continue;
        const Tensor order = argsort(x, d);
        for (const std::int64_t k : {std::int64_t{1}, (x.size(d) + 1) / 2, x.size(d)}) {
          const Tensor place = order.narrow(d, k - 1, 1);
          const TopK found = kthvalue(x, k, d, true), turned = kthvalue(make_strided(x), k, d);
          expect_close(found.indices, place, 0, 0);
          expect_close(found.values, gather(x, d, place), 0, 0);
          expect_close(turned.indices, place.squeeze(d), 0, 0);
        }
        if (x.numel() == 0) continue;
        expect_close(median(x, d, true).indices, order.narrow(d, (x.size(d) - 1) / 2, 1), 0, 0);
      }
    }
}

// Values that differ in any byte.
TEST(OrderStatistics, OfManyDifferentValues) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16}) {
    const Tensor x = pow(make_input({3000}, 6, kFloat64, -4.0, 4.0), 5.0).to(dtype), order = argsort(x);
    for (const std::int64_t k : {1, 2, 77, 1499, 1500, 1501, 2999, 3000})
      EXPECT_EQ(kthvalue(x, k).indices.item<std::int64_t>(), order.index({k - 1}).item<std::int64_t>());
  }
}

TEST(OrderStatistics, ANanIsTheMedianAndTheLargest) {
  const Tensor x = tensor<float>({3, NAN, -0.0f, NAN, 0, -INFINITY, 7, 5, INFINITY, 3});
  EXPECT_EQ(median(x, 0).indices.item<std::int64_t>(), 3);
  EXPECT_TRUE(std::isnan(median(x).item()));
  const std::vector<std::int64_t> order = {5, 2, 4, 0, 9, 7, 6, 8, 1, 3};
  for (std::int64_t k = 1; k <= 10; ++k)
    EXPECT_EQ(kthvalue(x, k).indices.item<std::int64_t>(), order[static_cast<std::size_t>(k - 1)]);
  const Tensor leaf = make_leaf({3, 5});
  median(leaf, 1).values.sum().backward();
  EXPECT_EQ(leaf.grad().sum().item(), 3.0);
  EXPECT_EQ(leaf.grad().max().item(), 1.0);
}

// Integers that lie close together, are far apart, or span all there are: the same groups as of a map.
TEST(Unique, OfIntegersNearAndFar) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(),
                         kMost = std::numeric_limits<std::int64_t>::max();
  const auto check = [](const Tensor& x) {
    std::map<std::int64_t, std::int64_t> groups;
    const std::vector<std::int64_t> all = x.to(kInt64).to_vector<std::int64_t>();
    for (const std::int64_t value : all) ++groups[value];
    std::vector<std::int64_t> values, counts;
    for (const auto& [value, count] : groups) {
      values.push_back(value);
      counts.push_back(count);
    }
    const Unique found = unique(x);
    EXPECT_EQ(found.values.dtype(), x.dtype());
    EXPECT_EQ(found.values.to(kInt64).to_vector<std::int64_t>(), values);
    EXPECT_EQ(found.counts.to_vector<std::int64_t>(), counts);
    EXPECT_EQ(found.values.to(kInt64).index_select(0, found.inverse.view({-1})).to_vector<std::int64_t>(), all);
  };
  const Tensor many = (arange(3000) * 7919) % 613 - 300;
  for (const Tensor& x : {many, many * 1000003, many.to(kInt32), (many % 100 + 100).to(kUInt8), many > 3,
                          tensor<std::int64_t>({kMost, kLeast, 0, kMost, -1}),
                          tensor<std::int64_t>({kMost, kMost - 2, kMost}), tensor<std::int64_t>({kLeast, kLeast + 5})})
    check(x);
}

TEST(Unique, ElementsInOrderEachNanByItself) {
  const Tensor x = tensor<float>({3, NAN, -1, 3, INFINITY, 0, -0.0f, NAN, -1, -INFINITY}).view({2, 5});
  const Unique found = unique(x);
  expect_close(found.values, tensor<float>({-INFINITY, -1, 0, 3, INFINITY, NAN, NAN}), 0, 0);
  EXPECT_EQ(found.inverse.to_vector<std::int64_t>(), (std::vector<std::int64_t>{3, 5, 1, 3, 4, 2, 2, 6, 1, 0}));
  EXPECT_EQ(found.counts.to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 2, 2, 2, 1, 1, 1}));
  for (const DType dtype : {kFloat64, kFloat16, kInt64, kInt32, kUInt8, kBool}) {
    const Tensor numbers = cast_values(make_input({300}, 5, kFloat64, 0, 40), kInt64).to(dtype);
    const Unique each = unique(numbers);
    EXPECT_EQ(each.values.dtype(), dtype);
    EXPECT_TRUE(equal(each.values.index_select(0, each.inverse), numbers));
    EXPECT_EQ(each.counts.sum().item<std::int64_t>(), 300);
    const std::vector<double> values = each.values.to_vector<double>();
    for (std::size_t i = 1; i < values.size(); ++i) EXPECT_LT(values[i - 1], values[i]);
  }
  EXPECT_EQ(unique(zeros({0})).values.numel(), 0);
}

TEST(IsIn, NanIsAmongNothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto is_in = [](const Tensor& x, const Tensor& among) { return isin(x, among).to_vector<bool>(); };
  EXPECT_EQ(is_in(tensor<float>({nan, 1}), tensor<float>({2})), (std::vector<bool>{false, false}));
  EXPECT_EQ(is_in(tensor<float>({nan, 1}), tensor<float>({1, nan})), (std::vector<bool>{false, true}));
  EXPECT_EQ(is_in(tensor<float>({nan}), zeros({0})), (std::vector<bool>{false}));
}

TEST(TopKErrors, NameTheProblem) {
  EXPECT_NE(error_of([] { topk(ones({3}), 4); }).find("[topk] expected k between 0 and 3"), std::string::npos);
  EXPECT_NE(error_of([] { topk(ones({3}, {.dtype = kBool}), 1); }).find("bool"), std::string::npos);
  EXPECT_NE(error_of([] { topk(ones({}), 2); }).find("at most 1 for a scalar"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
