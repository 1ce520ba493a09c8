#include "lockstep/data/image_folder.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <system_error>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/factories.h"
#include "lockstep/data/wanted.h"

namespace lockstep::data {

namespace fs = std::filesystem;

namespace {

std::vector<fs::path> sorted_entries(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  LOCKSTEP_CHECK(!error, "[ImageFolder] cannot list '{}': {}; expected a readable directory", directory.string(),
                 error.message());
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_image(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::error_code ignored;
  return (extension == ".png" || extension == ".jpg" || extension == ".jpeg") && fs::is_regular_file(path, ignored);
}

void check_options(const ImageFolderOptions& options) {
  LOCKSTEP_CHECK(options.channels == 1 || options.channels == 3 || options.channels == 4,
                 "[ImageFolder] channels must be 1, 3 or 4, found {}", options.channels);
  LOCKSTEP_CHECK((options.height == 0) == (options.width == 0) && options.height >= 0 && options.width >= 0 &&
                     options.height <= options.limits.max_side && options.width <= options.limits.max_side,
                 "[ImageFolder] height x width is {} x {}; expected both 0, or both 1 to {}", options.height,
                 options.width, options.limits.max_side);
  const auto fits = [&](std::size_t count) {
    return count == 1 || count == static_cast<std::size_t>(options.channels);
  };
  LOCKSTEP_CHECK(options.mean.size() == options.std.size() && (options.mean.empty() || fits(options.mean.size())),
                 "[ImageFolder] mean has {} values and std has {}; expected as many of each as channels ({}), one, or "
                 "none",
                 options.mean.size(), options.std.size(), options.channels);
  for (const float value : options.std)
    LOCKSTEP_CHECK(value > 0.0f, "[ImageFolder] std must be above 0, found {}", value);
}

}  // namespace

ImageFolder::ImageFolder(const fs::path& directory, ImageFolderOptions options) : options_(std::move(options)) {
  check_options(options_);
  if (options_.mean.empty()) {
    options_.mean = {0.0f};
    options_.std = {1.0f};
  }
  options_.mean.resize(static_cast<std::size_t>(options_.channels), options_.mean[0]);
  options_.std.resize(static_cast<std::size_t>(options_.channels), options_.std[0]);

  for (const fs::path& folder : sorted_entries(directory)) {
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) continue;
    const auto label = static_cast<std::int64_t>(classes_.size());
    const std::size_t before = samples_.size();
    for (fs::path& file : sorted_entries(folder))
      if (is_image(file)) samples_.push_back({std::move(file), label});
    LOCKSTEP_CHECK(samples_.size() > before,
                   "[ImageFolder] '{}' holds no .png, .jpg or .jpeg file; expected at least "
                   "one in every class",
                   folder.string());
    classes_.push_back(folder.filename().string());
  }
  LOCKSTEP_CHECK(!classes_.empty(), "[ImageFolder] '{}' has no sub-directories; expected one for each class",
                 directory.string());

  resize_ = options_.height > 0;
  if (!resize_) {
    const Image first = load_image(samples_[0].path, options_.channels, options_.limits);
    options_.height = first.height;
    options_.width = first.width;
  }
}

Image ImageFolder::load(const fs::path& path) const {
  Image image = load_image(path, options_.channels, options_.limits);
  const std::int64_t height = options_.height;
  const std::int64_t width = options_.width;
  if (image.height == height && image.width == width) return image;
  LOCKSTEP_CHECK(resize_,
                 "[ImageFolder] '{}' has {} x {} pixels, the first image {} x {}; give height and width in the "
                 "options to resize",
                 path.string(), image.height, image.width, height, width);
  return image.height >= height && image.width >= width ? resize_area(image, height, width)
                                                        : resize_bilinear(image, height, width);
}

Batch ImageFolder::get_batch(std::span<const std::int64_t> indices) const {
  check_indices(indices, size(), "ImageFolder");
  const auto count = static_cast<std::int64_t>(indices.size());
  const std::int64_t channels = options_.channels;
  Batch batch{.x = empty({count, channels, options_.height, options_.width}),
              .y = empty({count}, {.dtype = kInt64}),
              .global_size = count};
  const LibraryAccess access;
  float* x = batch.x.data<float>();
  std::int64_t* y = batch.y.data<std::int64_t>();
  const std::int64_t pixels = options_.height * options_.width;
  for (const std::int64_t index : indices) {
    WantedUntil::check(*this);
    const Sample& sample = samples_[static_cast<std::size_t>(index)];
    const Image image = load(sample.path);
    for (std::int64_t c = 0; c < channels; ++c, x += pixels) {
      const float mean = options_.mean[static_cast<std::size_t>(c)];
      const float std = options_.std[static_cast<std::size_t>(c)];
      const std::uint8_t* from = image.pixels.data() + c;
      for (std::int64_t i = 0; i < pixels; ++i) x[i] = (static_cast<float>(from[i * channels]) / 255.0f - mean) / std;
    }
    *y++ = sample.label;
  }
  return batch;
}

std::string ImageFolder::content() const {
  // A network's file system takes a while for each size.
  constexpr std::size_t kSizes = 1000;
  const std::size_t stride = samples_.size() / kSizes + 1;
  std::string text;
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const fs::path& file = samples_[i].path;
    text += classes_[static_cast<std::size_t>(samples_[i].label)] + '/' + file.filename().string() + '\n';
    if (i % stride != 0) continue;
    std::error_code error;
    const std::uintmax_t size = fs::file_size(file, error);
    LOCKSTEP_CHECK(!error, "[image_folder] '{}' cannot be read any more: {}", file.string(), error.message());
    text += fmt::format("{}\n", size);
  }
  for (const std::vector<float>* const values : {&options_.mean, &options_.std})
    for (const float value : *values) text += fmt::format("{}\n", value);
  return fmt::format("{} files, {} x {} pixels, {} channel(s), {}", samples_.size(), options_.height, options_.width,
                     options_.channels, checksum_digits(text.data(), text.size()));
}

const fs::path& ImageFolder::path(std::int64_t index) const {
  check_indices({&index, 1}, size(), "ImageFolder");
  return samples_[static_cast<std::size_t>(index)].path;
}

std::int64_t ImageFolder::label(std::int64_t index) const {
  check_indices({&index, 1}, size(), "ImageFolder");
  return samples_[static_cast<std::size_t>(index)].label;
}

}  // namespace lockstep::data
