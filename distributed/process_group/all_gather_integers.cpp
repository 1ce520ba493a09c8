#include "lockstep/distributed/process_group/all_gather_integers.h"

#include "lockstep/core/factories.h"

namespace lockstep::distributed {

std::vector<std::int64_t> all_gather_integers(std::span<const std::int64_t> own, ProcessGroup& group) {
  const Tensor mine = tensor(std::vector<std::int64_t>(own.begin(), own.end()));
  const Tensor all = empty({mine.numel() * group.world_size()}, {.dtype = kInt64});
  group.all_gather(all, mine)->wait();
  return all.to_vector<std::int64_t>();
}

}  // namespace lockstep::distributed
