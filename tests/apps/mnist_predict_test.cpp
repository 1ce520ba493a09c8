// mnist_predict as its users see it: what it reads, what it prints, and its exit status.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/models/models.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/data/data.h"
#include "lockstep/data/digit_image.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/support/data_files.h"
#include "tests/support/subprocess.h"

namespace lockstep {
namespace {

using data::Image;
using testing::ProcessResult;
using testing::TempDir;

ProcessResult predict(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), LOCKSTEP_MNIST_PREDICT);
  return testing::run_process(arguments);
}

std::vector<nlohmann::json> json_lines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// A dark cross of `size` x `size` pixels on light paper.
Image cross(std::int64_t size) {
  Image image{.height = size, .width = size, .channels = 1, .pixels = {}};
  for (std::int64_t row = 0; row < size; ++row)
    for (std::int64_t column = 0; column < size; ++column) {
      const bool inside = std::min({row, column, size - 1 - row, size - 1 - column}) >= size / 6;
      const bool ink = inside && (std::abs(row - size / 2) < size / 12 || std::abs(column - size / 2) < size / 12);
      image.pixels.push_back(ink ? 20 : 235);
    }
  return image;
}

class PredictModel : public ::testing::TestWithParam<std::string> {};

TEST_P(PredictModel, IsToldByItsWeightsAndGivesItsProbabilities) {
  TempDir dir;
  manual_seed(3);
  const auto model = models::make_model(GetParam());
  nn::save(*model, dir / "weights.safetensors");
  testing::write_png(dir / "cross.png", cross(90));
  testing::write_jpeg(dir / "cross.jpg", cross(41));

  const ProcessResult result = predict({dir / "weights.safetensors", dir / "cross.png", dir / "cross.jpg", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const auto lines = json_lines(result.out);
  ASSERT_EQ(lines.size(), 2u) << result.out;
  const NoGradGuard no_grad;
  model->eval();
  for (const auto& line : lines) {
    const std::string path = line["image"];
    EXPECT_EQ(line["model"], GetParam());
    const Tensor x = data::digit_tensor(data::digit_from_image(data::load_image(path), path));
    const auto expected = model->forward(x).softmax(1).to_vector<double>();
    const std::vector<double> actual = line["probabilities"];
    ASSERT_EQ(actual.size(), 10u);
    for (std::size_t i = 0; i < 10; ++i) EXPECT_NEAR(actual[i], expected[i], 1e-5);
    const auto best = std::max_element(actual.begin(), actual.end());
    EXPECT_EQ(line["class"], best - actual.begin());
    EXPECT_EQ(line["probability"], *best);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PredictModel, ::testing::Values("lenet", "cnn", "mlp"),
                         [](const auto& info) { return info.param; });

TEST(Predict, PrintsALineForEachImage) {
  TempDir dir;
  nn::save(*models::make_model("mlp"), dir / "weights");
  testing::write_png(dir / "cross.png", cross(60));
  const ProcessResult result = predict({dir / "weights", dir / "cross.png", dir / "cross.png"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2);
  EXPECT_EQ(result.out.find((dir / "cross.png").string() + ": "), 0u) << result.out;
  EXPECT_NE(result.out.find(" 9:0."), std::string::npos) << result.out;
  EXPECT_EQ(predict({"--help"}).status, 0);
}

TEST(Predict, WrongUseHasStatusTwo) {
  const std::vector<std::vector<std::string>> wrong = {{}, {"model"}, {"--frobnicate", "model", "image"}};
  for (const std::vector<std::string>& arguments : wrong) {
    const ProcessResult result = predict(arguments);
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST(Predict, BadInputHasStatusOneAndOneLine) {
  TempDir dir;
  const std::string weights = dir / "weights", image = dir / "cross.png";
  const auto lenet = models::make_model("lenet");
  nn::save(*lenet, weights);
  testing::write_png(image, cross(60));
  testing::write_png(dir / "blank.png", {.height = 9, .width = 9, .channels = 1, .pixels = testing::Bytes(81, 7)});
  testing::write_file(dir / "text.png", {'h', 'i'});
  testing::Bytes cut = testing::read_file(weights);
  cut.resize(cut.size() - 10);
  testing::write_file(dir / "cut", cut);
  nn::save_safetensors({{"fc1.weight", zeros({3, 3})}}, dir / "other");
  {
    const NoGradGuard no_grad;
    lenet->parameters()[0].fill_(std::nan(""));
  }
  nn::save(*lenet, dir / "nan");
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  const std::vector<Case> cases = {{{dir / "missing", image}, (dir / "missing").string()},
                                   {{dir / "cut", image}, (dir / "cut").string()},
                                   {{image, image}, image},
                                   {{dir / "other", image}, "none of the models lenet, cnn, mlp, lenet-bn"},
                                   {{dir / "nan", image}, "no finite probabilities"},
                                   {{weights, image, dir / "missing.png"}, "missing.png': No such file"},
                                   {{weights, dir / "text.png"}, "text.png' is no PNG or JPEG file"},
                                   {{weights, dir / "blank.png"}, "blank.png': no digit found"},
                                   {{weights, dir.path()}, "is a directory"}};
  for (const Case& c : cases) {
    const ProcessResult result = predict(c.arguments);
    EXPECT_EQ(result.status, 1) << result.err;
    EXPECT_EQ(result.err.find("mnist_predict: "), 0u) << result.err;
    EXPECT_NE(result.err.find(c.message), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

Image inverted(Image image) {
  for (std::uint8_t& pixel : image.pixels) pixel = static_cast<std::uint8_t>(255 - pixel);
  return image;
}

/// On a larger page of the same paper, off its centre.
Image on_page(const Image& image, std::int64_t size, std::int64_t top, std::int64_t left) {
  Image page{.height = size, .width = size, .channels = 1, .pixels = {}};
  page.pixels.assign(static_cast<std::size_t>(size * size), image.pixels[0]);
  for (std::int64_t row = 0; row < image.height; ++row)
    std::copy_n(image.pixels.begin() + row * image.width, image.width, page.pixels.begin() + (top + row) * size + left);
  return page;
}

/// The same picture in faint blue ink on yellowish paper.
Image coloured(const Image& light_on_dark) {
  Image colour{.height = light_on_dark.height, .width = light_on_dark.width, .channels = 3, .pixels = {}};
  for (const std::uint8_t ink : light_on_dark.pixels)
    for (const auto& [paper, pen] : {std::pair{230, 60}, std::pair{225, 70}, std::pair{190, 150}})
      colour.pixels.push_back(static_cast<std::uint8_t>(paper + (pen - paper) * ink / 255));
  return colour;
}

TEST(Predict, RecognisesRealDigitsInManyDisguises) {
  if (!data::has_mnist()) GTEST_SKIP() << "no MNIST here; run scripts/get_mnist.sh or set LOCKSTEP_DATA";
  TempDir dir;
  manual_seed(1);
  models::LeNet model;
  optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
  const data::DataLoader loader(data::mnist(), {.batch_size = 64, .seed = 1});
  int steps = 0;
  for (auto& batch : loader.epoch(0)) {
    optimizer.zero_grad();
    cross_entropy(model.forward(batch.x), batch.y).backward();
    optimizer.step();
    if (++steps == 400) break;
  }
  nn::save(model, dir / "lenet.safetensors");

  const auto test = data::mnist({}, {.train = false});
  constexpr std::int64_t kDigits = 100;
  struct Disguise {
    std::string name;
    std::vector<std::string> files;
  };
  std::vector<Disguise> disguises(4);
  for (std::int64_t i = 0; i < kDigits; ++i) {
    const auto bytes = test->image(i);
    const Image digit{.height = 28, .width = 28, .channels = 1, .pixels = {bytes.begin(), bytes.end()}};
    const Image large = data::resize_bilinear(digit, 140, 140);
    const auto file = [&](std::size_t disguise, const char* name, const char* extension) {
      disguises[disguise].name = name;
      disguises[disguise].files.push_back(dir / (std::string(name) + std::to_string(i) + extension));
      return disguises[disguise].files.back();
    };
    testing::write_png(file(0, "as it is", ".png"), digit);
    testing::write_png(file(1, "inverted", ".png"), inverted(digit));
    testing::write_jpeg(file(2, "large and dark on light", ".jpg"), inverted(large));
    testing::write_jpeg(file(3, "coloured on a page", ".jpg"), coloured(on_page(large, 333, 21 + i, 180 - i)));
  }
  for (const Disguise& disguise : disguises) {
    std::vector<std::string> arguments = {dir / "lenet.safetensors", "--json"};
    arguments.insert(arguments.end(), disguise.files.begin(), disguise.files.end());
    const ProcessResult result = predict(arguments);
    ASSERT_EQ(result.status, 0) << result.err;
    const auto lines = json_lines(result.out);
    ASSERT_EQ(lines.size(), static_cast<std::size_t>(kDigits));
    int right = 0;
    for (std::int64_t i = 0; i < kDigits; ++i)
      right += lines[static_cast<std::size_t>(i)]["class"] == test->label(i) ? 1 : 0;
    EXPECT_GE(right, 93) << disguise.name;
    RecordProperty(disguise.name, right);
  }
}

}  // namespace
}  // namespace lockstep
