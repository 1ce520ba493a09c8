#include "lockstep/data/png_check.h"

#include <zlib.h>

#include <array>
#include <string_view>

#include "lockstep/core/check.h"

// The format: ISO/IEC 15948, "Portable Network Graphics (PNG)"; names of chunks and fields are the standard's.

namespace lockstep::data {
namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::size_t kSignature = 8;
constexpr std::size_t kAround = 12;  // of a chunk: length, type and CRC

std::uint32_t number(Bytes at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

struct Header {
  std::uint64_t width, height;
  unsigned depth, colour;
  bool interlaced;
};

/// Bytes of `rows` x `columns` pixels: rows of whole bytes, each after a byte that names its filter.
std::uint64_t image_bytes(const Header& header, std::uint64_t columns, std::uint64_t rows) {
  constexpr std::array<unsigned, 7> kSamples = {1, 0, 3, 1, 2, 0, 4};  // by colour type
  if (columns == 0 || rows == 0) return 0;
  return rows * (1 + (columns * kSamples[header.colour] * header.depth + 7) / 8);
}

std::uint64_t image_bytes(const Header& header) {
  if (!header.interlaced) return image_bytes(header, header.width, header.height);
  // Adam7: seven images of every second, fourth or eighth pixel.
  struct Pass {
    std::uint64_t x, y, dx, dy;
  };
  constexpr std::array<Pass, 7> kPasses = {
      {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}};
  std::uint64_t bytes = 0;
  for (const Pass& pass : kPasses)
    bytes += image_bytes(header, (header.width + pass.dx - 1 - pass.x) / pass.dx,
                         (header.height + pass.dy - 1 - pass.y) / pass.dy);
  return bytes;
}

/// Unfolds image data to count it; zlib compares the Adler-32 at the end.
class Inflater {
 public:
  Inflater(std::uint64_t expected, const std::string& name) : expected_(expected), name_(name) {
    LOCKSTEP_CHECK(::inflateInit(&stream_) == Z_OK, "[image] '{}': zlib cannot start", name);
  }
  ~Inflater() { ::inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  void add(Bytes data) {
    std::array<std::uint8_t, 32 * 1024> out;
    stream_.next_in = const_cast<Bytef*>(data.data());
    stream_.avail_in = static_cast<uInt>(data.size());
    while (!ended_ && (stream_.avail_in > 0 || stream_.avail_out == 0)) {
      stream_.next_out = out.data();
      stream_.avail_out = static_cast<uInt>(out.size());
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      count_ += out.size() - stream_.avail_out;
      LOCKSTEP_CHECK(count_ <= expected_,
                     "[image] '{}': damaged: its data unfolds to more than the {} bytes that its header asks for",
                     name_, expected_);
      if (status == Z_BUF_ERROR) break;  // nothing left to do with this chunk
      LOCKSTEP_CHECK(status == Z_OK || status == Z_STREAM_END, "[image] '{}': damaged: {}", name_,
                     stream_.msg ? stream_.msg : "the compressed data cannot be unfolded");
      ended_ = status == Z_STREAM_END;
    }
    stream_.avail_out = 1;
  }

  void finish() const {
    LOCKSTEP_CHECK(
        ended_ && count_ == expected_,
        "[image] '{}': damaged or cut short: its data unfolds to {} of the {} bytes that its header asks for", name_,
        count_, expected_);
  }

 private:
  const std::uint64_t expected_;
  const std::string& name_;
  z_stream stream_ = {};
  std::uint64_t count_ = 0;
  bool ended_ = false;
};

Header read_header(Bytes data, std::string_view type, const std::string& name) {
  LOCKSTEP_CHECK(type == "IHDR" && data.size() == 13, "[image] '{}': damaged: it does not begin with a header", name);
  const Header header{number(data), number(data.subspan(4)), data[8], data[9], data[12] == 1};
  const bool depth =
      header.depth == 8 || (header.depth == 16 && header.colour != 3) ||
      ((header.depth == 1 || header.depth == 2 || header.depth == 4) && (header.colour == 0 || header.colour == 3));
  LOCKSTEP_CHECK(
      (header.colour == 0 || header.colour == 2 || header.colour == 3 || header.colour == 4 || header.colour == 6) &&
          depth && data[12] <= 1,
      "[image] '{}': damaged: no PNG has colour type {} with {} bits and interlace method {}", name, header.colour,
      header.depth, data[12]);
  return header;
}

}  // namespace

void check_png(Bytes bytes, const std::string& name) {
  const auto cut_short = [&](bool fits) {
    LOCKSTEP_CHECK(fits, "[image] '{}': damaged or cut short: a chunk ends after the file's {} bytes", name,
                   bytes.size());
  };
  Bytes rest = bytes.subspan(kSignature);
  const auto next = [&](Bytes& data) {
    cut_short(rest.size() >= kAround);
    const std::size_t length = number(rest);
    cut_short(length <= rest.size() - kAround);
    const Bytes checked = rest.subspan(4, 4 + length);
    const std::string_view type(reinterpret_cast<const char*>(checked.data()), 4);
    const auto crc = static_cast<std::uint32_t>(::crc32(0, checked.data(), static_cast<uInt>(checked.size())));
    LOCKSTEP_CHECK(crc == number(rest.subspan(8 + length)),
                   "[image] '{}': damaged: the CRC-32 of the chunk at offset {} does not match", name,
                   bytes.size() - rest.size());
    data = checked.subspan(4);
    rest = rest.subspan(kAround + length);
    return type;
  };
  Bytes data;
  const std::string_view first = next(data);
  Inflater inflater(image_bytes(read_header(data, first, name)), name);
  for (std::string_view type; type != "IEND";) {
    type = next(data);
    if (type == "IDAT") inflater.add(data);
  }
  inflater.finish();
}

}  // namespace lockstep::data
