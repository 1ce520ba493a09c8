#include "lockstep/autograd/ops/index/index.h"

#include <set>

#include "lockstep/autograd/ops.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using indexing::Slice;

const Tensor kAll;  // undefined: all of a dimension

Tensor positions(std::initializer_list<std::int64_t> values, const Shape& sizes) {
  return tensor<std::int64_t>(values).view(sizes);
}
Tensor mask(std::initializer_list<std::int64_t> values, const Shape& sizes) {
  return positions(values, sizes) == 1;
}

/// x[indices] where element i of the result is element from[i] of x.
struct Case {
  const char* name;
  Shape x;
  std::vector<Tensor> indices;
  Shape out;
  std::vector<std::int64_t> from;

  friend std::ostream& operator<<(std::ostream& stream, const Case& c) { return stream << c.name; }
};

const Case kCases[] = {
    {"rows", {3, 2}, {positions({2, 0, 2}, {3})}, {3, 2}, {4, 5, 0, 1, 4, 5}},
    {"from_the_end", {3, 2}, {positions({-1, -3}, {2})}, {2, 2}, {4, 5, 0, 1}},
    {"int32", {3}, {tensor<std::int32_t>({2, 1})}, {2}, {2, 1}},
    {"scalar", {3, 2}, {positions({1}, {})}, {2}, {2, 3}},
    {"matrix_of_positions", {3}, {positions({0, 1, 2, 0}, {2, 2})}, {2, 2}, {0, 1, 2, 0}},
    {"pairs", {2, 3}, {positions({0, 1}, {2}), positions({2, 0}, {2})}, {2}, {2, 3}},
    {"broadcast", {2, 3}, {positions({0, 1}, {2, 1}), positions({2, 0}, {2})}, {2, 2}, {2, 0, 5, 3}},
    {"columns", {2, 3}, {kAll, positions({2, 0}, {2})}, {2, 2}, {2, 0, 5, 3}},
    {"side_by_side",
     {2, 2, 2},
     {kAll, positions({1, 0, 1}, {3}), positions({0, 0, 1}, {3})},
     {2, 3},
     {2, 0, 3, 6, 4, 7}},
    {"apart_go_in_front",
     {2, 3, 2},
     {positions({1, 0}, {2}), kAll, positions({0, 1}, {2})},
     {2, 3},
     {6, 8, 10, 1, 3, 5}},
    {"mask", {2, 3}, {mask({1, 0, 1, 0, 1, 0}, {2, 3})}, {3}, {0, 2, 4}},
    {"mask_of_rows", {3, 2}, {mask({1, 0, 1}, {3})}, {2, 2}, {0, 1, 4, 5}},
    {"mask_of_columns", {2, 3}, {kAll, mask({0, 1, 1}, {3})}, {2, 2}, {1, 2, 4, 5}},
    {"mask_of_none", {2, 3}, {mask({0, 0}, {2})}, {0, 3}, {}},
    {"no_positions", {2, 3}, {zeros({0}, {.dtype = kInt64})}, {0, 3}, {}},
};

class Index : public ::testing::TestWithParam<Case> {};

TEST_P(Index, ValuesAndGradients) {
  const Case& c = GetParam();
  check_op({.name = c.name,
            .inputs = [&] { return TensorList{make_leaf(c.x)}; },
            .run = [&](const TensorList& in) { return TensorList{in[0].index(c.indices)}; },
            .expected =
                [&](const TensorList& in) {
                  const Tensor out = empty(c.out, {.dtype = kFloat64});
                  for (std::size_t i = 0; i < c.from.size(); ++i)
                    out.data<double>()[i] = in[0].detach().data<double>()[c.from[i]];
                  return TensorList{out};
                }});
}

// For values of one position each; gradients pass to x where it was not written.
TEST_P(Index, PutWritesWhatIndexReads) {
  const Case& c = GetParam();
  const bool repeated = std::set<std::int64_t>(c.from.begin(), c.from.end()).size() < c.from.size();
  for (const bool accumulate : {false, true}) {
    if (repeated && !accumulate) continue;
    SCOPED_TRACE(accumulate ? "added" : "written");
    check_op({.name = c.name,
              .inputs =
                  [&] {
                    return TensorList{make_leaf(c.x), make_leaf(c.out, 2)};
                  },
              .run = [&](const TensorList& in) { return TensorList{index_put(in[0], c.indices, in[1], accumulate)}; },
              .expected =
                  [&](const TensorList& in) {
                    const Tensor out = copy_contiguous(in[0].detach());
                    const std::vector<double> values = in[1].to_vector<double>();
                    for (std::size_t i = 0; i < c.from.size(); ++i) {
                      double& element = out.data<double>()[c.from[i]];
                      element = accumulate ? element + values[i] : values[i];
                    }
                    return TensorList{out};
                  }});
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Index, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(IndexPut, OfRepeatedPositionsTheLastStays) {
  const Tensor x = zeros({3}), values = tensor<float>({1, 2, 3});
  values.set_requires_grad(true);
  const Tensor out = index_put(x, {positions({1, 0, 1}, {3})}, values);
  EXPECT_EQ(out.to_vector<double>(), (std::vector<double>{2, 3, 0}));
  out.backward(tensor<float>({1, 10, 100}));
  EXPECT_EQ(values.grad().to_vector<double>(), (std::vector<double>{0, 1, 10}));
}

TEST(IndexPut, BroadcastsAndWritesInPlace) {
  const Tensor x = arange(6).view({2, 3});
  x.index_put_({kAll, positions({0, 2}, {2})}, tensor<std::int64_t>({7, 8}));
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{7, 1, 8, 7, 4, 8}));
  x.index_put_({x == 7}, scalar_tensor(1, {.dtype = kInt64}), true);
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{8, 1, 8, 8, 4, 8}));
}

// x[x < 0] = a, of which the number of places is not needed.
TEST(IndexPut, OneValueForAMask) {
  const Tensor x = make_leaf({2, 3}), value = make_leaf({1}, 2);
  const Tensor mask = tensor<bool>({true, false, false, true, true, false}).view({2, 3});
  for (const Tensor& each : {value, value.view({}), value * 1.0}) {
    x.set_grad({});
    value.set_grad({});
    const Tensor y = x * 2;
    y.index_put_({mask}, each);
    const double v = value.item<double>();
    const std::vector<double> before = x.to_vector<double>();
    EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{v, 2 * before[1], 2 * before[2], v, v, 2 * before[5]}));
    y.backward(tensor<double>({1, 10, 100, 1000, 10000, 100000}).view({2, 3}));
    EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 20, 200, 0, 0, 200000}));
    EXPECT_EQ(value.grad().to_vector<double>(), (std::vector<double>{11001}));
  }
  const Tensor none = index_put(x.detach(), {zeros({2, 3}, {.dtype = kBool})}, value.detach());
  EXPECT_EQ(none.to_vector<double>(), x.to_vector<double>());
  EXPECT_NE(error_of([&] { index_put(x.detach(), {mask.view({3, 2})}, value.detach()); }), "");
}

TEST(IndexPut, InPlaceIsRecorded) {
  const Tensor x = make_leaf({3}), values = make_leaf({1}, 2);
  const Tensor y = x * 2;
  y.index_put_({positions({1}, {1})}, values);
  y.backward(tensor<double>({1, 10, 100}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{2, 0, 200}));
  EXPECT_EQ(values.grad().to_vector<double>(), (std::vector<double>{10}));
}

TEST(Masked, SelectAndFill) {
  const Tensor chosen = mask({1, 0, 1}, {3});
  check_op({.name = "select",
            .inputs =
                [] {
                  return TensorList{make_leaf({2, 3})};
                },
            .run = [&](const TensorList& in) { return TensorList{in[0].masked_select(chosen)}; },
            .expected =
                [](const TensorList& in) {
                  const std::vector<double> x = in[0].to_vector<double>();
                  return TensorList{tensor<double>({x[0], x[2], x[3], x[5]})};
                }});
  check_op({.name = "fill",
            .inputs =
                [] {
                  return TensorList{make_leaf({2, 3}), make_leaf({}, 2)};
                },
            .run = [&](const TensorList& in) { return TensorList{in[0].masked_fill(chosen, in[1])}; },
            .expected =
                [](const TensorList& in) {
                  const std::vector<double> x = in[0].to_vector<double>();
                  const double value = in[1].item();
                  return TensorList{tensor<double>({value, x[1], value, value, x[4], value}).view({2, 3})};
                }});
  const Tensor x = arange(3);
  EXPECT_EQ(x.masked_fill_(chosen, 9).to_vector<double>(), (std::vector<double>{9, 1, 9}));
  EXPECT_EQ(x.masked_fill(mask({1, 0}, {2, 1}), -1).to_vector<double>(), (std::vector<double>{-1, -1, -1, 9, 1, 9}));
}

TEST(Nonzero, IsARowForEachElement) {
  const Tensor x = tensor<float>({0, 2, 0, -1}).view({2, 2});
  EXPECT_EQ(nonzero(x).to_vector<double>(), (std::vector<double>{0, 1, 1, 1}));
  EXPECT_EQ(to_string(nonzero(zeros({2, 3})).sizes()), "[0, 2]");
  EXPECT_EQ(to_string(nonzero(ones({})).sizes()), "[1, 0]");
}

// Of masks of any number of dimensions, alone and beside positions.
TEST(Nonzero, IsEveryPlaceInOrder) {
  for (const Shape& sizes :
       {Shape{1}, Shape{70}, Shape{3, 600}, Shape{3, 5}, Shape{2, 3, 4}, Shape{1, 1, 9}, Shape{3, 0, 2}})
    for (const double share : {0.0, 0.4, 1.0}) {
      const Tensor x = make_input(sizes, 6, kFloat32, 0.01, 1.0), chosen = x <= share;
      std::vector<std::int64_t> expected, flat;
      const std::vector<double> values = x.to_vector<double>();
      const Shape strides = contiguous_strides(sizes);
      for (std::int64_t i = 0; i < x.numel(); ++i) {
        if (values[static_cast<std::size_t>(i)] > share) continue;
        flat.push_back(i);
        for (int d = 0; d < sizes.dim(); ++d) expected.push_back(i / strides[d] % sizes[d]);
      }
      EXPECT_EQ(nonzero(chosen).to_vector<std::int64_t>(), expected);
      EXPECT_EQ(nonzero(make_strided(chosen)).to_vector<std::int64_t>(), expected);
      EXPECT_EQ(nonzero(where(chosen, NAN, x * 0.0)).to_vector<std::int64_t>(), expected);
      const Tensor numbers = arange(x.numel()).view(sizes);
      EXPECT_EQ(numbers.index({chosen}).to_vector<std::int64_t>(), flat);
      EXPECT_EQ(numbers.masked_select(chosen).to_vector<std::int64_t>(), flat);
    }
}

TEST(Index, AMaskOfTwoDimensionsBesideOtherIndices) {
  const Tensor x = arange(2 * 3 * 4 * 5).view({2, 3, 4, 5}), pairs = mask({0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0}, {3, 4});
  const auto at = [&](std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
    return x.index({a, b, c, d}).item<std::int64_t>();
  };
  const std::int64_t rows[] = {0, 2, 2}, columns[] = {1, 0, 2}, last[] = {4, 1, -2};
  const Tensor all = x.index({Slice(), pairs}), some = x.index({Slice(), pairs, positions({4, 1, -2}, {3})}),
               apart = x.index({positions({1, 0, 1}, {3}), pairs});
  ASSERT_EQ(to_string(all.sizes()), "[2, 3, 5]");
  ASSERT_EQ(to_string(some.sizes()), "[2, 3]");
  ASSERT_EQ(to_string(apart.sizes()), "[3, 5]");
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t k = 0; k < 3; ++k) {
      for (std::int64_t d = 0; d < 5; ++d)
        EXPECT_EQ(all.index({i, k, d}).item<std::int64_t>(), at(i, rows[k], columns[k], d));
      EXPECT_EQ(some.index({i, k}).item<std::int64_t>(), at(i, rows[k], columns[k], last[k]));
      for (std::int64_t d = 0; d < 5; ++d)
        EXPECT_EQ(apart.index({k, d}).item<std::int64_t>(), at(1 - k % 2, rows[k], columns[k], d));
    }
}

TEST(IndexErrors, NameTheProblem) {
  const Tensor x = zeros({2, 3});
  const auto says = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  says(error_of([&] { x.index({positions({0, 2}, {2})}); }), "[index] index 2 at position 1 is out of range");
  says(error_of([&] { index(x, std::vector<Tensor>{kAll, kAll}); }), "[index] expected a tensor among the indices");
  says(error_of([&] { x.index({mask({1, 0, 1}, {3})}); }), "[index] a mask of shape [3] does not fit dimension 0");
  says(error_of([&] { x.index({zeros({1})}); }), "[index] expected an int64 or int32 index, found float32");
  says(error_of([&] { x.index({positions({0}, {1}), kAll, kAll}); }), "[index] too many indices");
  says(error_of([&] { index_put(x, {positions({0}, {1})}, zeros({2})); }),
       "[index_put] shapes [2] and [1, 3] do not broadcast");
  says(error_of([&] { index_put(x, {positions({0}, {1})}, zeros({}, {.dtype = kInt64})); }),
       "[index_put] expected values of dtype float32, found int64");
  says(error_of([&] { x.masked_select(x); }), "[masked_select] expected a bool mask, found float32");
  says(error_of([&] { arange(3).masked_fill(arange(3) == 1, zeros({})); }),
       "[masked_fill] a float32 value does not go into a int64 tensor");
}

// A batch without what is selected trains all the same.
TEST(EmptySource, HasAGradientOfNoElements) {
  const Tensor none = zeros({0}, {.dtype = kInt64}), flags = zeros({2}, {.dtype = kBool});
  const auto check = [](const char* name, const Shape& sizes, const std::function<Tensor(const Tensor&)>& run) {
    const Tensor source = zeros(sizes).requires_grad_();
    run(source).sum().backward();
    EXPECT_EQ(source.grad().sizes(), sizes) << name;
  };
  const Tensor x = zeros({2, 3});
  check("index_put", {0, 3}, [&](const Tensor& v) { return index_put(x, {none}, v); });
  check("index_put_", {0, 3}, [&](const Tensor& v) { return x.clone().index_put_({none}, v); });
  check("accumulating", {0, 3}, [&](const Tensor& v) { return index_put(x, {none}, v, true); });
  check("index_copy", {0, 3}, [&](const Tensor& v) { return index_copy(x, 0, none, v); });
  check("scatter", {1, 3}, [&](const Tensor& v) { return scatter(x, 0, none.view({0, 3}), v); });
  check("index_reduce", {0, 3}, [&](const Tensor& v) { return index_reduce(x, 0, none, v, "amax"); });
  check("masked_scatter", {0}, [&](const Tensor& v) { return masked_scatter(zeros({2}), flags, v); });
  check("diag", {0}, [](const Tensor& v) { return diag(v, 1); });
  check("logsumexp", {3, 0}, [](const Tensor& v) { return logsumexp(v, {1}); });
  const Tensor weight = ones({3, 2}).requires_grad_();
  embedding_bag(weight, zeros({2, 2}, {.dtype = kInt64}), {}, {.mode = BagMode::max, .padding_idx = 0})
      .sum()
      .backward();
  EXPECT_EQ(weight.grad().to_vector<float>(), std::vector<float>(6, 0.0F));
}

}  // namespace
}  // namespace lockstep::testing
