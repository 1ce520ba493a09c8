#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/distributed/nccl/library.h"

namespace lockstep::distributed::nccl {

/// A non-blocking communicator of NCCL on the present device. abort() may come from any thread; everything else from
/// one at a time.
class Communicator {
 public:
  /// Throws Error, with NCCL's words, if the ranks have not come together by the deadline.
  Communicator(ncclUniqueId id, int rank, int world_size, Deadline deadline);
  /// Finalizes and destroys it if nothing has failed, waiting no longer than a few seconds; else aborts.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Runs calls of NCCL as one group; `what` names them in errors. Throws Error if one fails or NCCL has not taken them
  /// by the deadline.
  void group(const std::string& what, Deadline deadline, const std::function<void(ncclComm_t)>& calls);

  /// Within group(): throws Error unless `status` is success or "in progress".
  void check(ncclResult_t status, const char* call) const;

  /// What has gone wrong in the background; empty if nothing has.
  std::string async_error();
  /// Ends every kernel of the communicator. Once; later calls do nothing.
  void abort() noexcept;

 private:
  void settle(const std::string& what, Deadline deadline);

  const Library& library_;
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> aborted_ = false;
};

}  // namespace lockstep::distributed::nccl
