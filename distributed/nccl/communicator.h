#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/distributed/nccl/library.h"

namespace lockstep::distributed::nccl {

/// Note [Communicator]
/// A communicator of NCCL on one device, from any thread. It is non-blocking: no call waits for another rank, not even
/// the first collective, in which NCCL connects the ranks; what NCCL has been asked for is done on the host when
/// ncclCommGetAsyncError() says so, and that wait has a deadline, as every wait here. (A blocking communicator would
/// keep the calling thread inside NCCL while a rank is missing, where only an abort from another thread can reach it.)
///
/// NCCL does not lock a communicator: a poll by one thread may complete, and free, what another is waiting for. So each
/// call is made under one lock, which nobody holds while it waits.
///
/// ncclCommAbort() and ncclCommDestroy() wait until every captured graph that holds an operation of the communicator
/// has been destroyed. They run on a thread of their own, and the destructor waits for them no longer than `farewell`:
/// destroy graphs before the group. A communicator whose graphs live on is left to the end of the process.
class Communicator {
 public:
  /// Throws Error, with NCCL's words, if the ranks have not come together by the deadline.
  Communicator(ncclUniqueId id, int rank, int world_size, int device, Deadline deadline, Milliseconds farewell);
  /// Finalizes and destroys it if nothing has failed; else aborts.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Runs calls of NCCL as one group; `what` names them in errors. Throws Error if one fails, if NCCL has not taken
  /// them by the deadline, and once the communicator has been aborted.
  void group(const std::string& what, Deadline deadline, const std::function<void(ncclComm_t)>& calls);

  /// Within group(): throws Error unless `status` is success or "in progress".
  void check(ncclResult_t status, const char* call) const;

  /// What has gone wrong in the background; empty if nothing has.
  std::string async_error();
  /// Ends every kernel of the communicator, and every wait here at once. Does not wait; later calls do nothing.
  void abort() noexcept;

 private:
  struct State;

  void settle(const std::string& what, Deadline deadline);
  void end(ncclResult_t (*call)(ncclComm_t)) noexcept;

  std::shared_ptr<State> state_;  // shared with the thread that ends it
  Milliseconds farewell_;
};

}  // namespace lockstep::distributed::nccl
