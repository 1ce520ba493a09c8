#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Grey images and labels from a pair of IDX files, held as bytes and normalised when batched:
/// x = (byte / 255 - mean) / std, float32 [N, 1, H, W]; y int64 [N], 0 to 9.
class MnistDataset final : public Dataset {
 public:
  /// Throws Error naming file, offset, found and expected if a file cannot be read or is no IDX file of unsigned bytes,
  /// raw or gzip, if the two hold different numbers of samples or none, if a label is above 9, or unless std > 0.
  MnistDataset(const std::filesystem::path& images, const std::filesystem::path& labels, float mean, float std);

  std::int64_t size() const override { return size_; }
  std::int64_t height() const { return height_; }  ///< rows of an image
  std::int64_t width() const { return width_; }    ///< columns of an image
  Batch get_batch(std::span<const std::int64_t> indices) const override;
  std::string content() const override;  ///< checksums of images and labels, mean and std
  bool is_of_rows() const override { return true; }

  /// The bytes of image `index`, row-major. Throws Error if out of range.
  std::span<const std::uint8_t> image(std::int64_t index) const;
  /// The label of image `index`. Throws Error if out of range.
  int label(std::int64_t index) const;
  float mean() const { return mean_; }                                     ///< that x is normalised with
  float std() const { return std_; }                                       ///< that x is normalised with
  const std::filesystem::path& image_file() const { return image_file_; }  ///< where the images were read from

 private:
  std::int64_t size_ = 0;
  std::int64_t height_ = 0;
  std::int64_t width_ = 0;
  float mean_;
  float std_;
  std::filesystem::path image_file_;
  std::vector<std::uint8_t> images_;
  std::vector<std::uint8_t> labels_;
};

/// Options of mnist() and fashion_mnist().
struct MnistOptions {
  bool train = true;  ///< the training set, or the test set
  /// Of the pixels scaled to [0, 1]; by default the statistics of the set's training images.
  std::optional<float> mean = std::nullopt;
  std::optional<float> std = std::nullopt;  ///< see mean
};

/// The MNIST training (60000 images of 28 x 28) or test set (10000). Files may be raw or gzip, named
/// train-images-idx3-ubyte or train-images.idx3-ubyte, with or without .gz, and so on for t10k and labels.
/// Looked for in `directory`, its mnist/ and MNIST/raw/; if `directory` is empty in $LOCKSTEP_DATA/mnist,
/// $LOCKSTEP_DATA, ./data/mnist and ~/.cache/lockstep/mnist, in this order. Normalised with mean 0.1307, std 0.3081.
/// Throws Error that lists the places if nothing is found, and see MnistDataset.
std::shared_ptr<const MnistDataset> mnist(const std::filesystem::path& directory = {}, MnistOptions options = {});

/// Fashion-MNIST: the same format. Looked for in `directory`, its fashion-mnist/ and FashionMNIST/raw/; if `directory`
/// is empty in $LOCKSTEP_DATA/fashion-mnist, ./data/fashion-mnist, ~/.cache/lockstep/fashion-mnist, and in
/// /usr/share/datasets/fashion-mnist and /usr/share/dataset-fashion-mnist, where Debian's package
/// dataset-fashion-mnist puts it. Normalised with mean 0.2860, std 0.3530.
std::shared_ptr<const MnistDataset> fashion_mnist(const std::filesystem::path& directory = {},
                                                  MnistOptions options = {});

/// True if the files of both the training and the test set are found; does not read them.
bool has_mnist(const std::filesystem::path& directory = {});
bool has_fashion_mnist(const std::filesystem::path& directory = {});

}  // namespace lockstep::data
