#include "lockstep/distributed/parallel/lockstep_fingerprint.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/random.h"

namespace lockstep::distributed {

std::string lockstep_fingerprint(std::int64_t logical_shards) {
  return fmt::format("{}; {} logical shards; seed {}", numeric_fingerprint(), logical_shards, initial_seed());
}

void check_fingerprint_agreement(const std::string& fingerprint, ProcessGroup& group) {
  // In a field of fixed length, so that one collective will do.
  constexpr std::size_t kLength = 1024;
  const int world = group.world_size();
  if (world == 1) return;
  const Tensor mine = zeros({static_cast<std::int64_t>(kLength)}, {.dtype = kUInt8});
  const Tensor all = zeros({world, static_cast<std::int64_t>(kLength)}, {.dtype = kUInt8});
  std::memcpy(mine.raw_data(), fingerprint.data(), std::min(fingerprint.size(), kLength));
  static const OperationLabel label("what decides the bits of lockstep mode");
  const LabelScope scope(label);
  group.all_gather(all, mine)->wait();
  const auto text_of = [&](int rank) {
    const char* text = static_cast<const char*>(all.raw_data()) + static_cast<std::size_t>(rank) * kLength;
    return std::string(text, ::strnlen(text, kLength));
  };
  const std::string first = text_of(0);
  std::string differing;
  int example = -1;
  for (int r = 1; r < world; ++r) {
    if (text_of(r) == first) continue;
    if (example < 0) example = r;
    differing += fmt::format("{}{}", differing.empty() ? "" : ", ", r);
  }
  LOCKSTEP_CHECK(
      differing.empty(),
      "[lockstep] rank(s) {} cannot give the same bits as rank 0; rank 0 has \"{}\", rank {} has \"{}\"; use "
      "machines, builds and settings that are alike, or train without lockstep mode",
      differing, first, example, text_of(example));
}

}  // namespace lockstep::distributed
