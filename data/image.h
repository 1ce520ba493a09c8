#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// Pixels in rows from the top, channels together: pixel (row, column) has channel c at
/// pixels[(row * width + column) * channels + c]. 1 channel: grey, 2: grey and alpha, 3: RGB, 4: RGB and alpha.
struct Image {
  std::int64_t height = 0;           ///< rows
  std::int64_t width = 0;            ///< columns
  int channels = 0;                  ///< 1 to 4
  std::vector<std::uint8_t> pixels;  ///< height * width * channels bytes
};

/// What an image file may ask for; checked against its header before it is decoded.
struct ImageLimits {
  std::int64_t max_side = 16384;                            ///< of height and width
  std::int64_t max_pixels = std::int64_t{1} << 26;          ///< of height * width
  std::uint64_t max_file_bytes = std::uint64_t{256} << 20;  ///< of the file as it lies there
};

/// Decodes a PNG or JPEG file. `channels` 1, 3 or 4 converts (alpha is dropped or set to 255), 0 keeps what is there.
/// 16-bit files are reduced to 8 bits. Throws Error naming the file if it cannot be read, is no PNG or JPEG, is damaged
/// (a PNG: if one of its checksums does not match) or cut short, or exceeds the limits.
Image load_image(const std::filesystem::path& path, int channels = 0, const ImageLimits& limits = {});
/// The same from memory; `name` stands in the messages.
Image decode_image(std::span<const std::uint8_t> bytes, const std::string& name, int channels = 0,
                   const ImageLimits& limits = {});

/// Bilinear interpolation between pixel centres (half-pixel centres, edges repeated; PyTorch's align_corners=false).
Image resize_bilinear(const Image& image, std::int64_t height, std::int64_t width);
/// Each new pixel is the mean of the area it covers. For making images smaller.
Image resize_area(const Image& image, std::int64_t height, std::int64_t width);
/// One channel: 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), alpha ignored.
Image to_grey(const Image& image);

}  // namespace lockstep::data
