// Safetensors files: the header's length is put in front here unless the first byte is odd, so that mutations of the
// text stay a header. Every tensor of a file that is accepted can be read.

#include <algorithm>

#include "lockstep/core/tensor.h"
#include "lockstep/nn/safetensors.h"
#include "tests/fuzz/memory_file.h"

namespace {

using namespace lockstep;
using namespace lockstep::fuzz;

/// A file whose header goes to the first line feed of `rest`, or to its end.
std::string with_length(std::string_view rest) {
  std::string file;
  const std::uint64_t length = std::min(rest.find('\n'), rest.size());
  for (int i = 0; i < 8; ++i) file += static_cast<char>(length >> (8 * i) & 0xff);
  file += rest.substr(0, length);
  if (length < rest.size()) file += rest.substr(length + 1);
  return file;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const bool whole = input.byte() & 1;
  const std::string content = whole ? std::string(input.rest()) : with_length(input.rest());
  const MemoryFile memory(content);
  accepts([&] {
    const nn::SafetensorsFile file(memory.path());
    std::uint64_t next = 0;
    for (const nn::SafetensorsEntry& entry : file.entries()) {
      require(entry.offset + entry.bytes <= content.size() && entry.offset >= next);
      next = entry.offset + entry.bytes;
      const Tensor tensor = file.read(entry.name);
      require(tensor.nbytes() == entry.bytes && tensor.sizes() == entry.shape && tensor.dtype() == entry.dtype);
      require(std::equal(content.begin() + static_cast<std::ptrdiff_t>(entry.offset),
                         content.begin() + static_cast<std::ptrdiff_t>(next),
                         static_cast<const char*>(tensor.raw_data())));
    }
  });
  return 0;
}
