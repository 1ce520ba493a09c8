#include "tests/support/program_cases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/allocator.h"
#include "lockstep/core/error.h"
#include "lockstep/core/random.h"

namespace lockstep::testing {
namespace {

class ProgramOperations : public ::testing::TestWithParam<OpCase> {};
TEST_P(ProgramOperations, ValuesAndGradients) {
  check_op(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, ProgramOperations, ::testing::ValuesIn(program_cases::all()),
                         [](const auto& i) { return i.param.name; });

TEST(ProgramOperations, ALayerIsItsSteps) {
  manual_seed(1);
  const Tensor x = randn({4, 2, 3});
  const CellWeights weights{randn({20, 3}), randn({20, 5}), randn({20}), randn({20})};
  const RecurrentResult whole = recurrent(RecurrentCell::lstm, x, {}, weights);
  CellState state;
  for (std::int64_t t = 0; t < 4; ++t) {
    state = recurrent(RecurrentCell::lstm, x.narrow(0, t, 1), state, weights).state;
    expect_close(whole.output[t], state.h, 1e-6, 1e-6);
  }
  expect_close(whole.state.c, state.c, 1e-6, 1e-6);
}

TEST(ProgramOperations, ErrorsNameTheProblem) {
  const CellWeights weights{zeros({20, 3}), zeros({20, 5}), {}, {}};
  const auto expect = [](const std::string& error, const char* part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  expect(error_of([&] {
           recurrent(RecurrentCell::lstm, zeros({4, 2, 7}), {}, weights);
         }),
         "expected weight_ih of sizes [20, 7], found [20, 3]");
  expect(error_of([&] { recurrent(RecurrentCell::lstm, zeros({2, 3}), {}, weights); }), "[steps, batch, width]");
  expect(error_of([] { conv_transpose2d(zeros({1, 3, 4, 4}), zeros({2, 3, 3, 3})); }), "3 input channels");
  expect(error_of([] { interpolate(zeros({1, 1, 2, 2}), {}); }), "either a size or a positive scale_factor");
  expect(error_of([] { einsum("ij,jk->ik", {zeros({2, 3})}); }), "is for 2 operands, found 1");
  expect(error_of([] { einsum("ij->iz", {zeros({2, 3})}); }), "'z' in the result");
  expect(error_of([] { pad(zeros({3}), {1, 2, 3}); }), "found 3 numbers");
  expect(error_of([] { one_hot(tensor<std::int64_t>({5}), 3); }), "expected indices in [0, 3), found 5");
  expect(error_of([] { one_hot(tensor<std::int64_t>({-1})); }), "expected class indices of 0 or more, found -1");
  expect(error_of([] { bernoulli(full({2}, 1.5)); }), "expected probabilities in [0, 1], found 1.5");
  expect(error_of([] { bernoulli(tensor({0.5f, NAN})); }), "expected probabilities in [0, 1], found nan");
  expect(error_of([] { binary_cross_entropy(full({2}, 1.5), ones({2})); }), "probabilities in [0, 1]");
  expect(error_of([] { (void)~zeros({2}); }), "expected bool or integer tensors, found float32");
}

// Images of one place, which are a product, against the first place of images of two.
TEST(ProgramOperations, TransposedConvolutionsOfOnePlace) {
  for (const bool has_bias : {false, true})
    for (const std::int64_t stride : {1, 3}) {
      const Tensor weight = make_leaf({3, 4, 5, 2}, 2), bias = make_leaf({4}, 3), factors = make_input({2, 4, 5, 2}, 4);
      const auto run = [&](bool product) {
        const Tensor x = make_leaf({2, 3, 1, 1});
        weight.set_grad({});
        bias.set_grad({});
        const Tensor b = has_bias ? bias : Tensor();
        const Tensor two = cat({x, zeros({2, 3, 1, 1}, options_of(x))}, 2);
        const Tensor y = product ? conv_transpose2d(x, weight, b, {.stride = stride})
                                 : conv_transpose2d(two, weight, b, {.stride = 5}).narrow(2, 0, 5);
        EXPECT_EQ(y.sizes(), (Shape{2, 4, 5, 2}));
        (y * factors).sum().backward();
        return TensorList{y.detach(), x.grad(), weight.grad(), has_bias ? bias.grad() : x.grad()};
      };
      const TensorList found = run(true), expected = run(false);
      for (std::size_t i = 0; i < found.size(); ++i) expect_close(found[i], expected[i], 1e-12, 1e-12);
    }
}

TEST(ProgramOperations, SmallOnes) {
  const Tensor x = arange(6).to(kFloat64).view({2, 3});
  EXPECT_TRUE(equal(lerp(x, x + 2.0, 0.25), x + 0.5));
  EXPECT_TRUE(equal(tile(x, {2, 1}), cat({x, x})));
  EXPECT_TRUE(equal(repeat_interleave(x, 2, 1), stack({x, x}, 2).flatten(1)));
  EXPECT_TRUE(equal(meshgrid({arange(2), arange(3)})[1], arange(3).expand({2, 3})));
  EXPECT_FALSE(allclose(x, x + 1e-3));
  EXPECT_TRUE(allclose(x, x + 1e-9));
  EXPECT_TRUE((~(x < 3.0) | (x == 0.0)).sum().item<std::int64_t>() == 4);
  EXPECT_EQ(adaptive_max_pool2d(x.view({1, 2, 3}), {1, 2}).to_vector<double>(), (std::vector<double>{4, 5}));
  // Windows that overlap: rows 0-1, 1-3, 3-4 and columns 0-2, 2-5, 5-7 of 5 x 8.
  const Tensor image = (arange(40) * 7).remainder(40).to(kFloat64).view({1, 1, 5, 8});
  const Tensor pooled = adaptive_max_pool2d(image, {3, 3});
  const std::int64_t rows[][2] = {{0, 2}, {1, 4}, {3, 5}}, columns[][2] = {{0, 3}, {2, 6}, {5, 8}};
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 3; ++j)
      EXPECT_EQ(pooled[0][0][i][j].item<double>(),
                max(image.slice(2, rows[i][0], rows[i][1]).slice(3, columns[j][0], columns[j][1])).item<double>());
  const Tensor weights = x.clone();
  EXPECT_EQ(weights.clamp_(1.0, 3.0).to_vector<double>(), (std::vector<double>{1, 1, 2, 3, 3, 3}));
}

using Doubles = std::vector<double>;

TEST(ProgramOperations, RowsAreResizedLikeImagesOfHeightOne) {
  manual_seed(1);
  const Tensor x = randn({2, 3, 5});
  for (const bool corners : {false, true}) {
    const Tensor rows = interpolate(x, {.size = 8, .mode = InterpolateMode::linear, .align_corners = corners});
    const Tensor image =
        interpolate(x.unsqueeze(-2), {.size = {1, 8}, .mode = InterpolateMode::bilinear, .align_corners = corners});
    expect_close(rows, image.squeeze(-2), 1e-6, 1e-6);
  }
  EXPECT_TRUE(equal(interpolate(x, {.size = 8}), interpolate(x.unsqueeze(-2), {.size = {1, 8}}).squeeze(-2)));
  const Tensor line = tensor<double>({0, 4, 8, 2}).view({1, 1, 4}).to(kFloat32);  // a scale of 1.3: 5 places
  EXPECT_EQ(interpolate(line, {.scale_factor = 1.3}).to_vector<double>(), (Doubles{0, 0, 4, 8, 2}));
  // The factor counts for rows though the size is the same; for images PyTorch copies those.
  const Tensor pair = tensor<double>({3, 5});
  EXPECT_EQ(interpolate(pair.view({1, 1, 2}), {.scale_factor = 1.3}).to_vector<double>(), (Doubles{3, 3}));
  EXPECT_EQ(interpolate(pair.view({1, 1, 1, 2}), {.scale_factor = 1.3}).to_vector<double>(), (Doubles{3, 5}));
  EXPECT_NEAR(interpolate(line, {.scale_factor = 1.3, .mode = InterpolateMode::linear}).to_vector<double>()[4],
              8 - 6 * (4.5 / 1.3 - 0.5 - 2), 1e-5);
  EXPECT_NEAR(interpolate(line, {.scale_factor = 1.3, .mode = InterpolateMode::linear, .recompute_scale_factor = true})
                  .to_vector<double>()[3],
              8 - 6 * (3.5 * 0.8 - 0.5 - 2), 1e-5);
  EXPECT_NE(error_of([&] { interpolate(x, {.size = 8, .mode = InterpolateMode::bilinear}); }).find("rows [n, c, w]"),
            std::string::npos);
}

TEST(ProgramOperations, SeveralDimensionsMoveAtOnce) {
  const Tensor x = arange(24).view({2, 3, 4});
  EXPECT_TRUE(equal(movedim(x, {0, 2}, {-1, 0}), x.permute({2, 1, 0})));
  EXPECT_TRUE(equal(movedim(x, 0, 2), x.permute({1, 2, 0})));
  EXPECT_NE(error_of([&] { movedim(x, {0, 0}, {1, 2}); }).find("is there twice"), std::string::npos);
  EXPECT_NE(error_of([&] { movedim(x, {0, 1}, {2}); }).find("as many places as dimensions"), std::string::npos);
}

TEST(ProgramOperations, PaddingsThatCutOff) {
  const Tensor x = tensor<double>({0, 1, 2, 3});
  EXPECT_EQ(pad(x, {-1, 2}, PadMode::reflect).to_vector<double>(), (Doubles{1, 2, 3, 2, 1}));
  EXPECT_EQ(pad(x, {2, -3}, PadMode::replicate).to_vector<double>(), (Doubles{0, 0, 0}));
  EXPECT_EQ(pad(x, {-1, 2}, PadMode::circular).to_vector<double>(), (Doubles{1, 2, 3, 1, 2}));
  EXPECT_NE(error_of([&] {
              pad(x, {-3, -2}, PadMode::reflect);
            }).find("cut off more than there is"),
            std::string::npos);
}

TEST(ProgramOperations, ConstantPaddingsOfShortAndOfLongRows) {
  for (const std::int64_t width : {1, 2, 100, 300}) {
    const Tensor x = arange(6 * width, {.dtype = kFloat32}).view({2, 3, width}),
                 out = pad(x, {0, 3, 2, -1}, PadMode::constant, 7.0);
    const Tensor expected = full({2, 4, width + 3}, 7.0);
    expected.narrow(1, 2, 2).narrow(2, 0, width).copy_(x.narrow(1, 0, 2));
    EXPECT_TRUE(equal(out, expected)) << width;
    const Tensor one_side = full({2, 3, width + 1}, -1.0);
    one_side.narrow(2, 1, width).copy_(x);
    EXPECT_TRUE(equal(pad(x, {1, 0}, PadMode::constant, -1.0), one_side)) << width;
    EXPECT_TRUE(equal(pad(x, {-width, 2}, PadMode::constant, 1.0), ones({2, 3, 2}))) << width;
  }
}

// The gradient of an element is how often it is seen, in each dimension.
TEST(ProgramOperations, GradientsOfPaddingsThatCutOff) {
  const auto seen = [](const std::vector<std::int64_t>& padding, PadMode mode) {
    const Tensor x = arange(12, {.dtype = kFloat64}).view({3, 4}).transpose(0, 1).detach().set_requires_grad(true);
    pad(x, padding, mode).sum().backward();
    return x.grad().contiguous().to_vector<double>();
  };
  EXPECT_EQ(seen({1, 0, -1, 2}, PadMode::reflect), (Doubles{0, 0, 0, 2, 4, 2, 2, 4, 2, 1, 2, 1}));
  EXPECT_EQ(seen({-1, 1, 0, 0}, PadMode::replicate), (Doubles{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(seen({0, 0, -1, 1}, PadMode::circular), (Doubles{0, 0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(seen({-1, -2}, PadMode::reflect), Doubles(12, 0.0));
}

TEST(ProgramOperations, RemaindersAreExact) {
  const auto of = [](double a, double b, DType dtype) {
    return remainder(full({1}, a, {.dtype = dtype}), full({1}, b, {.dtype = dtype})).to_vector<double>()[0];
  };
  EXPECT_EQ(of(1e300, 7.0, kFloat64), std::fmod(1e300, 7.0));
  EXPECT_EQ(of(1e30, -7.0, kFloat32), static_cast<float>(std::fmod(1e30f, 7.0f)) - 7.0f);
  EXPECT_EQ(of(-7, 3, kInt64), 2);
  EXPECT_EQ(of(7, -3, kInt32), -2);
  EXPECT_TRUE(std::isnan(of(1, 0, kFloat32)));
  EXPECT_NE(error_of([&] { of(1, 0, kInt64); }).find("[remainder] integers are divided by 0"), std::string::npos);
}

TEST(ProgramOperations, BoolTensorsAndScalarsAreAddedInto) {
  const Tensor none = full({3}, 0, {.dtype = kBool}), one = full({1}, 1, {.dtype = kBool});
  EXPECT_EQ(index_add(none, 0, tensor<std::int64_t>({1}), one).to_vector<double>(), (Doubles{0, 1, 0}));
  EXPECT_EQ(scatter_add(none, 0, tensor<std::int64_t>({2}), one).to_vector<double>(), (Doubles{0, 0, 1}));
  EXPECT_EQ(index_add(ones({}), 0, tensor<std::int64_t>({0}), ones({})).item<double>(), 2.0);
}

TEST(ProgramOperations, IntegersAreAddedExactly) {
  constexpr std::int64_t kBig = (std::int64_t{1} << 53) + 1, kLargest = INT64_MAX;  // no double is either
  const Tensor index = tensor<std::int64_t>({1, 1, 0}), terms = tensor<std::int64_t>({kBig, 2, kLargest});
  const std::vector<std::int64_t> expected{kLargest, kBig + 2};
  EXPECT_EQ(scatter_add(zeros({2}, kLong), 0, index, terms).to_vector<std::int64_t>(), expected);
  EXPECT_EQ(index_add(zeros({2}, kLong), 0, index, terms).to_vector<std::int64_t>(), expected);
  EXPECT_EQ(bincount(index).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 2}));
  const Tensor wide = terms.unsqueeze(1).repeat({1, 9});  // rows, added by another loop
  EXPECT_EQ(index_add(zeros({2, 9}, kLong), 0, index, wide).select(1, 8).to_vector<std::int64_t>(), expected);
  // Sums out of range wrap around, as PyTorch's.
  EXPECT_EQ(scatter_add(ones({1}, kLong), 0, tensor<std::int64_t>({0}), tensor<std::int64_t>({kLargest}))
                .item<std::int64_t>(),
            INT64_MIN);
}

TEST(ProgramOperations, NothingPassesThroughAZeroFactor) {
  const double kInfinity = std::numeric_limits<double>::infinity();
  const Tensor x = tensor<double>({2, 0, 3, kInfinity, 0, std::nan("")});
  x.set_requires_grad(true);
  cumprod(x, 0).backward(tensor<double>({1, 1, 1, 0, 1, 1}));
  const std::vector<double> slopes = x.grad().to_vector<double>();
  EXPECT_EQ(slopes[0], 1.0);           // of the first product alone
  EXPECT_TRUE(std::isnan(slopes[1]));  // infinity times 0
  EXPECT_EQ(Doubles(slopes.begin() + 2, slopes.end()), (Doubles{0, 0, 0, 0}));
}

TEST(ProgramOperations, ErrorsNameWhatWasExpected) {
  const Tensor x = zeros({2, 3}), at = zeros({2, 3}, {.dtype = kInt64});
  const auto says = [](auto&& body, const std::string& text) {
    const std::string error = error_of(body);
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  says([&] { scatter_reduce(x, 0, at, x, "max"); }, "[scatter_reduce] expected \"sum\", \"prod\", \"mean\"");
  says([&] { scatter(x, 0, at, x, "sum"); }, "[scatter] expected \"add\" or \"multiply\", found \"sum\"");
  says([&] { scatter_reduce(x, 0, at + 2, x, "amax"); }, "[scatter_reduce] index 2 at position 0 is out of range");
  says([&] { index_reduce(x, 1, arange(2), x, "mean"); }, "[index_reduce] expected a source of shape [2, 2]");
  says([&] { index_fill(x, 0, arange(3), 1.0); }, "out of range");
  says([&] { kthvalue(x, 4, 1); }, "[kthvalue] expected k between 1 and 3");
  says([&] { quantile(x, 1.5); }, "[quantile] expected a tensor and a fraction in [0, 1], found 1.5");
  const Tensor wide = x.view({1, 1, 1, 1, 1, 1, 2, 3});
  says(
      [&] {
        wide.repeat({1, 1, 1, 1, 1, 1, 1, 2});
      },
      "[repeat] expected at most 7 dimensions, found [1, 1, 1, 1, 1, ");
  says([&] { tile(wide, {2}); }, "[tile] expected at most 7 dimensions, found [1, 1, 1, 1, 1, 1, 1, 2]");
  says([&] { repeat_interleave(wide, 2, 0); },
       "[repeat_interleave] expected at most 7 dimensions, found [1, 1, 1, 1, ");
  says([&] { searchsorted(x, zeros({3, 3})); }, "[searchsorted] expected boundaries [n], or with the leading sizes");
  says([&] { repeat_interleave(x, arange(2) - 1, 0); }, "[repeat_interleave] expected numbers of at least 0, found -1");
  says([&] { masked_scatter(x, x == 0.0, zeros({4})); }, "the mask names 6 elements, and the source has 4");
  says([&] { embedding_bag(x, arange(2), tensor<std::int64_t>({1})); }, "expected a first offset of 0, found 1");
  says([&] { conv3d(zeros({1, 1, 2, 4, 4}), zeros({1, 1, 3, 1, 1})); }, "[conv3d] a kernel of depth 3 does not fit");
  says([&] { conv3d(zeros({1, 5, 4, 4, 4}), zeros({1, 2, 3, 1, 1})); }, "[conv3d] expected x of 2 channels");
  says(
      [&] {
        conv1d(zeros({2, 5, 9}), zeros({4, 3, 3}));
      },
      "[conv1d] expected x of 3 channels for a weight of [4, 3, 3]");
  says([&] { conv1d(zeros({2, 3, 5}), zeros({4, 3, 7})); }, "[conv1d] a kernel that reaches over 7 steps does not fit");
  says([&] { conv_transpose1d(zeros({2, 5, 9}), zeros({3, 4, 3})); }, "[conv_transpose1d] expected x of 3 channels");
  says([&] { max_pool3d(x, 2); }, "[max_pool3d] expected x [n, c, depth, height, width]");
  says([&] { cross(x, zeros({2, 2})); }, "[cross] expected a dimension of size 3");
  says([&] { tensordot(x, x, Shape{1}, Shape{0}); }, "[tensordot] dimension 1 of [2, 3] and 0 of [2, 3]");
  says([&] { meshgrid({arange(2)}, "yx"); }, "[meshgrid] expected indexing \"ij\" or \"xy\", found \"yx\"");
  says([&] { windows(x, 1, 4, 1); }, "[unfold] expected windows of 0 to 3 elements");
}

TEST(ProgramOperations, ScatteredExtremesAndProductsHaveTheSameBitsOnAnyNumberOfThreads) {
  const Tensor index = cast_values(make_input({500, 70}, 2, kFloat64, 0, 40), kInt64);
  for (const char* reduce : {"amax", "prod", "mean"})
    check_threads(
        {.name = reduce,
         .inputs =
             [] {
               return TensorList{make_leaf({40, 70}), make_leaf({500, 70}, 3, kFloat64, 0.9, 1.1)};
             },
         .run =
             [=](const TensorList& in) { return TensorList{scatter_reduce(in[0], 0, index, in[1], reduce, false)}; }});
}

// Of many rows by a product, which never holds the differences.
TEST(ProgramOperations, DistancesOfManyRows) {
  const Tensor a = make_leaf({2, 40, 7}), b = make_leaf({1, 30, 7}, 2);
  const Tensor direct = sqrt(sum(square(a.unsqueeze(-2) - b.unsqueeze(-3)), {-1}));
  const Tensor weights = make_input({2, 40, 30}, 3);
  expect_close(cdist(a, b), direct, 1e-10, 1e-10);
  (direct * weights).sum().backward();
  const Tensor grad_a = a.grad(), grad_b = b.grad();
  a.set_grad({});
  b.set_grad({});
  (cdist(a, b) * weights).sum().backward();
  expect_close(a.grad(), grad_a, 1e-9, 1e-9);
  expect_close(b.grad(), grad_b, 1e-9, 1e-9);
  const Tensor same = zeros({40, 3});
  same.set_requires_grad(true);
  cdist(same, same).sum().backward();
  EXPECT_TRUE(equal(same.grad(), zeros({40, 3})));
  EXPECT_TRUE(isnan(cdist(full({40, 3}, NAN), zeros({40, 3}))).all().item<bool>());
  {
    const AutocastGuard half(kBFloat16, kCPU);  // distances are among what it computes in full
    expect_close(cdist(a.to(kFloat32), b.to(kFloat32)).to(kFloat64), direct, 1e-4, 1e-4);
  }
  // Of halves the distances alone are rounded, once.
  const Tensor half_a = a.to(kBFloat16), half_b = b.to(kBFloat16);
  EXPECT_TRUE(equal(cdist(half_a, half_b), cdist(half_a.to(kFloat32), half_b.to(kFloat32)).to(kBFloat16)));

  const NoGradGuard no_grad;
  const Tensor rows = rand({1000, 64});
  Allocator& memory = allocator(kCPU);
  memory.reset_peak(Device(kCPU));
  const std::size_t before = memory.stats(Device(kCPU)).in_use;
  cdist(rows, rows).sum().item<float>();
  EXPECT_LT(memory.stats(Device(kCPU)).peak - before, std::size_t{8} * 1000 * 1000 * sizeof(float));
}

TEST(ProgramOperations, PlacesInASortedTensorAsLibtorchTakesThem) {
  const Tensor edges = tensor({1.0f, 2.0f, 3.0f}), x = tensor({2.0f, 0.0f});
  const auto places = [](const Tensor& at) { return at.to(kInt64).to_vector<std::int64_t>(); };
  using Places = std::vector<std::int64_t>;
  EXPECT_EQ(places(searchsorted(edges, x)), (Places{1, 0}));
  EXPECT_EQ(places(searchsorted(edges, x, /*out_int32=*/true)), (Places{1, 0}));
  EXPECT_EQ(searchsorted(edges, x, true).dtype(), kInt32);
  EXPECT_EQ(places(searchsorted(edges, x, false, /*right=*/true)), (Places{2, 0}));
  EXPECT_EQ(places(searchsorted(edges, x, false, false, "right")), (Places{2, 0}));
  EXPECT_EQ(places(bucketize(x, edges, true)), (Places{1, 0}));
  EXPECT_EQ(places(bucketize(x, edges, false, true)), (Places{2, 0}));
  EXPECT_NE(error_of([&] { searchsorted(edges, x, false, true, "left"); }).find("found the side"), std::string::npos);
  EXPECT_NE(error_of([] { normal(0.0, -1.0, {2}); }).find("at least 0, found -1"), std::string::npos);
}

TEST(ProgramOperations, InverseErrorFunctionOfFloats) {
  const Tensor y = linspace(-0.99999, 0.99999, 4001, {.dtype = kFloat32});
  const Tensor exact = erfinv(y.to(kFloat64));
  expect_close(erfinv(y).to(kFloat64), exact, 5e-7, 1e-12);
  const std::vector<float> ends = erfinv(tensor({1.0f, -1.0f, 0.0f, -0.0f, 1.5f})).to_vector<float>();
  EXPECT_EQ(ends[0], INFINITY);
  EXPECT_EQ(ends[1], -INFINITY);
  EXPECT_EQ(ends[2], 0.0f);
  EXPECT_TRUE(std::signbit(ends[3]));
  EXPECT_TRUE(std::isnan(ends[4]));
}

}  // namespace
}  // namespace lockstep::testing
