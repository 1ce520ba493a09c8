#pragma once

#include <array>
#include <cstdint>

#if defined(__CUDACC__)
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif

namespace lockstep::philox {

/// Philox 4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
/// 1, 2, 3" (SC 2011). The same on host and device.
struct Key {
  std::uint32_t lo = 0;
  std::uint32_t hi = 0;
};
struct Block {
  std::uint32_t word[4];
};

/// Four 32-bit words for a 128-bit counter under a key.
LOCKSTEP_HOST_DEVICE inline Block generate(Key key, Block counter) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = static_cast<std::uint64_t>(0xD2511F53u) * counter.word[0];
    const std::uint64_t b = static_cast<std::uint64_t>(0xCD9E8D57u) * counter.word[2];
    counter = Block{{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ key.lo, static_cast<std::uint32_t>(b),
                     static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ key.hi, static_cast<std::uint32_t>(a)}};
    key.lo += 0x9E3779B9u;
    key.hi += 0xBB67AE85u;
  }
  return counter;
}

/// The block of words for elements 4*index .. 4*index+3.
LOCKSTEP_HOST_DEVICE inline Block generate(Key key, std::uint64_t index) {
  return generate(key, Block{{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0u, 0u}});
}

/// The word of one element.
LOCKSTEP_HOST_DEVICE inline std::uint32_t word_at(Key key, std::uint64_t element) {
  return generate(key, element >> 2).word[element & 3];
}

/// Uniform on [0, 1) with 24 bits: exactly representable, so the same on every device.
LOCKSTEP_HOST_DEVICE inline float to_uniform(std::uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

}  // namespace lockstep::philox
