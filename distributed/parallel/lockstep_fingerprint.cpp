#include "lockstep/distributed/parallel/lockstep_fingerprint.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/random.h"
#include "lockstep/core/sha256.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/arithmetic_hash.h"

namespace lockstep::distributed {

std::string lockstep_fingerprint(std::int64_t logical_shards, Device device) {
  if (cuda::portable()) device = Device();  // Note [Portable arithmetic]: the CPU's bits, whatever computes
  const std::string arithmetic = arithmetic_hash(device);  // opens the libraries that are then listed
  return fmt::format("{}{}; arithmetic {}; {} logical shards; seed {}", numeric_fingerprint(device.is_cuda()),
                     device.is_cuda() ? "; " + cuda::describe_arithmetic(device.index) : "", arithmetic.substr(0, 16),
                     logical_shards, initial_seed());
}

void check_fingerprint_agreement(const std::string& fingerprint, ProcessGroup& group) {
  const int world = group.world_size();
  if (world == 1) return;
  static const OperationLabel label("what decides the bits of lockstep mode");
  const LabelScope scope(label);
  // Every rank's bytes, `length` of them.
  const auto gather = [&](const void* bytes, std::size_t count, std::int64_t length) {
    const Tensor mine = zeros({length}, {.dtype = kUInt8});
    const Tensor all = zeros({world, length}, {.dtype = kUInt8});
    std::memcpy(mine.raw_data(), bytes, count);
    group.all_gather(all, mine)->wait();
    std::vector<std::string> ranks;
    for (int r = 0; r < world; ++r)
      ranks.emplace_back(static_cast<const char*>(all.raw_data()) + r * length, static_cast<std::size_t>(length));
    return ranks;
  };
  const Sha256::Digest digest = sha256(fingerprint);
  const std::vector<std::string> digests = gather(digest.data(), digest.size(), std::ssize(digest));
  if (std::ranges::all_of(digests, [&](const std::string& each) { return each == digests.front(); })) return;

  // The texts themselves are of use to people only.
  const Tensor longest = tensor({static_cast<std::int64_t>(fingerprint.size())});
  group.all_reduce(longest, ReduceOp::max)->wait();
  const std::vector<std::string> texts =
      gather(fingerprint.data(), fingerprint.size(), std::max<std::int64_t>(1, longest.item<std::int64_t>()));
  const auto text_of = [&](int rank) { return std::string(texts[static_cast<std::size_t>(rank)].c_str()); };
  const std::string first = text_of(0);
  std::string differing;
  int example = -1;
  for (int r = 1; r < world; ++r) {
    if (digests[static_cast<std::size_t>(r)] == digests.front()) continue;
    if (example < 0) example = r;
    differing += fmt::format("{}{}", differing.empty() ? "" : ", ", r);
  }
  throw Error(fmt::format(
      "[lockstep] rank(s) {} cannot give the same bits as rank 0; rank 0 has \"{}\", rank {} has \"{}\"; use "
      "machines, builds and settings that are alike, or train without lockstep mode",
      differing, first, example, text_of(example)));
}

}  // namespace lockstep::distributed
