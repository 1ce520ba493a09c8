#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/image.h"

namespace lockstep::data {

/// Options of ImageFolder.
struct ImageFolderOptions {
  /// Every image is resized to this (area when both sides shrink, else bilinear). 0, 0: all images must have the size
  /// of the first.
  std::int64_t height = 0;
  std::int64_t width = 0;  ///< see height
  /// 1 (grey), 3 (RGB) or 4 (RGB and alpha); files are converted.
  int channels = 3;
  /// Of the pixels scaled to [0, 1]: one value a channel, one for all, or none (then x stays in [0, 1]).
  std::vector<float> mean = {};
  std::vector<float> std = {};  ///< see mean; x = (pixel / 255 - mean) / std
  ImageLimits limits = {};      ///< see ImageLimits
};

/// PNG and JPEG files in one sub-directory a class, as torchvision's ImageFolder: the sorted names of the
/// sub-directories are classes 0, 1, ...; samples are sorted by class, then path. Files are decoded when batched:
/// x float32 [N, C, H, W], y int64 [N].
class ImageFolder final : public Dataset {
 public:
  /// Lists the files; does not decode them (but the first, where the size is taken from it). Throws Error if the path
  /// is no readable directory, has no sub-directory, a class has no image, or an option is out of range.
  explicit ImageFolder(const std::filesystem::path& directory, ImageFolderOptions options = {});

  std::int64_t size() const override { return static_cast<std::int64_t>(samples_.size()); }
  /// Throws Error naming the file for an image that cannot be decoded or has another size than the first.
  Batch get_batch(std::span<const std::int64_t> indices) const override;
  /// Of the names of all files, the sizes of some thousand, and what is made of them; pixels are not read for it.
  std::string content() const override;

  /// Names of the sub-directories, by class number.
  const std::vector<std::string>& classes() const { return classes_; }
  /// Throw Error if out of range.
  const std::filesystem::path& path(std::int64_t index) const;
  std::int64_t label(std::int64_t index) const;  ///< class number of a sample

 private:
  struct Sample {
    std::filesystem::path path;
    std::int64_t label;
  };
  Image load(const std::filesystem::path& path) const;

  ImageFolderOptions options_;
  bool resize_ = false;
  std::vector<std::string> classes_;
  std::vector<Sample> samples_;
};

}  // namespace lockstep::data
