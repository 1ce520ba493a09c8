#include "lockstep/autograd/ops/embedding/embedding.h"

#include <algorithm>
#include <limits>

#include "lockstep/autograd/ops/binary/binary.h"
#include "tests/support/op_case.h"
#include "tests/support/view_testing.h"

namespace lockstep::testing {
namespace {

class Embedding : public ::testing::TestWithParam<ViewCase> {};
TEST_P(Embedding, ValuesAndGradients) {
  check_view_case(GetParam());
}

const Tensor kRows = tensor<std::int64_t>({1, 2, 1, 0});
const ViewCase kCases[] = {
    {"Vector", {3, 2}, [](const Tensor& w) { return embedding(w, kRows); }, {4, 2}, {2, 3, 4, 5, 2, 3, 0, 1}, false},
    {"Matrix",
     {3, 1},
     [](const Tensor& w) {
       return embedding(w, kRows.as_strided({2, 2}, {1, 2}, 0));
     },
     {2, 2, 1},
     {1, 1, 2, 0},
     false},
    {"Scalar", {3, 2}, [](const Tensor& w) { return embedding(w, kRows.as_strided({}, {}, 1)); }, {2}, {4, 5}, false},
    {"Int32", {3, 2}, [](const Tensor& w) { return embedding(w, tensor<std::int32_t>({2})); }, {1, 2}, {4, 5}, false},
    {"None",
     {3, 2},
     [](const Tensor& w) {
       return embedding(w, zeros({0, 2}, {.dtype = kInt64}));
     },
     {0, 2, 2},
     {},
     false},
};
INSTANTIATE_TEST_SUITE_P(Ops, Embedding, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(EmbeddingOp, PaddingRowGetsNoGradient) {
  for (std::int64_t padding : {1, -2}) {
    const Tensor weight = make_leaf({3, 2});
    const Tensor out = embedding(weight, kRows, padding);
    expect_close(out, embedding(weight, kRows), 0, 0);
    out.backward(ones({4, 2}, {.dtype = kFloat64}));
    EXPECT_EQ(weight.grad().to_vector<double>(), (std::vector<double>{1, 1, 0, 0, 1, 1}));
  }
}

// F.embedding(input, weight) and torch.embedding(weight, indices).
TEST(EmbeddingOp, EitherOrderIsUnderstood) {
  const Tensor weight = make_leaf({3, 2});
  expect_close(embedding(kRows, weight), embedding(weight, kRows), 0, 0);
  expect_close(embedding_bag(kRows.view({2, 2}), weight), embedding_bag(weight, kRows.view({2, 2})), 0, 0);
  embedding(kRows, weight, 1).backward(ones({4, 2}, {.dtype = kFloat64}));
  EXPECT_EQ(weight.grad().to_vector<double>(), (std::vector<double>{1, 1, 0, 0, 1, 1}));
}

TEST(EmbeddingOp, GradientsByFrequency) {
  const Tensor weight = make_leaf({3, 2});
  embedding(weight, kRows, EmbeddingLookup{.scale_grad_by_freq = true})
      .backward(tensor<double>({1, 2, 3, 4, 5, 6, 7, 8}).view({4, 2}));
  EXPECT_EQ(weight.grad().to_vector<double>(), (std::vector<double>{7, 8, 3, 4, 3, 4}));
}

TEST(EmbeddingOp, RowsAreScaledDownToANorm) {
  for (const double norm : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    const Tensor weight = tensor<double>({3, 4, 0.1, 0.2, 30, 40}).view({3, 2});
    const Tensor out =
        embedding(weight, tensor<std::int64_t>({0, 1, 0}), EmbeddingLookup{.max_norm = 1.0, .norm_type = norm});
    const double length = norm == 1.0 ? 7.0 : norm == 2.0 ? 5.0 : 4.0;
    expect_close(weight, tensor<double>({3 / length, 4 / length, 0.1, 0.2, 30, 40}).view({3, 2}), 1e-6);
    expect_close(out, weight.index_select(0, tensor<std::int64_t>({0, 1, 0})), 0, 0);
  }
}

TEST(EmbeddingOp, BitsDoNotDependOnThreads) {
  const Tensor index = cast_values(make_input({30, 100}, 2, kFloat64, 0, 50), kInt64);
  check_threads({.name = "",
                 .inputs =
                     [] {
                       return TensorList{make_leaf({50, 24})};
                     },
                 .run = [=](const TensorList& in) { return TensorList{embedding(in[0], index)}; }});
}

// As by looking the rows up and adding them to zeros, one by one.
TEST(EmbeddingBag, SumsAndMeansInOrder) {
  struct Case {
    Tensor index, offsets;
    EmbeddingBagLookup options;
  };
  const Tensor positions = cast_values(make_input({30}, 2, kFloat64, 0, 7), kInt64);
  const Tensor offsets = tensor<std::int64_t>({0, 0, 4, 4, 29}), all = tensor<std::int32_t>({0, 11, 30});
  const Case cases[] = {{positions.view({6, 5}), {}, {.mode = BagMode::sum}},
                        {positions.view({6, 5}), {}, {.padding_idx = -3}},
                        {positions.slice(0, 0, 5).view({1, 5}), {}, {}},
                        {positions, offsets, {}},
                        {positions, offsets, {.mode = BagMode::sum, .padding_idx = 2}},
                        {positions, all, {.mode = BagMode::sum, .include_last_offset = true}},
                        {zeros({0, 4}, {.dtype = kInt64}), {}, {.mode = BagMode::sum}},
                        {zeros({3, 0}, {.dtype = kInt64}), {}, {}}};
  for (const Case& c : cases)
    check_op(
        {.name = "",
         .inputs =
             [] {
               return TensorList{make_leaf({7, 19})};
             },
         .run = [&](const TensorList& in) { return TensorList{embedding_bag(in[0], c.index, c.offsets, c.options)}; },
         .expected =
             [&](const TensorList& in) {
               const std::int64_t n = c.index.numel(), width = 19;
               std::vector<std::int64_t> begins;
               if (c.offsets.defined()) begins = c.offsets.to_vector<std::int64_t>();
               for (std::int64_t b = 0; c.index.dim() == 2 && b < c.index.size(0); ++b)
                 begins.push_back(b * c.index.size(1));
               if (!c.options.include_last_offset) begins.push_back(n);
               const auto bags = static_cast<std::int64_t>(begins.size()) - 1;
               const Tensor out = zeros({bags, width}, {.dtype = kFloat64});
               for (std::int64_t b = 0; b < bags; ++b) {
                 double* const row = out.data<double>() + b * width;
                 std::int64_t taken = 0;
                 for (std::int64_t i = begins[static_cast<std::size_t>(b)]; i < begins[static_cast<std::size_t>(b + 1)];
                      ++i) {
                   const std::int64_t at = c.index.to_vector<std::int64_t>()[static_cast<std::size_t>(i)];
                   if (c.options.padding_idx && (at - *c.options.padding_idx) % 7 == 0) continue;
                   ++taken;
                   for (std::int64_t j = 0; j < width; ++j)
                     row[j] += in[0].detach().contiguous().data<double>()[at * width + j];
                 }
                 for (std::int64_t j = 0; c.options.mode == BagMode::mean && j < width; ++j)
                   row[j] /= static_cast<double>(std::max<std::int64_t>(taken, 1));
               }
               return TensorList{out};
             }});
}

TEST(EmbeddingBag, BitsAreThoseOfALookupAndDoNotDependOnThreads) {
  const Tensor index = cast_values(make_input({400, 30}, 2, kFloat64, 0, 50), kInt64);
  const Tensor weight = make_input({50, 133}, 1, kFloat32), ones_of_all = ones({400, 30});
  const EmbeddingBagLookup sum{.mode = BagMode::sum};
  EXPECT_TRUE(equal(embedding_bag(weight, index, {}, sum), embedding_bag(weight, index, {}, sum, ones_of_all)));
  check_threads({.name = "",
                 .inputs =
                     [] {
                       return TensorList{make_leaf({50, 133})};
                     },
                 .run = [=](const TensorList& in) { return TensorList{embedding_bag(in[0], index)}; }});
}

TEST(EmbeddingBag, ErrorsOfTheIndex) {
  EXPECT_EQ(error_of([] {
              embedding_bag(zeros({3, 2}), tensor<std::int64_t>({0, 1, -1}).view({1, 3}));
            }),
            "[embedding] index -1 at position 2 is out of range; expected a value in [0, 3)");
}

TEST(EmbeddingOp, Errors) {
  const Tensor weight = zeros({3, 2});
  EXPECT_EQ(error_of([&] {
              embedding(weight, tensor<std::int64_t>({0, 1, 7}));
            }),
            "[embedding] index 7 at position 2 is out of range; expected a value in [0, 3)");
  EXPECT_EQ(error_of([&] { embedding(weight, zeros({2})); }),
            "[embedding] expected an int64 or int32 index, found float32; convert it with to(kInt64)");
  EXPECT_EQ(error_of([&] { embedding(zeros({3}), kRows); }),
            "[embedding] expected a weight of shape [rows, width], found [3]");
  EXPECT_EQ(error_of([&] { embedding(weight, kRows, 3); }),
            "[embedding] padding_idx 3 is out of range; expected -3 to 2 for 3 rows");
}

}  // namespace
}  // namespace lockstep::testing
