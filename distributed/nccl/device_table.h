#pragma once

#include <string>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed::nccl {

/// Where a rank computes. Equal hosts and UUIDs are one device.
struct RankDevice {
  std::string host;  ///< NCCL_HOSTID, else what tells this machine's boot from others
  std::string uuid;  ///< "GPU-..."
  std::string name;  ///< "cuda:0, NVIDIA H100 80GB HBM3, on host node1"
};

RankDevice describe_device(int device);

/// Throws Error naming the first two ranks that share a device, and what to do.
void check_distinct(const std::vector<RankDevice>& by_rank);

/// Publishes this rank's device and checks everybody's, unless NCCL_MULTI_RANK_GPU_ENABLE=1. All ranks throw alike.
void compare_devices(Store& store, const ProcessGroupOptions& group, int device);

}  // namespace lockstep::distributed::nccl
