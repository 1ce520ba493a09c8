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
  std::uint32_t lo = 0;  ///< lower 32 bits
  std::uint32_t hi = 0;  ///< upper 32 bits
};
/// What the generator counts with, and what it returns: four words.
struct Block {
  std::uint32_t word[4];  ///< the lowest first
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

/// The key of one draw; see Note [Random keys]. The stream shares a word with the step's upper half, of which 24 bits
/// count.
LOCKSTEP_HOST_DEVICE inline Key derive(Key seed, std::uint32_t stream, std::uint64_t step, std::uint32_t shard,
                                       std::uint32_t call) {
  const auto step_hi = static_cast<std::uint32_t>(step >> 32) & 0xffffffu;
  const Block block = generate(seed, Block{{static_cast<std::uint32_t>(step), stream << 24 | step_hi, shard, call}});
  return {block.word[0], block.word[1]};
}

/// A key, or what a kernel derives it from when the step is known on the device alone (Note [Random keys on devices]).
struct KeySource {
  Key key;                                        ///< if `device_step` is null
  const std::int64_t* device_step = nullptr;      ///< if set, the key is derived from the step that stands there
  Key seed = {};                                  ///< with device_step: see derive()
  std::uint32_t stream = 0, shard = 0, call = 0;  ///< see derive()

  LOCKSTEP_HOST_DEVICE Key get() const {
    return device_step ? derive(seed, stream, static_cast<std::uint64_t>(*device_step), shard, call) : key;
  }
};

}  // namespace lockstep::philox
