#include "distributed/process_group/meeting.h"

#include <string>
#include <vector>

#include "core/check.h"

namespace lockstep::distributed {

void meet(Store& store, const ProcessGroupOptions& group, std::string_view backend) {
  const auto key = [](int rank) { return "come/" + std::to_string(rank); };
  const std::int64_t times = store.add(key(group.rank), 1, group.timeout);
  LOCKSTEP_CHECK(times == 1,
                 "[{}] rank {} has come {} times: two processes have the same RANK, or {} is left over from an earlier "
                 "run",
                 backend, group.rank, times, store.describe());
  std::vector<std::string> keys;
  for (int r = 0; r < group.world_size; ++r) keys.push_back(key(r));
  try {
    store.wait(keys, group.timeout);
  } catch (const TimeoutError&) {
    std::string missing;
    for (int r = 0; r < group.world_size; ++r)
      if (!store.check({key(r)})) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    LOCKSTEP_CHECK(missing.empty(),
                   "[{}] of {} ranks, these did not come within {} ms: {}; start them, or correct WORLD_SIZE", backend,
                   group.world_size, group.timeout.count(), missing);
  }
}

}  // namespace lockstep::distributed
