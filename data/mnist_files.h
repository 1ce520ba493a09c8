#pragma once

// Finding the files of MNIST and its drop-in replacements. Internal to data/.

#include <filesystem>
#include <vector>

namespace lockstep::data {

struct MnistVariant {
  const char* name;                               ///< for messages
  std::vector<std::filesystem::path> subfolders;  ///< of a directory that the user names
  float mean;
  float std;
  const char* remedy;
};

const MnistVariant& mnist_variant();
const MnistVariant& fashion_mnist_variant();

struct MnistFiles {
  std::filesystem::path images;
  std::filesystem::path labels;
};

/// The first place that holds both files of the training or the test set. Throws Error that lists the places and what
/// each of them lacks.
MnistFiles find_mnist_files(const MnistVariant& variant, const std::filesystem::path& directory, bool train);
/// True if both sets are found.
bool has_mnist_files(const MnistVariant& variant, const std::filesystem::path& directory);

}  // namespace lockstep::data
