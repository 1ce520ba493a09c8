#include "lockstep/core/checksum.h"

#include <fmt/core.h>

#include <bit>
#include <cstring>

namespace lockstep {
namespace {

constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15u;  // odd: multiplication by it can be undone

}  // namespace

// For a given word a lane goes to another value from each value, and for a given value to another for each word: a
// difference is never lost again.
void Checksum::mix(const unsigned char* block) {
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    std::uint64_t word = 0;
    std::memcpy(&word, block + lane * sizeof word, sizeof word);
    lanes_[lane] = std::rotl((lanes_[lane] ^ word) * kFactor, 29);
  }
}

void Checksum::update(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  bytes_ += bytes;
  for (; bytes >= kBlock; bytes -= kBlock, at += kBlock) mix(at);
  if (bytes == 0) return;
  unsigned char last[kBlock] = {};
  std::memcpy(last, at, bytes);
  mix(last);
}

std::uint64_t Checksum::value() const {
  std::uint64_t sum = bytes_ * kFactor;
  for (const std::uint64_t lane : lanes_) {
    sum = (sum ^ lane) * kFactor;
    sum ^= sum >> 32;
  }
  return sum;
}

std::string checksum_digits(const void* data, std::size_t bytes) {
  Checksum checksum;
  checksum.update(data, bytes);
  return fmt::format("{:016x}", checksum.value());
}

}  // namespace lockstep
