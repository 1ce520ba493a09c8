#pragma once

// What the tests of mnist_train share.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/data/mnist.h"
#include "tests/support/subprocess.h"
#include "tests/support/temporary_path.h"

namespace lockstep::testing {

/// A folder of the test's own.
class TemporaryDirectory {
 public:
  TemporaryDirectory() { std::filesystem::create_directories(path_.text()); }
  std::string file(const std::string& name) const { return path_.text() + "/" + name; }
  const std::string path() const { return path_.text(); }

 private:
  TemporaryPath path_;
};

// What a launcher of the test itself may have left.
inline const ProcessEnvironment kClean = {{"RANK", ""},        {"WORLD_SIZE", ""},  {"LOCAL_RANK", ""},
                                          {"MASTER_ADDR", ""}, {"MASTER_PORT", ""}, {"LOCKSTEP_STORE_HOSTED", ""}};

inline std::vector<std::string> operator+(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Runs mnist_train to its end.
inline ProcessResult train(std::vector<std::string> arguments, int limit_s = 300) {
  arguments.insert(arguments.begin(), LOCKSTEP_MNIST_TRAIN);
  return run_process(arguments, kClean, std::chrono::seconds(limit_s));
}

/// The options of the data set there is: MNIST, else Fashion-MNIST; empty: neither.
inline std::vector<std::string> dataset() {
  if (data::has_mnist()) return {"--dataset", "mnist"};
  if (data::has_fashion_mnist()) return {"--dataset", "fashion-mnist"};
  return {};
}

/// "weights_sha256=..." of a result line; empty if there is none.
inline std::string weights_of(const std::string& output) {
  const std::size_t at = output.find("weights_sha256=");
  return at == std::string::npos ? "" : output.substr(at, 15 + 64);
}

/// Every step's loss_hex of a metrics file. A step that stands there twice, since its run went back to a checkpoint,
/// must be the same twice.
inline std::vector<std::string> loss_bits_of(const std::string& file) {
  std::map<std::int64_t, std::string> losses;
  std::ifstream in(file);
  for (std::string text; std::getline(in, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (line.is_discarded()) continue;  // cut off by a kill
    const auto [known, is_new] = losses.try_emplace(line.at("step"), line.at("loss_hex").get<std::string>());
    EXPECT_EQ(known->second, line.at("loss_hex").get<std::string>()) << "step " << known->first << " in " << file;
  }
  std::vector<std::string> bits;
  for (const auto& [step, loss] : losses) bits.push_back(loss);
  return bits;
}

/// What a program printed ends with the weights that tests/apps/published_hashes.txt has for the model.
inline void expect_published(const std::string& model, const std::string& output) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/tests/apps/published_hashes.txt");
  std::string published = "no line";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(model + " | ")) published = line.substr(model.size() + 3);
  const std::string weights = weights_of(output);
  const std::string found = weights.empty() ? "none" : weights.substr(15);
  EXPECT_EQ(found, published) << "other bits than published; if that is meant, the line is now\n"
                              << model << " | " << found;
}

/// How often or how long a test that is cut short by default is to go on: the environment variable, else the default.
inline int amount(const char* variable, int by_default) {
  const char* value = std::getenv(variable);
  return value ? std::atoi(value) : by_default;
}

}  // namespace lockstep::testing
