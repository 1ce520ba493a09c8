#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lockstep/core/shape.h"

namespace lockstep::data {

/// The content of an IDX file: unsigned bytes in row-major order.
struct IdxArray {
  Shape dims;                        ///< sizes, the outermost first
  std::vector<std::uint8_t> values;  ///< as many as dims.numel()
};

/// What a file must be like to be read.
struct IdxOptions {
  /// Number of dimensions the file must have; 0 accepts 1 to 8.
  int expected_dims = 0;
  /// Files that claim more content than this are refused.
  std::uint64_t max_bytes = std::uint64_t{8} << 30;
};

/// Reads an IDX file of unsigned bytes, raw or gzip (told apart by the first bytes, not by the name). Format: two zero
/// bytes, a type code (8: unsigned byte), the number of dimensions, each dimension as a big-endian 32-bit count, then
/// the values (yann.lecun.com/exdb/mnist).
///
/// No header field is believed before it is checked: a raw file must have exactly the size its header claims, and the
/// content of a gzip file takes memory only as it arrives. Throws Error that names file, offset, found and expected for
/// a missing or unreadable file, a wrong magic number, absurd dimensions, missing or extra bytes, and damaged gzip
/// data.
IdxArray read_idx(const std::filesystem::path& path, IdxOptions options = {});

}  // namespace lockstep::data
