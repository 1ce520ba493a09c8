#include "lockstep/data/image.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "lockstep/core/check.h"
#include "lockstep/core/out_of_memory.h"
#include "lockstep/data/file_reader.h"
#include "lockstep/data/resample.h"

namespace lockstep::data {

namespace {

void check_image(const Image& image, const char* op) {
  LOCKSTEP_CHECK(image.height > 0 && image.width > 0 && image.channels > 0 &&
                     image.pixels.size() == static_cast<std::size_t>(image.height * image.width * image.channels),
                 "[{}] an image of {} x {} pixels with {} channels cannot hold {} bytes; expected their product", op,
                 image.height, image.width, image.channels, image.pixels.size());
}

Image resize(const Image& image, std::int64_t height, std::int64_t width, Filter filter, const char* op) {
  check_image(image, op);
  LOCKSTEP_CHECK(height > 0 && width > 0, "[{}] the new size must have pixels, found {} x {}", op, height, width);
  const std::vector<float> source(image.pixels.begin(), image.pixels.end());
  const std::vector<float> values =
      resample(source, {image.height, image.width, image.channels}, height, width, filter);
  Image result{.height = height, .width = width, .channels = image.channels, .pixels = {}};
  result.pixels.reserve(values.size());
  for (const float value : values)
    result.pixels.push_back(static_cast<std::uint8_t>(std::clamp(value + 0.5f, 0.0f, 255.0f)));
  return result;
}

Image load(const std::filesystem::path& path, int channels, const ImageLimits& limits) {
  FileReader file(path);
  LOCKSTEP_CHECK(file.file_size() <= limits.max_file_bytes, "[image] '{}': {} bytes; expected at most {}",
                 path.string(), file.file_size(), limits.max_file_bytes);
  LOCKSTEP_CHECK(!file.compressed(), "[image] '{}' is gzip data; expected a PNG or JPEG file", path.string());
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(file.file_size()));
  bytes.resize(file.read(bytes));
  return decode_image(bytes, path.string(), channels, limits);
}

}  // namespace

Image load_image(const std::filesystem::path& path, int channels, const ImageLimits& limits) {
  return with_memory_for(fmt::format("reading '{}'", path.string()), [&] { return load(path, channels, limits); });
}

Image resize_bilinear(const Image& image, std::int64_t height, std::int64_t width) {
  return resize(image, height, width, Filter::bilinear, "resize_bilinear");
}

Image resize_area(const Image& image, std::int64_t height, std::int64_t width) {
  return resize(image, height, width, Filter::area, "resize_area");
}

Image to_grey(const Image& image) {
  check_image(image, "to_grey");
  const int channels = image.channels;
  Image grey{.height = image.height, .width = image.width, .channels = 1, .pixels = {}};
  grey.pixels.resize(static_cast<std::size_t>(image.height * image.width));
  const std::uint8_t* from = image.pixels.data();
  for (std::uint8_t& to : grey.pixels) {
    const float value = channels >= 3 ? 0.299f * from[0] + 0.587f * from[1] + 0.114f * from[2] : from[0];
    to = static_cast<std::uint8_t>(value + 0.5f);
    from += channels;
  }
  return grey;
}

}  // namespace lockstep::data
