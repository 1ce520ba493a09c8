#include "lockstep/distributed/parallel/lockstep_fingerprint.h"

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/fingerprint.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/arithmetic_hash.h"
#include "lockstep/distributed/process_group/disagreement.h"

namespace lockstep::distributed {

std::string lockstep_fingerprint(std::int64_t logical_shards, Device device) {
  if (cuda::portable()) device = Device();  // Note [Portable arithmetic]: the CPU's bits, whatever computes
  const std::string arithmetic = arithmetic_hash(device);  // opens the libraries that are then listed
  return fmt::format("{}{}; arithmetic {}; {} logical shards; seed {}", numeric_fingerprint(device.is_cuda()),
                     device.is_cuda() ? "; " + cuda::describe_arithmetic(device.index) : "", arithmetic.substr(0, 16),
                     logical_shards, initial_seed());
}

void check_fingerprint_agreement(const std::string& fingerprint, ProcessGroup& group) {
  static const OperationLabel label("what decides the bits of lockstep mode");
  const LabelScope scope(label);
  const auto found = find_disagreement(fingerprint, group);
  LOCKSTEP_CHECK(
      !found,
      "[lockstep] rank(s) {} cannot give the same bits as rank 0; rank 0 has \"{}\", rank {} has \"{}\"; use "
      "machines, builds and settings that are alike, or train without lockstep mode",
      found->ranks, found->of_rank0, found->other, found->of_other);
}

}  // namespace lockstep::distributed
