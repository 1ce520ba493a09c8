// NCCL for the emulated device: the functions that lockstep calls. See communicator.h.

#include "lockstep/emulated/nccl/nccl.h"

#include <cstdio>
#include <random>

#include "lockstep/distributed/nccl/library.h"

ncclResult_t ncclGetVersion(int* version) {
  *version = 0;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "/lockstep-emulated-%08x%08x", random(), random());
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclSystemError:
      return "unhandled system error";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return "";
}

namespace lockstep::distributed::nccl {

const Library& Library::get() {
  static const Library library{ncclGetVersion,
                               ncclGetUniqueId,
                               ncclGetErrorString,
                               ncclGetLastError,
                               ncclCommInitRankConfig,
                               ncclCommFinalize,
                               ncclCommDestroy,
                               ncclCommAbort,
                               ncclCommGetAsyncError,
                               ncclGroupStart,
                               ncclGroupEnd,
                               ncclAllReduce,
                               ncclReduce,
                               ncclBroadcast,
                               ncclAllGather,
                               ncclReduceScatter,
                               ncclSend,
                               ncclRecv};
  return library;
}

std::string Library::obstacle() {
  return {};
}

}  // namespace lockstep::distributed::nccl
