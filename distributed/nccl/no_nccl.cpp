// Stands for the other files in a build without CUDA or NCCL.
#include "lockstep/core/check.h"
#include "lockstep/distributed/nccl/nccl.h"

namespace lockstep::distributed::nccl {

bool is_available() {
  return false;
}

std::string why_unavailable() {
  return "this build has no NCCL";
}

void add_executor(ProcessGroup&, const StorePtr&, Device) {
  LOCKSTEP_CHECK(false, "[nccl] this build has no NCCL; install its headers and configure with LOCKSTEP_CUDA=ON");
}

}  // namespace lockstep::distributed::nccl
