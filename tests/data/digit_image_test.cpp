#include "lockstep/data/digit_image.h"

#include <algorithm>
#include <cmath>

#include "lockstep/data/mnist.h"
#include "tests/support/data_files.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using namespace lockstep::data;  // NOLINT

/// A bright bar of height x width on black, at (top, left) of a field.
Image bar(std::int64_t field, std::int64_t top, std::int64_t left, std::int64_t height, std::int64_t width,
          std::uint8_t ink = 255, std::uint8_t paper = 0) {
  Image image{.height = field, .width = field, .channels = 1, .pixels = {}};
  image.pixels.assign(static_cast<std::size_t>(field * field), paper);
  for (std::int64_t row = top; row < top + height; ++row)
    for (std::int64_t column = left; column < left + width; ++column)
      image.pixels[static_cast<std::size_t>(row * field + column)] = ink;
  return image;
}

struct Box {
  std::int64_t height, width;
  double row, column;  // centre of mass
};

Box box_of(const Image& image) {
  std::int64_t top = image.height, bottom = -1, left = image.width, right = -1;
  double mass = 0.0, rows = 0.0, columns = 0.0;
  for (std::int64_t row = 0; row < image.height; ++row)
    for (std::int64_t column = 0; column < image.width; ++column) {
      const double ink = image.pixels[static_cast<std::size_t>(row * image.width + column)];
      mass += ink;
      rows += ink * static_cast<double>(row);
      columns += ink * static_cast<double>(column);
      if (ink == 0.0) continue;
      top = std::min(top, row);
      bottom = std::max(bottom, row);
      left = std::min(left, column);
      right = std::max(right, column);
    }
  return {bottom - top + 1, right - left + 1, rows / mass, columns / mass};
}

Image inverted(Image image) {
  for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(255 - pixel);
  return image;
}

TEST(DigitImage, FitsTwentyPixelsAndCentresTheMass) {
  for (const Image& image : {bar(300, 20, 200, 200, 40), bar(28, 4, 4, 20, 4), bar(12, 1, 7, 10, 2)}) {
    const Image digit = digit_from_image(image, "bar");
    EXPECT_EQ(digit.pixels.size(), 784u);
    const Box box = box_of(digit);
    EXPECT_EQ(box.height, 20);
    EXPECT_EQ(box.width, 4);
    EXPECT_NEAR(box.row, 14.0, 0.51);
    EXPECT_NEAR(box.column, 14.0, 0.51);
    EXPECT_EQ(*std::max_element(digit.pixels.begin(), digit.pixels.end()), 255);
  }
}

TEST(DigitImage, DoesNotDependOnShadesOrDirection) {
  const Image expected = digit_from_image(bar(90, 20, 30, 50, 20), "bar");
  EXPECT_EQ(digit_from_image(bar(90, 20, 30, 50, 20, 0, 255), "dark on light").pixels, expected.pixels);
  EXPECT_EQ(digit_from_image(bar(90, 20, 30, 50, 20, 60, 180), "grey on grey").pixels, expected.pixels);
  EXPECT_EQ(digit_from_image(bar(90, 20, 30, 50, 20, 180, 160), "faint").pixels, expected.pixels);
  EXPECT_EQ(digit_from_image(bar(90, 0, 30, 50, 20), "touches the border").pixels, expected.pixels);
}

TEST(DigitImage, IgnoresTheGrainOfThePaper) {
  Image image = bar(90, 20, 30, 50, 20, 200, 20);
  for (std::size_t i = 0; i < image.pixels.size(); ++i)
    image.pixels[i] = static_cast<std::uint8_t>(image.pixels[i] + philox::word_at({4, 4}, i) % 9);
  const Box box = box_of(digit_from_image(image, "grainy"));
  EXPECT_EQ(box.height, 20);
  EXPECT_EQ(box.width, 8);
}

TEST(DigitImage, PutsTransparentImagesOnTheOtherShade) {
  const Image expected = digit_from_image(bar(60, 10, 20, 40, 20), "bar");
  for (const std::uint8_t shade : {std::uint8_t{0}, std::uint8_t{255}}) {
    const Image opaque = bar(60, 10, 20, 40, 20);
    Image image{.height = 60, .width = 60, .channels = 4, .pixels = {}};
    for (const std::uint8_t alpha : opaque.pixels)
      for (const std::uint8_t value : {shade, shade, shade, alpha}) image.pixels.push_back(value);
    EXPECT_EQ(digit_from_image(image, "transparent").pixels, expected.pixels) << int{shade};
  }
}

TEST(DigitImage, RefusesImagesWithoutInk) {
  for (const std::uint8_t shade : {std::uint8_t{0}, std::uint8_t{130}, std::uint8_t{255}}) {
    const std::string error = error_of([&] { digit_from_image(bar(50, 0, 0, 0, 0, 0, shade), "page.png"); });
    EXPECT_NE(error.find("'page.png': no digit found"), std::string::npos) << error;
  }
  EXPECT_NE(error_of([] { digit_from_image({}, "nothing"); }).find("0 x 0 pixels"), std::string::npos);
}

TEST(DigitImage, TakesSinglePixels) {
  EXPECT_EQ(box_of(digit_from_image(bar(9, 4, 4, 1, 1), "dot")).height, 20);
  EXPECT_EQ(box_of(digit_from_image(bar(500, 3, 250, 490, 1), "line")).height, 20);
}

TEST(DigitImage, NormalisesLikeTheDataset) {
  Image digit{.height = 28, .width = 28, .channels = 1, .pixels = ramp(784)};
  const Tensor x = digit_tensor(digit);
  EXPECT_EQ(x.sizes(), (Shape{1, 1, 28, 28}));
  EXPECT_EQ(x.to_vector<float>()[100], (100.0f / 255.0f - 0.1307f) / 0.3081f);
  digit.channels = 3;
  EXPECT_NE(error_of([&] { digit_tensor(digit); }).find("one channel"), std::string::npos);
}

double difference(const Image& a, std::span<const std::uint8_t> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < b.size(); ++i) sum += std::abs(int{a.pixels[i]} - int{b[i]});
  return sum / static_cast<double>(b.size());
}

TEST(DigitImage, RestoresRealDigitsAtOtherSizesAndShades) {
  if (!has_mnist()) GTEST_SKIP() << "no MNIST here; run scripts/get_mnist.sh or set LOCKSTEP_DATA";
  TempDir dir;
  const auto set = mnist({}, {.train = false});
  double worst_same = 0.0, sum_scaled = 0.0;
  int count = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    const auto bytes = set->image(i);
    const Image original{.height = 28, .width = 28, .channels = 1, .pixels = {bytes.begin(), bytes.end()}};
    write_png(dir / "same.png", original);
    worst_same = std::max(worst_same, difference(digit_from_image(load_image(dir / "same.png"), "same"), bytes));
    write_jpeg(dir / "scaled.jpg", inverted(resize_bilinear(original, 130, 130)));
    sum_scaled += difference(digit_from_image(load_image(dir / "scaled.jpg"), "scaled"), bytes);
    ++count;
  }
  // Mean absolute difference of all 784 grey levels. A shift by one pixel costs about 20.
  EXPECT_LT(worst_same, 25.0);
  EXPECT_LT(sum_scaled / count, 10.0);
  RecordProperty("mean_difference_scaled", std::to_string(sum_scaled / count));
}

}  // namespace
}  // namespace lockstep::testing
