// mnist_predict: says which digits images show, with the weights that mnist_train --save wrote. See --help.

#include "lockstep/train/command_line/main.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/models/models.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/data/digit_image.h"
#include "lockstep/data/image.h"
#include "lockstep/train/command_line/parse.h"

namespace lockstep::apps {
namespace {

constexpr std::size_t kBatch = 256;

struct Options {
  std::string model;
  std::vector<std::string> images;
  bool json = false;
};

struct Prediction {
  std::size_t digit = 0;
  std::vector<double> probabilities;
};

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app{
      "Says which digit each image shows. Images may be PNG or JPEG of any size, dark on light or light on dark, with "
      "one digit each.",
      "mnist_predict"};
  app.add_option("MODEL", options.model, "Weights of a model of mnist_train, as safetensors (mnist_train --save)")
      ->required();
  app.add_option("IMAGE", options.images, "PNG or JPEG files")->required();
  app.add_flag("--json", options.json, "Print a JSON object for each image, one a line");
  if (!command_line::parse(app, argc, argv)) return std::nullopt;
  return options;
}

// [N, 1, 28, 28] from the files.
Tensor load_digits(std::span<const std::string> paths) {
  const Tensor x = empty({static_cast<std::int64_t>(paths.size()), 1, 28, 28});
  float* to = x.data<float>();
  for (const std::string& path : paths) {
    const Tensor digit = data::digit_tensor(data::digit_from_image(data::load_image(path), path));
    to = std::copy_n(digit.data<float>(), digit.numel(), to);
  }
  return x;
}

void predict(nn::Module& model, const std::string& model_file, const Tensor& x, std::vector<Prediction>& predictions) {
  const std::vector<double> values = model(x).softmax(1).to_vector<double>();
  const std::size_t classes = values.size() / static_cast<std::size_t>(x.size(0));
  for (auto begin = values.begin(); begin != values.end(); begin += static_cast<std::ptrdiff_t>(classes)) {
    Prediction prediction{.digit = 0, .probabilities = {begin, begin + static_cast<std::ptrdiff_t>(classes)}};
    for (const double p : prediction.probabilities)
      LOCKSTEP_CHECK(std::isfinite(p), "'{}': the weights give no finite probabilities; train the model again",
                     model_file);
    const auto& p = prediction.probabilities;
    prediction.digit = static_cast<std::size_t>(std::max_element(p.begin(), p.end()) - p.begin());
    predictions.push_back(std::move(prediction));
  }
}

void print_text(const std::string& image, const Prediction& prediction) {
  std::string line =
      fmt::format("{}: {} ({:.2f} %) ", image, prediction.digit, 100.0 * prediction.probabilities[prediction.digit]);
  for (std::size_t digit = 0; digit < prediction.probabilities.size(); ++digit)
    line += fmt::format(" {}:{:.4f}", digit, prediction.probabilities[digit]);
  fmt::print("{}\n", line);
}

void print_json(const std::string& image, const std::string& model, const Prediction& prediction) {
  const nlohmann::json line = {{"image", image},
                               {"model", model},
                               {"class", prediction.digit},
                               {"probability", prediction.probabilities[prediction.digit]},
                               {"probabilities", prediction.probabilities}};
  // A file name need not be UTF-8; JSON must.
  fmt::print("{}\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

int run(const Options& options) {
  const nn::SafetensorsFile file(options.model);
  const std::string name = models::model_of(file);
  const auto model = models::make_model(name);
  nn::load(*model, file);
  model->eval();

  const NoGradGuard no_grad;
  std::vector<Prediction> predictions;
  const std::span<const std::string> images = options.images;
  for (std::size_t begin = 0; begin < images.size(); begin += kBatch)
    predict(*model, options.model, load_digits(images.subspan(begin, std::min(kBatch, images.size() - begin))),
            predictions);

  for (std::size_t i = 0; i < images.size(); ++i) {
    if (options.json) {
      print_json(images[i], name, predictions[i]);
    } else {
      print_text(images[i], predictions[i]);
    }
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::apps

int main(int argc, char** argv) {
  return lockstep::command_line::run_main("mnist_predict", [&] {
    const auto options = lockstep::apps::parse_options(argc, argv);
    return options ? lockstep::apps::run(*options) : 0;
  });
}
