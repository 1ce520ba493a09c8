#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Colour images of 32 x 32 and labels from files of CIFAR's binary version, held as bytes and normalised when batched:
/// x = (byte / 255 - mean[c]) / std[c], float32 [N, 3, 32, 32]; y int64 [N].
class CifarDataset final : public Dataset {
 public:
  using Channels = std::array<float, 3>;  ///< a number each for red, green and blue

  /// Of several files, one after the other: records of `label_bytes` bytes, of which the last is the label, and 3,072
  /// of red, green and blue. Throws Error naming file, offset, found and expected for a file that cannot be read, holds
  /// no records or a part of one, or a label that is not below `classes`, and unless every std > 0.
  CifarDataset(const std::vector<std::filesystem::path>& files, std::int64_t label_bytes, int classes,
               const Channels& mean, const Channels& std);

  std::int64_t size() const override { return static_cast<std::int64_t>(labels_.size()); }
  Batch get_batch(std::span<const std::int64_t> indices) const override;
  std::string content() const override;  ///< checksums of images and labels, mean and std
  bool is_of_rows() const override { return true; }

  /// The bytes of image `index`: [3, 32, 32], row-major. Throws Error if out of range.
  std::span<const std::uint8_t> image(std::int64_t index) const;
  /// The label of image `index`. Throws Error if out of range.
  int label(std::int64_t index) const;
  const Channels& mean() const { return mean_; }  ///< that x is normalised with
  const Channels& std() const { return std_; }    ///< that x is normalised with

 private:
  Channels mean_, std_;
  std::vector<std::uint8_t> images_;
  std::vector<std::uint8_t> labels_;
};

/// Options of cifar10() and cifar100().
struct CifarOptions {
  bool train = true;  ///< the training set, or the test set
  /// Of the pixels scaled to [0, 1]; by default the statistics of the set's training images.
  std::optional<CifarDataset::Channels> mean = std::nullopt;
  std::optional<CifarDataset::Channels> std = std::nullopt;  ///< see mean
};

/// CIFAR-10 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009): the training set (50,000
/// images, data_batch_1.bin to data_batch_5.bin) or the test set (10,000, test_batch.bin). Looked for in `directory`
/// and its cifar-10-batches-bin/; if `directory` is empty in these of $LOCKSTEP_DATA, ./data and ~/.cache/lockstep.
/// Normalised with mean 0.4914, 0.4822, 0.4465 and std 0.2470, 0.2435, 0.2616. Throws Error that lists the places if
/// nothing is found, and see CifarDataset.
std::shared_ptr<const CifarDataset> cifar10(const std::filesystem::path& directory = {}, CifarOptions options = {});

/// CIFAR-100 with its fine labels: train.bin or test.bin, in `directory` or cifar-100-binary/ as above. Normalised with
/// mean 0.5071, 0.4865, 0.4409 and std 0.2673, 0.2564, 0.2762.
std::shared_ptr<const CifarDataset> cifar100(const std::filesystem::path& directory = {}, CifarOptions options = {});

}  // namespace lockstep::data
