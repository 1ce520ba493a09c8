#include "lockstep/data/transforms.h"

#include <map>
#include <numeric>

#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using data::AugmentContext;
using data::Transform;
namespace transforms = data::transforms;

std::vector<std::int64_t> first_indices(std::int64_t count) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(count));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  return indices;
}

Tensor run_transform(const Transform& transform, const Tensor& x, std::uint64_t seed = 1, std::uint64_t epoch = 0) {
  const std::vector<std::int64_t> indices = first_indices(x.size(0));
  AugmentContext context(seed, epoch, indices);
  return transform(x, context);
}

/// Image i of height x width holds 100 * i + row * width + column + 1: no value is 0.
Tensor numbered(std::int64_t count, std::int64_t height, std::int64_t width) {
  Tensor x = empty({count, 1, height, width});
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t p = 0; p < height * width; ++p)
      x.data<float>()[i * height * width + p] = static_cast<float>(100 * i + p + 1);
  return x;
}

TEST(Transforms, NormalizeWorksByChannel) {
  const Tensor x = make_input({2, 3, 2, 2}, 4, kFloat32);
  const std::vector<float> mean = {0.5f, 0.25f, -1.0f}, std = {2.0f, 0.5f, 3.0f};
  const std::vector<float> from = x.to_vector<float>();
  const std::vector<float> to = run_transform(transforms::normalize(mean, std), make_strided(x)).to_vector<float>();
  for (std::size_t i = 0; i < from.size(); ++i) EXPECT_EQ(to[i], (from[i] - mean[i / 4 % 3]) / std[i / 4 % 3]) << i;
  EXPECT_EQ(run_transform(transforms::normalize({1.0f}, {2.0f}), x).to_vector<float>()[7], (from[7] - 1.0f) / 2.0f);
}

TEST(Transforms, PadSurroundsWithTheFill) {
  EXPECT_EQ(run_transform(transforms::pad(1, -2.0f), numbered(1, 2, 3)).to_vector<float>(),
            (std::vector<float>{-2, -2, -2, -2, -2, -2, 1, 2, 3, -2, -2, 4, 5, 6, -2, -2, -2, -2, -2, -2}));
  EXPECT_EQ(run_transform(transforms::pad(0), numbered(2, 2, 2)).to_vector<float>(),
            numbered(2, 2, 2).to_vector<float>());
}

// Of memory that is lent, a network's first operations must make copies.
TEST(Transforms, LendNoMemory) {
  const Transform all[] = {transforms::normalize({0.5f}, {2.0f}), transforms::pad(1), transforms::random_crop(2, 2),
                           transforms::random_shift(1), transforms::random_horizontal_flip()};
  for (std::size_t i = 0; i < std::size(all); ++i)
    EXPECT_FALSE(run_transform(all[i], numbered(4, 3, 3)).storage()->is_lent()) << "transform " << i;
}

TEST(Transforms, CropsAreWindowsAndAllPlacesOccur) {
  constexpr std::int64_t kCount = 600;
  const Tensor crops = run_transform(transforms::random_crop(2, 3), numbered(kCount, 4, 4));
  ASSERT_EQ(crops.sizes(), (Shape{kCount, 1, 2, 3}));
  const std::vector<float> values = crops.to_vector<float>();
  std::map<std::int64_t, int> places;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const float* crop = values.data() + 6 * i;
    const auto corner = static_cast<std::int64_t>(crop[0]) - 100 * i - 1;
    ++places[corner];
    for (std::int64_t row = 0; row < 2; ++row)
      for (std::int64_t column = 0; column < 3; ++column)
        ASSERT_EQ(crop[row * 3 + column], static_cast<float>(100 * i + 1 + corner + row * 4 + column));
  }
  // Rows 0 to 2, columns 0 and 1: six places, 100 times each (7 standard deviations is 64).
  EXPECT_EQ(places.size(), 6u);
  for (const auto& [corner, count] : places) EXPECT_NEAR(count, 100, 64) << "corner " << corner;
}

TEST(Transforms, CropsOfPaddedImagesHoldTheFill) {
  const Tensor crops = run_transform(transforms::random_crop(4, 4, 2, -1.0f), numbered(200, 4, 4));
  int fills = 0, pixels = 0;
  for (const float value : crops.to_vector<float>()) (value == -1.0f ? fills : pixels)++;
  // In each direction 2.8 of 4 pixels lie inside on average.
  EXPECT_NEAR(pixels, 200 * 2.8 * 2.8, 150);
  EXPECT_EQ(pixels + fills, 3200);
}

TEST(Transforms, ShiftsMoveByAtMostTheirLimit) {
  const std::vector<float> values =
      run_transform(transforms::random_shift(2, 0.0f), numbered(500, 5, 5)).to_vector<float>();
  std::map<std::pair<std::int64_t, std::int64_t>, int> moves;
  for (std::int64_t i = 0; i < 500; ++i) {
    // The centre always stays inside: it tells how far the image moved.
    const auto centre = static_cast<std::int64_t>(values[static_cast<std::size_t>(25 * i + 12)]) - 100 * i - 1;
    const std::int64_t down = centre / 5 - 2, right = centre % 5 - 2;
    ++moves[{down, right}];
    for (std::int64_t row = 0; row < 5; ++row)
      for (std::int64_t column = 0; column < 5; ++column) {
        const std::int64_t r = row + down, c = column + right;
        const bool inside = r >= 0 && r < 5 && c >= 0 && c < 5;
        ASSERT_EQ(values[static_cast<std::size_t>(25 * i + row * 5 + column)],
                  inside ? static_cast<float>(100 * i + r * 5 + c + 1) : 0.0f);
      }
  }
  EXPECT_EQ(moves.size(), 25u) << "every shift occurs";
}

TEST(Transforms, ShiftsBeyondTheImageLeaveFill) {
  const Tensor x = numbered(100, 2, 2);
  const std::vector<float> values = run_transform(transforms::random_shift(5, 7.0f), x).to_vector<float>();
  int empty_images = 0;
  for (std::size_t i = 0; i < 100; ++i)
    empty_images +=
        std::all_of(values.begin() + static_cast<std::ptrdiff_t>(4 * i),
                    values.begin() + static_cast<std::ptrdiff_t>(4 * i + 4), [](float value) { return value == 7.0f; });
  EXPECT_GT(empty_images, 0);
  EXPECT_LT(empty_images, 100);
}

TEST(Transforms, FlipsMirrorWholeImagesWithTheirProbability) {
  const Tensor x = make_input({1000, 2, 2, 3}, 5, kFloat32);
  const std::vector<float> from = x.to_vector<float>();
  const std::vector<float> to = run_transform(transforms::random_horizontal_flip(0.3), x).to_vector<float>();
  int flipped = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    const bool flip = to[12 * i] != from[12 * i];
    flipped += flip;
    for (std::size_t p = 0; p < 12; ++p) ASSERT_EQ(to[12 * i + p], from[12 * i + (flip ? p / 3 * 3 + 2 - p % 3 : p)]);
  }
  EXPECT_NEAR(flipped, 300, 75);
  EXPECT_EQ(run_transform(transforms::random_horizontal_flip(0.0), x).to_vector<float>(), from);
  EXPECT_NE(run_transform(transforms::random_horizontal_flip(1.0), x).to_vector<float>(), from);
  EXPECT_EQ(x.to_vector<float>(), from) << "the input is left alone";
}

TEST(Transforms, DependOnSeedEpochAndPlaceInTheChain) {
  const Tensor x = numbered(50, 4, 4);
  const Transform shift = transforms::random_shift(2);
  const auto values = [&](std::uint64_t seed, std::uint64_t epoch) {
    return run_transform(shift, x, seed, epoch).to_vector<float>();
  };
  EXPECT_EQ(values(1, 1), values(1, 1));
  EXPECT_NE(values(1, 1), values(2, 1));
  EXPECT_NE(values(1, 1), values(1, 2));
  // Twice the same transform draws two different shifts; twice the same draw could only move by even distances.
  const Transform twice = transforms::compose({shift, shift});
  EXPECT_NE(run_transform(twice, numbered(50, 9, 9)).to_vector<float>(),
            run_transform(shift, run_transform(shift, numbered(50, 9, 9))).to_vector<float>());
}

TEST(Transforms, ABatchOfNoneStaysEmpty) {
  for (const Transform& transform : {transforms::normalize({0.0f}, {1.0f}), transforms::pad(1),
                                     transforms::random_crop(2, 2), transforms::random_horizontal_flip()})
    EXPECT_EQ(run_transform(transform, zeros({0, 1, 4, 4})).size(0), 0);
}

TEST(Transforms, RefuseWhatTheyCannotDo) {
  const auto refused = [](const std::string& error, const char* text) {
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  refused(error_of([] { transforms::normalize({0.0f, 1.0f}, {1.0f}); }), "mean has 2 values and std has 1");
  refused(error_of([] { transforms::normalize({0.0f}, {0.0f}); }), "std must be above 0, found 0");
  refused(error_of([] { transforms::pad(-1); }), "must not be negative, found -1");
  refused(error_of([] { transforms::random_crop(0, 3); }), "found 0 x 3");
  refused(error_of([] { transforms::random_shift(-2); }), "found -2");
  refused(error_of([] { transforms::random_horizontal_flip(1.5); }), "between 0 and 1, found 1.5");
  refused(error_of([] { transforms::compose({nullptr}); }), "a transform is empty");
  refused(error_of([] { run_transform(transforms::pad(1), zeros({2, 2})); }), "expected float32 [N, C, H, W]");
  refused(error_of([] { run_transform(transforms::pad(1), zeros({1, 1, 2, 2}, {.dtype = kUInt8})); }), "found uint8");
  refused(error_of([] {
            run_transform(transforms::normalize({0.f, 0.f}, {1.f, 1.f}), zeros({1, 3, 2, 2}));
          }),
          "3 channels");
  refused(error_of([] { run_transform(transforms::random_crop(5, 2), zeros({1, 1, 4, 4})); }), "5 x 2 does not fit");
}

}  // namespace
}  // namespace lockstep::testing
