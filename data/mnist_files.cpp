#include "lockstep/data/mnist_files.h"

#include <optional>
#include <string>
#include <system_error>

#include "lockstep/core/check.h"
#include "lockstep/core/environment.h"

namespace lockstep::data {

namespace fs = std::filesystem;

namespace {

std::optional<fs::path> environment_path(const char* variable) {
  const auto value = environment_variable(variable);
  if (!value) return std::nullopt;
  return fs::path(*value);
}

std::vector<fs::path> places(const MnistVariant& variant, const fs::path& directory) {
  std::vector<fs::path> list;
  if (!directory.empty()) {
    list.push_back(directory);
    for (const fs::path& subfolder : variant.subfolders) list.push_back(directory / subfolder);
    return list;
  }
  const bool fashion = &variant == &fashion_mnist_variant();
  const fs::path& folder = variant.subfolders.front();
  if (const auto root = environment_path("LOCKSTEP_DATA")) {
    list.push_back(*root / folder);
    // The two sets share their file names: a bare folder is taken to be MNIST.
    if (!fashion) list.push_back(*root);
  }
  list.push_back(fs::path("data") / folder);
  if (const auto home = environment_path("HOME")) list.push_back(*home / ".cache" / "lockstep" / folder);
  if (fashion) {
    list.emplace_back("/usr/share/datasets/fashion-mnist");
    list.emplace_back("/usr/share/dataset-fashion-mnist");
  }
  return list;
}

// Any of the names under which a file is distributed.
std::optional<fs::path> find_file(const fs::path& place, const std::string& stem, const char* kind) {
  for (const char* separator : {"-", "."})
    for (const char* suffix : {"", ".gz"}) {
      const fs::path file = place / (stem + separator + kind + suffix);
      std::error_code ignored;
      if (fs::exists(file, ignored)) return file;
    }
  return std::nullopt;
}

struct Lookup {
  std::optional<MnistFiles> files;
  std::string lack;
};

Lookup look(const fs::path& place, bool train) {
  const std::string prefix = train ? "train" : "t10k";
  const auto images = find_file(place, prefix + "-images", "idx3-ubyte");
  const auto labels = find_file(place, prefix + "-labels", "idx1-ubyte");
  if (images && labels) return {.files = MnistFiles{*images, *labels}, .lack = {}};
  std::error_code error;
  if (!fs::exists(place, error)) return {.files = {}, .lack = error ? error.message() : "no such directory"};
  if (!fs::is_directory(place, error)) return {.files = {}, .lack = "not a directory"};
  if (images || labels)
    return {.files = {},
            .lack = fmt::format("has no {}", prefix + (images ? "-labels-idx1-ubyte" : "-images-idx3-ubyte"))};
  return {.files = {}, .lack = fmt::format("has no {}-images-idx3-ubyte[.gz]", prefix)};
}

}  // namespace

const MnistVariant& mnist_variant() {
  static const MnistVariant variant{
      .name = "MNIST",
      .subfolders = {"mnist", fs::path("MNIST") / "raw"},
      .mean = 0.1307f,
      .std = 0.3081f,
      .remedy = "run scripts/get_mnist.sh of lockstep's sources, or set LOCKSTEP_DATA to the folder above mnist/"};
  return variant;
}

const MnistVariant& fashion_mnist_variant() {
  static const MnistVariant variant{
      .name = "Fashion-MNIST",
      .subfolders = {"fashion-mnist", fs::path("FashionMNIST") / "raw"},
      .mean = 0.2860f,
      .std = 0.3530f,
      .remedy =
          "install the package dataset-fashion-mnist, or set LOCKSTEP_DATA to the folder above fashion-mnist/ "
          "(for MNIST itself run scripts/get_mnist.sh of lockstep's sources)"};
  return variant;
}

MnistFiles find_mnist_files(const MnistVariant& variant, const fs::path& directory, bool train) {
  std::string looked;
  for (const fs::path& place : places(variant, directory)) {
    Lookup result = look(place, train);
    if (result.files) return *result.files;
    looked += fmt::format("{}'{}' ({})", looked.empty() ? "" : ", ", place.string(), result.lack);
  }
  LOCKSTEP_CHECK(false, "[{}] no {} set found; looked in {}; {}", variant.name, train ? "training" : "test", looked,
                 variant.remedy);
  return {};
}

bool has_mnist_files(const MnistVariant& variant, const fs::path& directory) {
  for (const bool train : {true, false}) {
    bool found = false;
    for (const fs::path& place : places(variant, directory)) found = found || look(place, train).files.has_value();
    if (!found) return false;
  }
  return true;
}

}  // namespace lockstep::data
