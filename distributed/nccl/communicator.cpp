#include "lockstep/distributed/nccl/communicator.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/log.h"

namespace lockstep::distributed::nccl {
namespace {

// What NCCL has been asked for is mostly done in some microseconds; connecting takes long.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr auto kPause = std::chrono::microseconds(100);

// NCCL registers the buffers of a captured graph with the other ranks of the machine, by an exchange during the
// capture. Ranks need not capture at the same time: one may replay a graph, or run without, while another captures.
void allow_captures_apart() {
  static const int set = setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  static_cast<void>(set);
}

}  // namespace

struct Communicator::State {
  const Library& library = Library::get();
  int device = 0;
  ncclComm_t comm = nullptr;
  std::mutex calls;
  std::atomic<bool> aborted = false;

  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  bool ending = false;
  bool ended = false;
};

Communicator::Communicator(ncclUniqueId id, int rank, int world_size, int device, Deadline deadline,
                           Milliseconds farewell)
    : farewell_(farewell) {
  allow_captures_apart();
  state_ = std::make_shared<State>();
  state_->device = device;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  check(state_->library.comm_init_rank_config(&state_->comm, world_size, id, rank, &config), "ncclCommInitRankConfig");
  try {
    settle("ncclCommInitRankConfig", deadline);
  } catch (...) {
    abort();
    throw;
  }
}

Communicator::~Communicator() {
  if (!state_->aborted) {
    try {
      {
        const std::lock_guard lock(state_->calls);
        check(state_->library.comm_finalize(state_->comm), "ncclCommFinalize");
      }
      settle("ncclCommFinalize", deadline_in(farewell_));
      end(state_->library.comm_destroy);
    } catch (const Error&) {
      abort();  // a rank is gone, or a graph lives on; what there was to do has been done
    }
  }
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, farewell_, [this] { return state_->ended; }))
    logging::warn(
        "[nccl] the communicator of cuda:{} cannot be destroyed within {} ms, probably since a captured CUDA graph "
        "with "
        "its operations lives on; it is left to the end of the process. Destroy graphs before their process group",
        state_->device, farewell_.count());
}

void Communicator::check(ncclResult_t status, const char* call) const {
  if (status == ncclSuccess || status == ncclInProgress) return;
  const char* detail = state_->library.get_last_error(state_->comm);
  throw Error(fmt::format("{} failed: {}{}{}", call, state_->library.get_error_string(status),
                          detail && *detail ? "; " : "", detail ? detail : ""));
}

// Waits until NCCL has done, on the host, what it was asked for.
void Communicator::settle(const std::string& what, Deadline deadline) {
  const auto spin_until = std::chrono::steady_clock::now() + kSpin;
  for (;;) {
    LOCKSTEP_CHECK(!state_->aborted, "{}: the communicator was aborted", what);
    ncclResult_t state = ncclSuccess;
    {
      const std::lock_guard lock(state_->calls);
      check(state_->library.comm_get_async_error(state_->comm, &state), "ncclCommGetAsyncError");
      check(state, what.c_str());
    }
    if (state == ncclSuccess) return;
    LOCKSTEP_CHECK(!has_passed(deadline), "{}: NCCL has not got ready by the deadline", what);
    if (std::chrono::steady_clock::now() < spin_until)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kPause);
  }
}

void Communicator::group(const std::string& what, Deadline deadline, const std::function<void(ncclComm_t)>& calls) {
  ncclResult_t status = ncclSuccess;
  {
    const std::lock_guard lock(state_->calls);
    LOCKSTEP_CHECK(!state_->aborted, "{}: the communicator was aborted", what);
    check(state_->library.group_start(), "ncclGroupStart");
    try {
      calls(state_->comm);
    } catch (...) {
      state_->library.group_end();
      throw;
    }
    status = state_->library.group_end();
    check(status, what.c_str());
  }
  if (status == ncclInProgress) settle(what, deadline);
}

std::string Communicator::async_error() {
  const std::lock_guard lock(state_->calls);
  if (state_->aborted) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t status = state_->library.comm_get_async_error(state_->comm, &state);
  if (status != ncclSuccess) state = status;
  if (state == ncclSuccess || state == ncclInProgress) return {};
  const char* detail = state_->library.get_last_error(state_->comm);
  return fmt::format("NCCL: {}{}{}", state_->library.get_error_string(state), detail && *detail ? "; " : "",
                     detail ? detail : "");
}

void Communicator::abort() noexcept {
  if (!state_->aborted.exchange(true)) end(state_->library.comm_abort);
}

// Calls it on a thread of its own, which owns the state as long as it takes.
void Communicator::end(ncclResult_t (*call)(ncclComm_t)) noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    if (std::exchange(state_->ending, true)) return;
  }
  const auto body = [state = state_, call, farewell = farewell_] {
    try {
      // NCCL puts the thread's device back: it must not be GPU 0 where that is another rank's.
      const cuda::DeviceGuard guard(state->device);
      // Who is inside NCCL comes out, unless it hangs there, and who comes later sees that it was aborted.
      // Tried again and again, since the waits of std::timed_mutex are hidden from GCC 12's thread sanitizer.
      for (const Deadline deadline = deadline_in(farewell); !has_passed(deadline);) {
        if (std::unique_lock(state->calls, std::try_to_lock).owns_lock()) break;
        std::this_thread::sleep_for(kPause);
      }
      if (state->comm) call(state->comm);
    } catch (const Error&) {
      // The device itself has failed, which every call after the failure has said.
    }
    const std::lock_guard lock(state->mutex);
    state->ended = true;
    state->changed.notify_all();
  };
  try {
    std::thread(body).detach();
  } catch (const std::system_error&) {
    body();
  }
}

}  // namespace lockstep::distributed::nccl
