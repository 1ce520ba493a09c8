#include "lockstep/distributed/nccl/library.h"

#include "lockstep/core/cuda/dynamic_library.h"

namespace lockstep::distributed::nccl {

const Library& Library::get() {
  static const Library library = [] {
    cuda::DynamicLibrary& file = cuda::nccl_library();
    return Library{
        .get_version = LOCKSTEP_FUNCTION_OF(file, ncclGetVersion),
        .get_unique_id = LOCKSTEP_FUNCTION_OF(file, ncclGetUniqueId),
        .get_error_string = LOCKSTEP_FUNCTION_OF(file, ncclGetErrorString),
        .get_last_error = LOCKSTEP_FUNCTION_OF(file, ncclGetLastError),
        .comm_init_rank_config = LOCKSTEP_FUNCTION_OF(file, ncclCommInitRankConfig),
        .comm_finalize = LOCKSTEP_FUNCTION_OF(file, ncclCommFinalize),
        .comm_destroy = LOCKSTEP_FUNCTION_OF(file, ncclCommDestroy),
        .comm_abort = LOCKSTEP_FUNCTION_OF(file, ncclCommAbort),
        .comm_get_async_error = LOCKSTEP_FUNCTION_OF(file, ncclCommGetAsyncError),
        .group_start = LOCKSTEP_FUNCTION_OF(file, ncclGroupStart),
        .group_end = LOCKSTEP_FUNCTION_OF(file, ncclGroupEnd),
        .all_reduce = LOCKSTEP_FUNCTION_OF(file, ncclAllReduce),
        .reduce = LOCKSTEP_FUNCTION_OF(file, ncclReduce),
        .broadcast = LOCKSTEP_FUNCTION_OF(file, ncclBroadcast),
        .all_gather = LOCKSTEP_FUNCTION_OF(file, ncclAllGather),
        .reduce_scatter = LOCKSTEP_FUNCTION_OF(file, ncclReduceScatter),
        .send = LOCKSTEP_FUNCTION_OF(file, ncclSend),
        .recv = LOCKSTEP_FUNCTION_OF(file, ncclRecv),
    };
  }();
  return library;
}

std::string Library::obstacle() {
  return cuda::nccl_library().why_unavailable();
}

}  // namespace lockstep::distributed::nccl
