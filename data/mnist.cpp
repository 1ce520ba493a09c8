#include "lockstep/data/mnist.h"

#include <cstddef>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/factories.h"
#include "lockstep/data/idx.h"
#include "lockstep/data/mnist_files.h"
#include "lockstep/data/pixels.h"

namespace lockstep::data {

namespace {

constexpr int kClasses = 10;
constexpr std::int64_t kSide = 28;

std::shared_ptr<const MnistDataset> load(const MnistVariant& variant, const std::filesystem::path& directory,
                                         MnistOptions options) {
  const MnistFiles files = find_mnist_files(variant, directory, options.train);
  auto dataset = std::make_shared<const MnistDataset>(files.images, files.labels, options.mean.value_or(variant.mean),
                                                      options.std.value_or(variant.std));
  LOCKSTEP_CHECK(dataset->height() == kSide && dataset->width() == kSide,
                 "[{}] '{}': images of {} x {} pixels; expected {} x {}", variant.name, files.images.string(),
                 dataset->height(), dataset->width(), kSide, kSide);
  return dataset;
}

}  // namespace

MnistDataset::MnistDataset(const std::filesystem::path& images, const std::filesystem::path& labels, float mean,
                           float std)
    : mean_(mean), std_(std), image_file_(images) {
  LOCKSTEP_CHECK(std > 0.0f, "[MnistDataset] std must be above 0, found {}", std);
  IdxArray pixels = read_idx(images, {.expected_dims = 3});
  IdxArray classes = read_idx(labels, {.expected_dims = 1});
  size_ = pixels.dims[0];
  height_ = pixels.dims[1];
  width_ = pixels.dims[2];
  LOCKSTEP_CHECK(pixels.dims.numel() > 0, "[MnistDataset] '{}' has dimensions {}; expected at least one image",
                 images.string(), to_string(pixels.dims));
  LOCKSTEP_CHECK(classes.dims[0] == size_,
                 "[MnistDataset] '{}' holds {} labels, but '{}' holds {} images; expected "
                 "the same number: use files of one set",
                 labels.string(), classes.dims[0], images.string(), size_);
  for (std::size_t i = 0; i < classes.values.size(); ++i)
    LOCKSTEP_CHECK(classes.values[i] < kClasses, "[MnistDataset] '{}': label {} is {} (at offset {}); expected 0 to {}",
                   labels.string(), i, classes.values[i], i + 8, kClasses - 1);
  images_ = std::move(pixels.values);
  labels_ = std::move(classes.values);
}

Batch MnistDataset::get_batch(std::span<const std::int64_t> indices) const {
  check_indices(indices, size_, "MnistDataset");
  const auto count = static_cast<std::int64_t>(indices.size());
  Batch batch{.x = empty({count, 1, height_, width_}), .y = empty({count}, {.dtype = kInt64}), .global_size = count};
  const auto pixels = static_cast<std::size_t>(height_ * width_);
  const LibraryAccess access;
  float* x = batch.x.data<float>();
  std::int64_t* y = batch.y.data<std::int64_t>();
  for (const std::int64_t index : indices) {
    const auto i = static_cast<std::size_t>(index);
    normalize_pixels(std::span(images_).subspan(i * pixels, pixels), mean_, std_, x);
    *y++ = labels_[i];
    x += pixels;
  }
  return batch;
}

std::string MnistDataset::content() const {
  return fmt::format("images {} labels {} mean {} std {}", checksum_digits(images_.data(), images_.size()),
                     checksum_digits(labels_.data(), labels_.size()), mean_, std_);
}

std::span<const std::uint8_t> MnistDataset::image(std::int64_t index) const {
  check_indices({&index, 1}, size_, "MnistDataset");
  const auto pixels = static_cast<std::size_t>(height_ * width_);
  return std::span(images_).subspan(static_cast<std::size_t>(index) * pixels, pixels);
}

int MnistDataset::label(std::int64_t index) const {
  check_indices({&index, 1}, size_, "MnistDataset");
  return labels_[static_cast<std::size_t>(index)];
}

std::shared_ptr<const MnistDataset> mnist(const std::filesystem::path& directory, MnistOptions options) {
  return load(mnist_variant(), directory, options);
}

std::shared_ptr<const MnistDataset> fashion_mnist(const std::filesystem::path& directory, MnistOptions options) {
  return load(fashion_mnist_variant(), directory, options);
}

bool has_mnist(const std::filesystem::path& directory) {
  return has_mnist_files(mnist_variant(), directory);
}
bool has_fashion_mnist(const std::filesystem::path& directory) {
  return has_mnist_files(fashion_mnist_variant(), directory);
}

}  // namespace lockstep::data
