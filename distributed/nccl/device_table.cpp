#include "lockstep/distributed/nccl/device_table.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/device.h"

namespace lockstep::distributed::nccl {
namespace {

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string host_identity() {
  if (const char* given = std::getenv("NCCL_HOSTID")) return given;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return host_name() + "/" + boot;
}

std::string key(int rank) {
  return "device/" + std::to_string(rank);
}

}  // namespace

RankDevice describe_device(int device) {
  return {host_identity(), cuda::device_uuid(device),
          fmt::format("cuda:{}, {}, on host {}", device, cuda::device_name(device), host_name())};
}

void check_distinct(const std::vector<RankDevice>& by_rank) {
  std::map<std::pair<std::string, std::string>, std::size_t> seen;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto [first, added] = seen.try_emplace({by_rank[rank].host, by_rank[rank].uuid}, rank);
    LOCKSTEP_CHECK(
        added,
        "[nccl] ranks {} and {} are both on {} ({}); start at most one process for each GPU "
        "(--nproc-per-node), or, to test with fewer, set NCCL_MULTI_RANK_GPU_ENABLE=1 (NCCL 2.30.3 and later) "
        "or a NCCL_HOSTID of its own for each rank",
        first->second, rank, by_rank[rank].uuid, by_rank[rank].name);
  }
}

void compare_devices(Store& store, const ProcessGroupOptions& group, int device) {
  const RankDevice own = describe_device(device);
  store.set(key(group.rank), own.host + "\n" + own.uuid + "\n" + own.name, group.timeout);
  std::vector<RankDevice> all;
  for (int rank = 0; rank < group.world_size; ++rank) {
    const std::string text = store.get(key(rank), group.timeout);
    const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
    LOCKSTEP_CHECK(first != std::string::npos && second != std::string::npos,
                   "[nccl] rank {} published a device that is not understood; are all ranks of one version?", rank);
    all.push_back({text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1)});
  }
  const char* allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (!allowed || std::string_view(allowed) != "1") check_distinct(all);
}

}  // namespace lockstep::distributed::nccl
