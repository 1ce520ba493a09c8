#include "lockstep/data/file_reader.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/input_file.h"

namespace lockstep::data {

namespace {

constexpr std::size_t kInputBytes = 64 * 1024;
// windowBits for inflateInit2: the largest window, gzip framing.
constexpr int kGzipWindow = 15 + 16;

}  // namespace

struct FileReader::Impl {
  explicit Impl(const std::filesystem::path& p) : Impl(p, open_input_file(p.string(), "")) {}
  Impl(const std::filesystem::path& p, InputFile opened)
      : path(p), file(std::move(opened.descriptor)), size(opened.size) {
    refill();
    compressed = available >= 2 && input[0] == 0x1f && input[1] == 0x8b;
    if (compressed) {
      const int status = ::inflateInit2(&stream, kGzipWindow);
      LOCKSTEP_CHECK(status == Z_OK, "cannot start decompressing '{}': zlib error {}", path.string(), status);
    }
  }
  ~Impl() {
    if (compressed) ::inflateEnd(&stream);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Reads the next bytes of the file into the empty input buffer; false at the end of the file.
  bool refill() {
    const std::int64_t count = read_all(file.get(), input.data(), input.size());
    LOCKSTEP_CHECK(count >= 0, "cannot read '{}' at byte {}: {}", path.string(), consumed, std::strerror(errno));
    position = 0;
    available = static_cast<std::size_t>(count);
    return count > 0;
  }

  void skip(std::size_t count) {
    position += count;
    available -= count;
    consumed += count;
  }

  std::size_t read_raw(std::span<std::uint8_t> out) {
    std::size_t filled = 0;
    while (filled < out.size() && (available > 0 || refill())) {
      const std::size_t count = std::min(available, out.size() - filled);
      std::memcpy(out.data() + filled, input.data() + position, count);
      filled += count;
      skip(count);
    }
    return filled;
  }

  std::size_t read_gzip(std::span<std::uint8_t> out) {
    std::size_t filled = 0;
    while (filled < out.size() && !at_end) {
      const bool ended = available == 0 && !refill();
      LOCKSTEP_CHECK(!ended,
                     "'{}': gzip data ends at byte {} (content offset {}), before its end mark and checksum: the file "
                     "is truncated; get it again",
                     path.string(), consumed, delivered + filled);
      constexpr std::size_t kStep = 1u << 30;  // zlib counts in 32 bits
      const std::size_t room = std::min(out.size() - filled, kStep);
      stream.next_in = input.data() + position;
      stream.avail_in = static_cast<uInt>(available);
      stream.next_out = out.data() + filled;
      stream.avail_out = static_cast<uInt>(room);
      const int status = ::inflate(&stream, Z_NO_FLUSH);
      skip(available - stream.avail_in);
      filled += room - stream.avail_out;
      if (status == Z_STREAM_END) {
        next_member(filled);
      } else {
        LOCKSTEP_CHECK(status == Z_OK || status == Z_BUF_ERROR,
                       "'{}': damaged gzip data before byte {} of {} (content offset {}): {}; get the file again",
                       path.string(), consumed, size, delivered + filled,
                       stream.msg != nullptr ? stream.msg : "zlib error");
      }
    }
    return filled;
  }

  // After a member's checksum: the file ends, or another member follows.
  void next_member(std::size_t filled) {
    if (available == 0 && !refill()) {
      at_end = true;
      return;
    }
    LOCKSTEP_CHECK(input[position] == 0x1f,
                   "'{}': {} bytes follow the end of the gzip data at byte {} (content offset {}); expected the end of "
                   "the file; get the file again",
                   path.string(), size - std::min(size, consumed), consumed, delivered + filled);
    ::inflateReset(&stream);
  }

  std::filesystem::path path;
  FileDescriptor file;
  std::uint64_t size;
  std::uint64_t consumed = 0;   // bytes of the file used so far
  std::uint64_t delivered = 0;  // bytes of content handed out
  std::array<std::uint8_t, kInputBytes> input;
  std::size_t position = 0;
  std::size_t available = 0;
  bool compressed = false;
  bool at_end = false;
  z_stream stream = {};
};

FileReader::FileReader(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
FileReader::~FileReader() = default;

std::size_t FileReader::read(std::span<std::uint8_t> out) {
  const std::size_t count = impl_->compressed ? impl_->read_gzip(out) : impl_->read_raw(out);
  impl_->delivered += count;
  return count;
}

const std::filesystem::path& FileReader::path() const {
  return impl_->path;
}
bool FileReader::compressed() const {
  return impl_->compressed;
}
std::uint64_t FileReader::file_size() const {
  return impl_->size;
}
std::uint64_t FileReader::offset() const {
  return impl_->delivered;
}

std::uint64_t FileReader::max_content() const {
  constexpr std::uint64_t kDeflateRatio = 1032;
  if (!impl_->compressed) return impl_->size;
  return impl_->size > UINT64_MAX / kDeflateRatio ? UINT64_MAX : impl_->size * kDeflateRatio;
}

}  // namespace lockstep::data
