#include <limits>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/interpolate/interpolate.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/core/random.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

TEST(GridSample, GradientsMatchCentralDifferences) {
  manual_seed(4);
  const Tensor x = make_leaf({2, 2, 4, 3}, 1, kFloat64), grid = make_leaf({2, 3, 2, 2}, 2, kFloat64, -1.3, 1.3);
  for (const bool corners : {false, true})
    for (const GridPadding padding : {GridPadding::zeros, GridPadding::border, GridPadding::reflection})
      gradcheck(
          [&](const auto& in) {
            return grid_sample(in[0], in[1], {.padding_mode = padding, .align_corners = corners});
          },
          {x, grid});
  gradcheck([](const auto& in) { return affine_grid(in[0], {2, 1, 3, 4}); }, {make_leaf({2, 2, 3}, 3, kFloat64)});
}

TEST(GridSample, TheIdentityGivesTheImage) {
  const Tensor x = rand({2, 3, 5, 4});
  const Tensor theta = tensor({1.0f, 0.0f, 0.0f, 0.0f, 1.0f, 0.0f}).view({1, 2, 3}).expand({2, 2, 3});
  for (const bool corners : {false, true}) {
    const Tensor grid = affine_grid(theta, {2, 3, 5, 4}, corners);
    expect_close(grid_sample(x, grid, {.align_corners = corners}), x, 1e-5, 1e-6);
    EXPECT_TRUE(equal(grid_sample(x, grid, {.mode = kNearest, .align_corners = corners}), x));
  }
}

// Coordinates that are no numbers, or far beside the image, read nothing that is not there.
TEST(GridSample, AnyCoordinateIsSafe) {
  const float huge = 3e38f, infinity = std::numeric_limits<float>::infinity();
  const float none = std::numeric_limits<float>::quiet_NaN();
  const Tensor grid = tensor({huge, -huge, infinity, -infinity, none, 0.0f, 0.0f, none}).view({1, 2, 2, 2});
  for (const InterpolateMode mode : {kBilinear, kNearest})
    for (const GridPadding padding : {GridPadding::zeros, GridPadding::border, GridPadding::reflection})
      EXPECT_EQ(grid_sample(ones({1, 1, 3, 3}), grid, {.mode = mode, .padding_mode = padding}).sizes(),
                Shape({1, 1, 2, 2}));
  EXPECT_EQ(grid_sample(ones({1, 1, 3, 3}), grid).abs().sum().item<float>(), 0.0f);
}

TEST(GridSample, BadArgumentsAreNamed) {
  const Tensor x = ones({1, 1, 2, 2});
  EXPECT_NE(error_of([&] {
              grid_sample(x, ones({1, 2, 2}));
            }).find("[grid_sample] expected images [n, c, h, w]"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              grid_sample(x, ones({1, 2, 2, 2}, {.dtype = kFloat64}));
            }).find("of one dtype"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              grid_sample(x, ones({1, 2, 2, 2}), {.mode = kLinear});
            }).find("bilinear or nearest"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              affine_grid(ones({2, 2, 3}), {1, 1, 2, 2});
            }).find("[affine_grid] expected"),
            std::string::npos);
}

// Twice as many places take each element twice, whatever the factor: as PyTorch's nearest does.
TEST(Interpolate, NearestOfTwiceTheSizeRepeatsEachElementOfAnImage) {
  const Tensor x = arange(2).to(kFloat32);
  const Tensor image = interpolate(x.view({1, 1, 1, 2}), {.scale_factor = 2.3, .mode = InterpolateMode::nearest});
  EXPECT_EQ(image.to_vector<float>(), (std::vector<float>{0, 0, 1, 1, 0, 0, 1, 1}));
  const Tensor row = interpolate(x.view({1, 1, 2}), {.scale_factor = 2.3, .mode = InterpolateMode::nearest});
  EXPECT_EQ(row.to_vector<float>(), (std::vector<float>{0, 0, 0, 1}));
}

}  // namespace
}  // namespace lockstep::testing
