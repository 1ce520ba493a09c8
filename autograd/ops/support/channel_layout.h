#pragma once

#include <cstdint>

namespace lockstep {

/// A contiguous tensor seen as [batch, channels, inner].
struct ChannelLayout {
  std::int64_t batch = 0;
  std::int64_t channels = 0;
  std::int64_t inner = 1;
  std::int64_t count() const { return batch * inner; }
};

}  // namespace lockstep
