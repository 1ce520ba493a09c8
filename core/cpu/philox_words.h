#pragma once

// Philox in bulk on the CPU. For .cpp files only.

#include <cstdint>

#include "core/philox.h"

namespace lockstep::cpu {

/// Counters that philox_words() works on at a time.
inline constexpr int kPhiloxLanes = 64;
/// Words of one call: four for each counter.
inline constexpr int kPhiloxWords = 4 * kPhiloxLanes;

/// words[i] = philox::word_at(key, 4 * counter + i) for i < kPhiloxWords. Lanes are independent and the rounds are
/// unrolled, so that the compiler keeps eight counters at a time in vector registers.
inline void philox_words(philox::Key key, std::uint64_t counter, std::uint32_t* __restrict words) {
  std::uint32_t low[10], high[10];
  for (int r = 0; r < 10; ++r) {
    low[r] = key.lo + static_cast<std::uint32_t>(r) * 0x9E3779B9u;
    high[r] = key.hi + static_cast<std::uint32_t>(r) * 0xBB67AE85u;
  }
  alignas(64) std::uint32_t lane[4][kPhiloxLanes];
  for (int i = 0; i < kPhiloxLanes; ++i) {
    const std::uint64_t c = counter + static_cast<std::uint64_t>(i);
    std::uint32_t w0 = static_cast<std::uint32_t>(c), w1 = static_cast<std::uint32_t>(c >> 32), w2 = 0, w3 = 0;
#pragma GCC unroll 10
    for (int r = 0; r < 10; ++r) {
      const std::uint64_t a = static_cast<std::uint64_t>(0xD2511F53u) * w0;
      const std::uint64_t b = static_cast<std::uint64_t>(0xCD9E8D57u) * w2;
      w0 = static_cast<std::uint32_t>(b >> 32) ^ w1 ^ low[r];
      w1 = static_cast<std::uint32_t>(b);
      w2 = static_cast<std::uint32_t>(a >> 32) ^ w3 ^ high[r];
      w3 = static_cast<std::uint32_t>(a);
    }
    lane[0][i] = w0;
    lane[1][i] = w1;
    lane[2][i] = w2;
    lane[3][i] = w3;
  }
  for (int i = 0; i < kPhiloxLanes; ++i)
    for (int j = 0; j < 4; ++j) words[4 * i + j] = lane[j][i];
}

}  // namespace lockstep::cpu
