// Collectives of blocks of different sizes.

#include <cstdint>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

WorkPtr ProcessGroup::all_gather_uneven(const Tensor& output, const Tensor& input,
                                        const std::vector<std::int64_t>& counts) {
  constexpr auto kind = OperationKind::all_gather_uneven;
  check_tensor(output, "output", kind);
  check_tensor(input, "input", kind);
  check_pair(output, "output", input, "input", kind);
  check_counts(output, "output", counts, kind);
  const std::int64_t own = counts[static_cast<std::size_t>(rank())];
  LOCKSTEP_CHECK(input.numel() == own, "[{}] input {} has {} elements; expected {}, the count of rank {}", name(kind),
                 to_string(input.sizes()), input.numel(), own, rank());
  return issue({.kind = kind, .input = input, .output = output, .output_counts = counts});
}

WorkPtr ProcessGroup::all_to_all_uneven(const Tensor& output, const Tensor& input,
                                        const std::vector<std::int64_t>& output_counts,
                                        const std::vector<std::int64_t>& input_counts) {
  constexpr auto kind = OperationKind::all_to_all_uneven;
  check_tensor(output, "output", kind);
  check_tensor(input, "input", kind);
  check_pair(output, "output", input, "input", kind);
  check_counts(output, "output", output_counts, kind);
  check_counts(input, "input", input_counts, kind);
  const auto me = static_cast<std::size_t>(rank());
  LOCKSTEP_CHECK(output_counts[me] == input_counts[me],
                 "[{}] rank {} gives itself {} elements and takes {}; expected as many", name(kind), rank(),
                 input_counts[me], output_counts[me]);
  check_apart(output, input, kind);
  return issue(
      {.kind = kind, .input = input, .output = output, .input_counts = input_counts, .output_counts = output_counts});
}

void ProcessGroup::check_counts(const Tensor& tensor, const char* what, const std::vector<std::int64_t>& counts,
                                OperationKind kind) const {
  LOCKSTEP_CHECK(std::cmp_equal(counts.size(), world_size()),
                 "[{}] {} count(s) are given for {}; expected one for each of {} ranks", name(kind), counts.size(),
                 what, world_size());
  std::int64_t left = tensor.numel();
  for (const std::int64_t count : counts) {
    LOCKSTEP_CHECK(count >= 0, "[{}] a count of {} is {}; expected 0 or more", name(kind), what, count);
    LOCKSTEP_CHECK(count <= left, "[{}] the counts of {} exceed its {} elements {}; expected them to add up to it",
                   name(kind), what, tensor.numel(), to_string(tensor.sizes()));
    left -= count;
  }
  LOCKSTEP_CHECK(left == 0, "[{}] {} {} has {} elements more than its counts; expected them to add up to it",
                 name(kind), what, to_string(tensor.sizes()), left);
}

}  // namespace lockstep::distributed
