#pragma once

// For .cpp files only.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep {

/// A 64-bit checksum of a byte stream, faster than memory delivers it: for damage, not against those who mean it. A
/// change within one aligned word of 8 bytes always changes it, any other one with a probability of 1 - 2^-64.
class Checksum {
 public:
  /// Pieces of a multiple of kBlock bytes, but for the last one.
  void update(const void* data, std::size_t bytes);
  std::uint64_t value() const;

  static constexpr std::size_t kBlock = 32;

 private:
  static constexpr std::size_t kLanes = kBlock / sizeof(std::uint64_t);
  void mix(const unsigned char* block);

  std::array<std::uint64_t, kLanes> lanes_{1, 2, 3, 4};
  std::uint64_t bytes_ = 0;
};

/// Of bytes in one piece, as kChecksumDigits hexadecimal digits.
std::string checksum_digits(const void* data, std::size_t bytes);
inline constexpr std::size_t kChecksumDigits = 16;

}  // namespace lockstep
