#pragma once

// The JSON header of a safetensors file. For .cpp files only.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/nn/safetensors.h"

namespace lockstep::nn::detail {

/// The metadata key under which save_safetensors() keeps checksum_digits() of the header, with zeros for all digits
/// under this key, and of each tensor in the order of their bytes. The header is that of make_safetensors_header():
/// a reader makes it anew from what it has read, so that spaces or an order of keys that another program has changed
/// do not count, and every name, dtype, shape, place and string of the metadata does.
inline constexpr const char* kChecksumsKey = "lockstep.checksums";

/// Parses and checks a header against the number of data bytes that follow it. `base` is the data's offset in the file.
void parse_safetensors_header(const std::string& path, std::string_view json, std::uint64_t base,
                              std::uint64_t data_bytes, std::vector<SafetensorsEntry>& entries, Metadata& metadata);

/// The header, length prefix included, padded so that the data starts at a multiple of 8. Tensors lie behind one
/// another in the order given, wherever the entries say that they are.
std::string make_safetensors_header(const std::vector<NamedTensor>& tensors, const Metadata& metadata);
std::string make_safetensors_header(const std::vector<SafetensorsEntry>& entries, const Metadata& metadata);

/// Where the digits under kChecksumsKey begin in a header that was made here; npos: nowhere.
std::size_t place_of_checksums(std::string_view header);

/// Where save_safetensors() puts tensors, whose values need not be there.
struct SafetensorsLayout {
  std::vector<NamedTensor> ordered;    ///< as their bytes follow each other
  std::vector<std::uint64_t> offsets;  ///< of each in the file, and where it ends
  std::string header;                  ///< with zeros for the checksums
};
SafetensorsLayout lay_out_safetensors(const std::vector<NamedTensor>& tensors, const std::string& path,
                                      const Metadata& metadata);

}  // namespace lockstep::nn::detail
