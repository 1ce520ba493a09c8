#include "tests/support/data_files.h"

#include <zlib.h>

#include <stdexcept>

#define STB_IMAGE_WRITE_IMPLEMENTATION
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wunused-function"
#include <stb/stb_image_write.h>
#pragma GCC diagnostic pop

namespace lockstep::testing {

Bytes gzip(const Bytes& bytes) {
  z_stream stream = {};
  if (deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2 failed");
  Bytes packed(deflateBound(&stream, static_cast<uLong>(bytes.size())) + 64);
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  const int status = deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) throw std::runtime_error("deflate failed");
  return packed;
}

void write_png(const std::filesystem::path& path, const data::Image& image) {
  std::filesystem::create_directories(path.parent_path());
  if (stbi_write_png(path.c_str(), static_cast<int>(image.width), static_cast<int>(image.height), image.channels,
                     image.pixels.data(), 0) == 0)
    throw std::runtime_error("cannot write " + path.string());
}

void write_jpeg(const std::filesystem::path& path, const data::Image& image) {
  std::filesystem::create_directories(path.parent_path());
  if (stbi_write_jpg(path.c_str(), static_cast<int>(image.width), static_cast<int>(image.height), image.channels,
                     image.pixels.data(), 95) == 0)
    throw std::runtime_error("cannot write " + path.string());
}

}  // namespace lockstep::testing
