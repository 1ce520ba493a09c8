#pragma once

// For .cpp files only.

#include <cstdint>
#include <span>
#include <string>

namespace lockstep::data {

/// Throws Error, naming the file, unless a PNG file is sound: chunks of the lengths they give, each with its CRC-32,
/// and image data that unfolds to as many bytes as width, height and format in the header ask for, with its Adler-32.
/// Takes no memory in proportion to the image. Does not look at the pixels' filters or at palettes.
void check_png(std::span<const std::uint8_t> bytes, const std::string& name);

}  // namespace lockstep::data
