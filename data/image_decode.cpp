// The one file that holds stb_image. Only PNG and JPEG are compiled in: less code meets untrusted bytes.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "lockstep/core/check.h"
#include "lockstep/data/image.h"
#include "lockstep/data/png_check.h"

namespace {

// stb grows its buffer as compressed data unfolds, whatever the header said. No single block of a sound file needs more
// than this, so a decompression bomb ends as "out of memory" inside stb.
thread_local std::size_t t_block_limit = 0;

void* limited_malloc(std::size_t bytes) {
  return bytes <= t_block_limit ? std::malloc(bytes) : nullptr;
}
void* limited_realloc(void* old, std::size_t bytes) {
  return bytes <= t_block_limit ? std::realloc(old, bytes) : nullptr;
}

}  // namespace

#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_STATIC
#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_NO_STDIO
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_MALLOC(bytes) limited_malloc(bytes)
#define STBI_REALLOC(old, bytes) limited_realloc(old, bytes)
#define STBI_FREE(block) std::free(block)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#include <stb/stb_image.h>
#pragma GCC diagnostic pop

namespace lockstep::data {

namespace {

struct FreePixels {
  void operator()(stbi_uc* pixels) const { stbi_image_free(pixels); }
};

const char* failure() {
  const char* reason = stbi_failure_reason();
  return reason != nullptr ? reason : "no reason given";
}

bool starts_with(std::span<const std::uint8_t> bytes, std::initializer_list<std::uint8_t> magic) {
  return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
}

}  // namespace

Image decode_image(std::span<const std::uint8_t> bytes, const std::string& name, int channels,
                   const ImageLimits& limits) {
  LOCKSTEP_CHECK(channels == 0 || channels == 1 || channels == 3 || channels == 4,
                 "[image] channels must be 0 (as stored), 1, 3 or 4, found {}", channels);
  LOCKSTEP_CHECK(bytes.size() <= limits.max_file_bytes && bytes.size() <= INT32_MAX,
                 "[image] '{}': {} bytes; expected at most {}", name, bytes.size(), limits.max_file_bytes);
  LOCKSTEP_CHECK(starts_with(bytes, {0x89, 'P', 'N', 'G'}) || starts_with(bytes, {0xff, 0xd8, 0xff}),
                 "[image] '{}' is no PNG or JPEG file: its {} bytes start with neither's mark", name, bytes.size());

  const bool png = bytes[0] == 0x89;
  const auto length = static_cast<int>(bytes.size());
  int width = 0;
  int height = 0;
  int stored = 0;
  t_block_limit = std::size_t{16} << 20;
  LOCKSTEP_CHECK(stbi_info_from_memory(bytes.data(), length, &width, &height, &stored) != 0,
                 "[image] '{}': the header cannot be read: {}; expected a PNG or JPEG file", name, failure());
  LOCKSTEP_CHECK(width > 0 && height > 0 && width <= limits.max_side && height <= limits.max_side &&
                     std::int64_t{width} * height <= limits.max_pixels,
                 "[image] '{}': {} x {} pixels (height x width); expected sides of 1 to {} and at most {} pixels", name,
                 height, width, limits.max_side, limits.max_pixels);

  // stb compares neither checksum, and would take memory for whatever unfolds.
  if (png) check_png(bytes, name);

  // Four channels of 16 bits a pixel, padding of JPEG's blocks, a filter byte a row, and what stb's doubling adds.
  const auto pixels = static_cast<std::size_t>(width + 64) * static_cast<std::size_t>(height + 64);
  t_block_limit = 2 * (8 * pixels + bytes.size()) + (std::size_t{1} << 20);
  const std::unique_ptr<stbi_uc, FreePixels> decoded(
      stbi_load_from_memory(bytes.data(), length, &width, &height, &stored, channels));
  LOCKSTEP_CHECK(decoded != nullptr, "[image] '{}': damaged or cut short: {}; expected {} x {} pixels", name, failure(),
                 height, width);
  Image image{.height = height, .width = width, .channels = channels == 0 ? stored : channels, .pixels = {}};
  const std::size_t count =
      static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * static_cast<std::size_t>(image.channels);
  image.pixels.assign(decoded.get(), decoded.get() + count);
  return image;
}

}  // namespace lockstep::data
