#include "lockstep/autograd/ops/gather/gather.h"

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/random.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/op_case.h"
#include "tests/support/view_testing.h"

namespace lockstep::testing {
namespace {

class Gather : public ::testing::TestWithParam<ViewCase> {};
TEST_P(Gather, ValuesAndGradients) {
  check_view_case(GetParam());
}

Tensor at(std::initializer_list<std::int64_t> values, const Shape& sizes) {
  return tensor<std::int64_t>(values).as_strided(sizes, contiguous_strides(sizes), 0);
}

const ViewCase kCases[] = {
    {"Rows",
     {3, 2},
     [](const Tensor& x) {
       return gather(x, 0, at({2, 0}, {1, 2}));
     },
     {1, 2},
     {4, 1},
     false},
    {"Columns",
     {2, 3},
     [](const Tensor& x) {
       return x.gather(1, at({0, 2}, {2, 1}));
     },
     {2, 1},
     {0, 5},
     false},
    {"Longer",
     {1, 2},
     [](const Tensor& x) {
       return x.gather(-1, at({1, 0, 1}, {1, 3}));
     },
     {1, 3},
     {1, 0, 1},
     false},
    {"FewerRows",
     {3, 2},
     [](const Tensor& x) {
       return x.gather(1, at({1, 1}, {1, 2}));
     },
     {1, 2},
     {1, 1},
     false},
    {"Middle",
     {2, 2, 2},
     [](const Tensor& x) {
       return x.gather(1, at({1, 0, 0, 1}, {2, 1, 2}));
     },
     {2, 1, 2},
     {2, 1, 4, 7},
     false},
    {"Vector",
     {3},
     [](const Tensor& x) {
       return x.gather(0, at({2, 2}, {2}));
     },
     {2},
     {2, 2},
     false},
    {"None", {3}, [](const Tensor& x) { return x.gather(0, at({}, {0})); }, {0}, {}, false},
};
INSTANTIATE_TEST_SUITE_P(Ops, Gather, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(GatherOp, ManyRows) {
  const Tensor index = cast_values(make_input({7, 40, 300}, 2, kFloat64, 0, 11), kInt64);
  check_threads({.name = "",
                 .inputs =
                     [] {
                       return TensorList{make_leaf({7, 11, 300})};
                     },
                 .run = [=](const TensorList& in) { return TensorList{in[0].gather(1, index)}; }});

  const Tensor x = make_leaf({7, 11, 300}, 1, kFloat32), weight = make_input({7, 40, 300}, 3, kFloat32);
  x.gather(1, index).backward(weight);
  std::vector<float> expected(7 * 11 * 300, 0.0f);
  const std::vector<std::int64_t> rows = index.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < rows.size(); ++i)
    expected[(i / (40 * 300) * 11 + static_cast<std::size_t>(rows[i])) * 300 + i % 300] += weight.data<float>()[i];
  EXPECT_EQ(x.grad().to_vector<float>(), expected);
}

TEST(GatherOp, HalfGradientsAreSummedInFloat) {
  const Tensor x = make_leaf({2}, 1, kFloat16);
  x.gather(0, zeros({3000}, {.dtype = kInt64})).backward(ones({3000}, {.dtype = kFloat16}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{3000, 0}));
}

TEST(GatherOp, AScalarCountsAsOneElement) {
  const Tensor x = make_leaf({});
  const Tensor out = x.gather(0, at({0, 0, 0}, {3}));
  EXPECT_EQ(out.to_vector<double>(), std::vector<double>(3, x.item()));
  out.backward(tensor<double>({1, 10, 100}));
  EXPECT_EQ(x.grad().item(), 111.0);
  EXPECT_EQ(make_input({3}).gather(0, at({2}, {})).dim(), 0);
  EXPECT_EQ(x.gather(-1, zeros({}, {.dtype = kUInt8})).item(), x.item());
}

TEST(GatherOp, Errors) {
  const Tensor x = zeros({2, 3});
  EXPECT_EQ(error_of([&] {
              x.gather(1, at({0, 1, 2, 3}, {2, 2}));
            }),
            "[gather] index 3 at position 3 is out of range; expected a value in [0, 3)");
  EXPECT_EQ(error_of([&] {
              x.gather(0, at({0, 1}, {2}));
            }),
            "[gather] index shape [2] and tensor shape [2, 3] differ in dimensions");
  EXPECT_EQ(error_of([&] {
              x.gather(1, at({0, 0, 0}, {3, 1}));
            }),
            "[gather] index shape [3, 1] is larger than tensor shape [2, 3] at dimension 0; only dimension 1 may be");
  EXPECT_EQ(error_of([&] {
              x.gather(0, zeros({1, 1}));
            }),
            "[gather] expected an int64 or int32 index, found float32; convert it with to(kInt64)");
  EXPECT_NE(error_of([&] { zeros({}).gather(1, zeros({}, {.dtype = kInt64})); }).find("[gather]"), std::string::npos);
}

// An index that was expanded is read where it lies, and one that names slices goes by rows; neither may be seen.
TEST(Gather, AnExpandedIndexGivesWhatItsCopyDoes) {
  struct Sizes {
    Shape x, index, whole;
    int dim;
  };
  const Sizes cases[] = {{{9, 70}, {40, 1}, {40, 70}, 0},          {{3, 9, 33}, {1, 40, 1}, {3, 40, 33}, 1},
                         {{70, 9}, {1, 40}, {70, 40}, 1},          {{3, 9, 4}, {3, 40, 1}, {3, 40, 4}, 1},
                         {{4, 70, 9}, {4, 1, 40}, {4, 70, 40}, 2}, {{9, 70}, {40, 1}, {40, 65}, 0}};
  manual_seed(1);
  for (const Sizes& sizes : cases) {
    const Shape whole = sizes.whole;
    const int dim = sizes.dim;
    const Tensor x = randn(sizes.x), source = randn(whole), weight = randn(whole), at_x = randn(sizes.x);
    const Tensor expanded = randint(0, 9, sizes.index, {.dtype = kInt64}).expand(whole), copied = expanded.clone();
    const auto compare = [&](const auto& compute, const Tensor& like) {
      TensorList results[2];
      for (const bool copy : {false, true}) {
        const Tensor a = x.clone(), b = source.clone();
        a.set_requires_grad(true);
        b.set_requires_grad(true);
        const Tensor out = compute(a, copy ? copied : expanded, b);
        (out * like).sum().backward();
        results[copy] = {out, a.grad(), b.grad()};
      }
      for (std::size_t i = 0; i < 3; ++i) {
        ASSERT_EQ(results[0][i].defined(), results[1][i].defined());
        if (!results[0][i].defined()) continue;
        EXPECT_TRUE(equal(results[0][i], results[1][i])) << to_string(whole) << " " << i;
      }
    };
    const int before = num_threads();
    for (const int threads : {1, 3}) {
      set_num_threads(threads);
      compare([dim](const Tensor& a, const Tensor& index, const Tensor&) { return gather(a, dim, index); }, weight);
      compare([dim](const Tensor& a, const Tensor& index, const Tensor& b) { return scatter(a, dim, index, b); }, at_x);
      compare([dim](const Tensor& a, const Tensor& index, const Tensor& b) { return scatter_add(a, dim, index, b); },
              at_x);
      for (const char* reduce : {"mean", "amax", "amin", "prod"})
        compare([dim, reduce](const Tensor& a, const Tensor& index,
                              const Tensor& b) { return scatter_reduce(a, dim, index, b, reduce); },
                at_x);
    }
    set_num_threads(before);
  }
}

TEST(Gather, AnExpandedIndexOutOfRangeIsRefused) {
  const Tensor x = zeros({4, 3}), index = at({0, 4}, {2, 1}).expand({2, 3});
  EXPECT_NE(error_of([&] { gather(x, 0, index); }).find("[gather] index 4 at position 1 is out of range"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              scatter_add(x, 0, index, ones({2, 3}));
            }).find("[scatter_add] index 4 at position 1"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
