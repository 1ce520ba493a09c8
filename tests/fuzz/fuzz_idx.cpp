// IDX files, raw and gzip. The first byte says what the rest is: an even one, the file itself; an odd one, content that
// is packed here, since a fuzzer does not find checksums. Packed files are then damaged at one place or cut short, if
// the second byte says so.

#include <zlib.h>

#include "lockstep/data/idx.h"
#include "tests/fuzz/memory_file.h"

namespace {

using namespace lockstep;
using namespace lockstep::fuzz;

std::string pack(std::string_view content, int level) {
  z_stream stream{};
  require(deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  require(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string packed_file(Input& input) {
  const std::uint8_t change = input.byte();
  const std::uint8_t place = change ? input.byte() : 0;
  std::string packed = pack(input.rest(), change % 10);
  const std::size_t at = place % packed.size();
  if (change & 0x40) packed[at] = static_cast<char>(packed[at] ^ change);
  if (change & 0x80) packed.resize(packed.size() - at);
  return packed;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const std::uint8_t kind = input.byte();
  const std::string content = kind & 1 ? packed_file(input) : std::string(input.rest());
  const MemoryFile file(content);
  accepts([&] {
    const data::IdxArray array =
        data::read_idx(file.path(), {.expected_dims = kind >> 1 & 3, .max_bytes = std::uint64_t{16} << 20});
    std::uint64_t values = 1;
    for (const std::int64_t dim : array.dims) values *= static_cast<std::uint64_t>(dim);
    require(values == array.values.size());
  });
  return 0;
}
