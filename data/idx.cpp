#include "lockstep/data/idx.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "lockstep/core/check.h"
#include "lockstep/core/out_of_memory.h"
#include "lockstep/data/file_reader.h"

namespace lockstep::data {

namespace {

constexpr std::uint32_t kUnsignedByte = 0x08;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 48;  // keeps sums of sizes far from overflow
constexpr std::size_t kFirstChunk = std::size_t{4} << 20;

std::uint32_t read_word(FileReader& file, const char* what) {
  std::array<std::uint8_t, 4> bytes;
  const std::uint64_t at = file.offset();
  const std::size_t count = file.read(bytes);
  LOCKSTEP_CHECK(count == bytes.size(),
                 "[idx] '{}': content ends at offset {} inside the header; expected {} in 4 bytes at offset {}",
                 file.path().string(), at + count, what, at);
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
}

std::string expected_magic(int dims) {
  return dims > 0 ? fmt::format("{:#010x} (unsigned bytes, {} dimension{})", 0x0800 + dims, dims, dims == 1 ? "" : "s")
                  : std::string("0x00000801 to 0x00000808 (unsigned bytes, 1 to 8 dimensions)");
}

// Number of values, or limit + 1 where more than the limit are claimed.
std::uint64_t claimed_values(const Shape& dims, std::uint64_t limit) {
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  std::uint64_t total = 1;
  for (const std::int64_t dim : dims) {
    const auto factor = static_cast<std::uint64_t>(dim);
    if (total > limit / factor) return limit + 1;
    total *= factor;
  }
  return total;
}

// Memory grows with the data that arrives, at most doubling: a small file cannot make us take what it only claims.
std::vector<std::uint8_t> read_values(FileReader& file, std::size_t total, std::uint64_t header_bytes) {
  std::vector<std::uint8_t> values;
  std::size_t filled = 0;
  while (filled < total) {
    const std::size_t room = file.compressed() ? std::min(total, std::max(kFirstChunk, 2 * filled)) : total;
    values.resize(room);
    filled += file.read(std::span(values).subspan(filled));
    LOCKSTEP_CHECK(filled == room, "[idx] '{}': content ends at offset {}; expected {} bytes as the header says",
                   file.path().string(), header_bytes + filled, header_bytes + total);
  }
  return values;
}

IdxArray read(const std::filesystem::path& path, IdxOptions options) {
  LOCKSTEP_CHECK(options.expected_dims >= 0 && options.expected_dims <= Shape::kMaxDims,
                 "[idx] expected_dims must be 0 to {}, found {}", Shape::kMaxDims, options.expected_dims);
  options.max_bytes = std::min(options.max_bytes, kMostBytes);
  FileReader file(path);
  const std::string name = path.string();

  const std::uint32_t magic = read_word(file, "the magic number");
  const int dim_count = static_cast<int>(magic & 0xff);
  const bool dims_fit =
      options.expected_dims > 0 ? dim_count == options.expected_dims : dim_count >= 1 && dim_count <= Shape::kMaxDims;
  LOCKSTEP_CHECK(magic >> 8 == kUnsignedByte && dims_fit,
                 "[idx] '{}': magic number at offset 0 is {:#010x}; expected {}", name, magic,
                 expected_magic(options.expected_dims));

  IdxArray array;
  for (int d = 0; d < dim_count; ++d) array.dims.push_back(read_word(file, "a dimension"));

  const std::uint64_t header_bytes = file.offset();
  const std::uint64_t total = claimed_values(array.dims, options.max_bytes);
  LOCKSTEP_CHECK(total <= options.max_bytes,
                 "[idx] '{}': dimensions {} at offset 4 claim more than the limit of {} bytes; the file holds {} bytes",
                 name, to_string(array.dims), options.max_bytes, file.file_size());
  LOCKSTEP_CHECK(header_bytes + total <= file.max_content(),
                 "[idx] '{}': dimensions {} at offset 4 claim {} bytes of content; a file of {} bytes holds at most {}",
                 name, to_string(array.dims), header_bytes + total, file.file_size(), file.max_content());

  array.values = read_values(file, static_cast<std::size_t>(total), header_bytes);

  // Reading on also makes a gzip file verify its checksum.
  std::array<std::uint8_t, 1> extra;
  LOCKSTEP_CHECK(file.read(extra) == 0,
                 "[idx] '{}': content goes on after offset {}, where the dimensions {} say it ends; expected {} bytes",
                 name, header_bytes + total, to_string(array.dims), header_bytes + total);
  return array;
}

}  // namespace

IdxArray read_idx(const std::filesystem::path& path, IdxOptions options) {
  return with_memory_for(fmt::format("reading '{}'", path.string()), [&] { return read(path, options); });
}

}  // namespace lockstep::data
