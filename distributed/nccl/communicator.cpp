#include "lockstep/distributed/nccl/communicator.h"

#include <thread>

#include "lockstep/core/check.h"

namespace lockstep::distributed::nccl {
namespace {

constexpr auto kPause = std::chrono::microseconds(100);
constexpr auto kFarewell = std::chrono::seconds(5);

}  // namespace

Communicator::Communicator(ncclUniqueId id, int rank, int world_size, Deadline deadline) : library_(Library::get()) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  check(library_.comm_init_rank_config(&comm_, world_size, id, rank, &config), "ncclCommInitRankConfig");
  try {
    settle("ncclCommInitRankConfig", deadline);
  } catch (...) {
    abort();
    throw;
  }
}

Communicator::~Communicator() {
  if (aborted_) return;
  try {
    check(library_.comm_finalize(comm_), "ncclCommFinalize");
    settle("ncclCommFinalize", deadline_in(kFarewell));
    aborted_ = true;
    library_.comm_destroy(comm_);
  } catch (const Error&) {
    abort();  // a rank is gone; what there was to do has been done
  }
}

void Communicator::check(ncclResult_t status, const char* call) const {
  if (status == ncclSuccess || status == ncclInProgress) return;
  const char* detail = library_.get_last_error(comm_);
  throw Error(fmt::format("{} failed: {}{}{}", call, library_.get_error_string(status), detail && *detail ? "; " : "",
                          detail ? detail : ""));
}

// Waits until NCCL has done, on the host, what it was asked for.
void Communicator::settle(const std::string& what, Deadline deadline) {
  for (;;) {
    LOCKSTEP_CHECK(!aborted_, "{}: the communicator was aborted", what);
    ncclResult_t state = ncclSuccess;
    check(library_.comm_get_async_error(comm_, &state), "ncclCommGetAsyncError");
    check(state, what.c_str());
    if (state == ncclSuccess) return;
    LOCKSTEP_CHECK(!has_passed(deadline), "{}: NCCL has not got ready by the deadline", what);
    std::this_thread::sleep_for(kPause);
  }
}

void Communicator::group(const std::string& what, Deadline deadline, const std::function<void(ncclComm_t)>& calls) {
  LOCKSTEP_CHECK(!aborted_, "{}: the communicator was aborted", what);
  check(library_.group_start(), "ncclGroupStart");
  try {
    calls(comm_);
  } catch (...) {
    library_.group_end();
    throw;
  }
  const ncclResult_t status = library_.group_end();
  check(status, what.c_str());
  if (status == ncclInProgress) settle(what, deadline);
}

std::string Communicator::async_error() {
  if (aborted_) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t status = library_.comm_get_async_error(comm_, &state);
  if (status != ncclSuccess) state = status;
  if (state == ncclSuccess || state == ncclInProgress) return {};
  const char* detail = library_.get_last_error(comm_);
  return fmt::format("NCCL: {}{}{}", library_.get_error_string(state), detail && *detail ? "; " : "",
                     detail ? detail : "");
}

void Communicator::abort() noexcept {
  if (aborted_.exchange(true)) return;
  if (comm_) library_.comm_abort(comm_);
}

}  // namespace lockstep::distributed::nccl
