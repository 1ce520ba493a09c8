#include "lockstep/distributed/nccl/nccl_executor.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/log.h"
#include "lockstep/distributed/failure/group_failure.h"
#include "lockstep/distributed/nccl/device_table.h"
#include "lockstep/distributed/nccl/nccl.h"
#include "lockstep/distributed/process_group/meeting.h"

namespace lockstep::distributed::nccl {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);  // between two looks at what is under way
constexpr auto kPoll = std::chrono::microseconds(50);  // of a host that waits
constexpr Milliseconds kFarewell = std::chrono::seconds(5);

using Clock = std::chrono::steady_clock;

// Kernels are loaded when they are first launched, one at a time in a process, and the device does its work before.
// With ranks as threads that may be a collective which waits for the rank that wants to load.
void warn_of_lazy_loading(int device) {
  static std::mutex mutex;
  static int first = device;
  static bool told = false;
  const std::lock_guard lock(mutex);
  const char* loading = std::getenv("CUDA_MODULE_LOADING");
  if (device == first || told || (loading && std::string_view(loading) == "EAGER")) return;
  told = true;
  logging::warn(
      "[nccl] this process has ranks on cuda:{} and cuda:{}, and CUDA loads each kernel at its first launch, for which "
      "a rank may wait until its collectives end while another waits to load: set CUDA_MODULE_LOADING=EAGER before "
      "the process starts, or use a process for each rank",
      first, device);
}

template <typename Take>
void for_each_tensor(const Operation& operation, Take&& take) {
  for (const Tensor* each : {&operation.input, &operation.output, &operation.divisor})
    if (each->defined()) take(*each);
  for (const std::vector<Tensor>* list : {&operation.inputs, &operation.outputs})
    for (const Tensor& each : *list) take(each);
}

ncclUniqueId exchange_id(Store& store, const ProcessGroupOptions& group) {
  ncclUniqueId id{};
  if (group.rank == 0) {
    const ncclResult_t status = Library::get().get_unique_id(&id);
    LOCKSTEP_CHECK(status == ncclSuccess, "ncclGetUniqueId failed: {}", Library::get().get_error_string(status));
    store.set("id", std::string_view(id.internal, sizeof(id.internal)), group.timeout);
    return id;
  }
  const std::string bytes = get_from(store, group, "nccl", 0, "id");
  LOCKSTEP_CHECK(bytes.size() == sizeof(id.internal), "[nccl] rank 0 published an id of {} bytes; expected {}",
                 bytes.size(), sizeof(id.internal));
  std::copy(bytes.begin(), bytes.end(), id.internal);
  return id;
}

}  // namespace

/// wait() makes the caller's stream wait. It is complete when the watchdog has seen the event.
class NcclExecutor::NcclWork final : public Work {
 public:
  NcclWork(std::string description, Milliseconds default_wait, int device, bool host_waits,
           std::shared_ptr<GroupFailure> failure)
      : Work(std::move(description), default_wait),
        device_(device),
        done_(device),
        host_waits_(host_waits),
        failure_(std::move(failure)) {}

  void wait(Milliseconds timeout) override {
    throw_failure();
    if (!host_waits_) return cuda::Stream::current(device_).wait(done_);
    const Deadline deadline = deadline_in(timeout);
    while (!is_completed()) {
      if (has_passed(deadline))
        throw TimeoutError(fmt::format("[Work] {} has not ended within {} ms", description(), timeout.count()));
      std::this_thread::sleep_for(kPoll);
    }
    throw_failure();
  }
  bool is_completed() override { return Work::is_completed() || has_succeeded(); }

  // An event that is done says nothing once the communicator has been aborted, which ends kernels half way.
  bool has_succeeded() { return done_.is_done() && !failure_->failing(); }

  const int device_;
  cuda::Event done_;
  const bool host_waits_;

 private:
  void throw_failure() {
    if (Work::is_completed() && !exception()) return;
    if (failure_->failing()) std::rethrow_exception(failure_->fail({}));
  }

  const std::shared_ptr<GroupFailure> failure_;  // a Work may outlive the group
};

struct NcclExecutor::Pending {
  Operation operation;
  std::uint64_t record;
  bool recorded;  // false: a launched graph, of which the recorder knows nothing
  std::shared_ptr<NcclWork> work;
  cuda::Event begun;
  bool started = false;
  Clock::time_point started_at{};
};

NcclExecutor::NcclExecutor(ProcessGroup& group, Store& store, Device device)
    : Executor(group), failure_(group.failure()), device_(device), stream_([&] {
        cuda::require_device(device.index);
        return cuda::Stream::from_pool(device.index, /*high_priority=*/true);
      }()) {
  LOCKSTEP_CHECK(failure_, "[nccl] needs a group of ranks that talk; found one that is alone");
  warn_of_lazy_loading(device.index);
  meet(store, group.options(), "nccl");
  compare_devices(store, group.options(), device.index);
  const ncclUniqueId id = exchange_id(store, group.options());
  const cuda::DeviceGuard guard(device.index);
  communicator_ = std::make_unique<Communicator>(id, group.rank(), group.world_size(), device.index, deadline(),
                                                 std::min(kFarewell, group.timeout()));
  barrier_value_ = zeros({1}, {.device = device});
  cuda::Stream::current(device.index).synchronize();
  watchdog_ = std::thread([this] { watch_pending(); });
}

NcclExecutor::~NcclExecutor() {
  NcclExecutor::stop();
}

void NcclExecutor::abort() {
  const std::lock_guard lock(abort_mutex_);
  if (communicator_) communicator_->abort();
}

void NcclExecutor::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  std::unique_ptr<Communicator> last;
  {
    const std::lock_guard lock(abort_mutex_);
    last = std::move(communicator_);
  }
  try {
    const cuda::DeviceGuard guard(device_.index);
    last.reset();
  } catch (const Error&) {
    // The device itself has failed, which every call after the failure has said.
  }
}

void NcclExecutor::check(const Tensor& tensor, OperationKind kind) const {
  LOCKSTEP_CHECK(tensor.device() == device_,
                 "[{}] this rank's nccl group works on {} and the CPU; found a tensor on {}", name(kind),
                 to_string(device_), to_string(tensor.device()));
  LOCKSTEP_CHECK(tensor.dtype() != kBool || is_point_to_point(kind) || kind == OperationKind::broadcast ||
                     kind == OperationKind::all_gather,
                 "[{}] NCCL does not reduce bool tensors; cast to uint8", name(kind));
}

void NcclExecutor::check_reduction(ReduceOp op, OperationKind kind) const {
  LOCKSTEP_CHECK(
      !is_bitwise(op),
      "[{}] NCCL has no bitwise reductions, found {}; reduce a tensor on the CPU, or flags as uint8 with min "
      "(and) or max (or)",
      name(kind), name(op));
}

Deadline NcclExecutor::deadline() const {
  return deadline_in(group_.timeout());
}

std::unique_ptr<Executor> NcclExecutor::split(const SplitGroup& part) {
  LOCKSTEP_CHECK(part.store, "[nccl] a group is split by ranks that meet in a store; found none");
  return std::make_unique<NcclExecutor>(part.group, *part.store, device_);
}

// From the first moment of a failure, before anybody knows its cause: what is on the device then may be garbage.
void NcclExecutor::throw_if_failed() const {
  if (failure_->failing()) std::rethrow_exception(failure_->fail({}));
}

// On stream_, which is the current one. NCCL connects the ranks in their first operation: one that is missing shows in
// this call, and no watchdog has seen the operation yet.
void NcclExecutor::issue(const Operation& operation, std::uint64_t record, bool capturing) {
  PeerMonitor* const monitor = failure_->monitor();
  if (!std::exchange(connected_, true) && monitor && !is_point_to_point(operation.kind))
    monitor->collective_started(info_of(operation), fingerprint(operation));
  try {
    issue_on_stream(operation);
  } catch (const Error& error) {
    if (capturing && !failure_->failing()) throw;  // the capture is given up, and nothing else
    group_.recorder().started(record);
    group_.recorder().finished(record, false);
    std::rethrow_exception(failure_->fail({describe(operation), error.what(), -1}));
  }
}

WorkPtr NcclExecutor::launch(Operation operation, std::uint64_t record) {
  throw_if_failed();
  const std::lock_guard launching(launch_mutex_);
  const cuda::DeviceGuard guard(device_.index);
  const cuda::Stream compute = cuda::Stream::current(device_.index);
  const bool capturing = compute.is_capturing();
  const bool barrier = operation.kind == OperationKind::barrier;
  LOCKSTEP_CHECK(!barrier || !capturing, "[barrier] the host cannot wait while a CUDA graph is captured");
  auto work = std::make_shared<NcclWork>(describe(operation), 3 * group_.timeout(), device_.index, barrier, failure_);
  cuda::Event ready(device_.index), begun(device_.index);
  ready.record(compute);
  stream_.wait(ready);
  {
    const cuda::StreamGuard here(stream_);
    if (!capturing) begun.record(stream_);
    issue(operation, record, capturing);
    work->done_.record(stream_);
  }
  if (capturing) {
    for_each_tensor(operation, [this](const Tensor& used) { captured_.push_back(used); });
    group_.recorder().started(record);
    group_.recorder().finished(record, true);  // it is part of the graph now
    return work;
  }
  for_each_tensor(operation, [this](const Tensor& used) { cuda::record_stream(used, stream_); });
  {
    const std::lock_guard lock(mutex_);
    pending_.push_back({std::move(operation), record, true, work, std::move(begun)});
  }
  changed_.notify_all();
  return work;
}

WorkPtr NcclExecutor::watch(std::string_view what, const std::function<void()>& launch) {
  throw_if_failed();
  const cuda::DeviceGuard guard(device_.index);
  const cuda::Stream compute = cuda::Stream::current(device_.index);
  auto work = std::make_shared<NcclWork>(std::string(what), 3 * group_.timeout(), device_.index, false, failure_);
  cuda::Event begun(device_.index);
  begun.record(compute);
  launch();
  work->done_.record(compute);
  bool first;
  {
    const std::lock_guard lock(mutex_);
    first = pending_.empty();
    pending_.push_back({{}, 0, false, work, std::move(begun)});
  }
  // Else the watchdog looks soon enough: it need not be woken by each of the replays that follow one another.
  if (first) changed_.notify_all();
  return work;
}

void NcclExecutor::watch_pending() {
  const cuda::DeviceGuard guard(device_.index);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (pending_.empty()) {
      if (stop_) return;
      changed_.wait(lock);
      continue;
    }
    Pending& front = pending_.front();  // a deque keeps it where it is
    lock.unlock();
    const bool ended = look_at(front);
    lock.lock();
    if (ended)
      pending_.pop_front();
    else
      changed_.wait_for(lock, stop_ ? std::chrono::milliseconds(1) : std::chrono::milliseconds(kLook));
  }
}

// True when it has ended, well or badly.
bool NcclExecutor::look_at(Pending& pending) {
  GroupFailure& failure = *failure_;
  PeerMonitor* const monitor = failure.monitor();
  const bool collective = pending.recorded && !is_point_to_point(pending.operation.kind);
  std::exception_ptr error;
  try {
    error = failure.failing() ? failure.fail({}) : nullptr;
    if (!error && !pending.started && pending.begun.is_done()) {
      pending.started = true;
      pending.started_at = Clock::now();
      if (pending.recorded) group_.recorder().started(pending.record);
      if (monitor && collective)
        monitor->collective_started(info_of(pending.operation), fingerprint(pending.operation));
      if (monitor && pending.recorded && !collective) monitor->point_to_point_started(info_of(pending.operation));
    }
    if (!error) {
      if (pending.work->has_succeeded()) {
        if (monitor && collective) monitor->collective_ended();
        if (pending.recorded) group_.recorder().finished(pending.record, true);
        pending.operation = {};
        pending.work->complete();
        return true;
      }
      if (failure.failing()) return false;  // since a moment ago; the next look gets the error
      std::string cause = communicator_->async_error();
      if (cause.empty() && pending.started && Clock::now() - pending.started_at > group_.timeout())
        cause = fmt::format("it has not ended on {} within {} ms", to_string(device_), group_.timeout().count());
      if (cause.empty()) return false;
      error = failure.fail({pending.work->description(), cause, -1});
    }
  } catch (const std::exception& exception) {
    // The device itself: an event cannot be asked any more.
    error = failure.fail({pending.work->description(), exception.what(), -1});
  }
  if (pending.recorded) group_.recorder().finished(pending.record, false);
  pending.work->complete(error);
  return true;
}

bool is_available() {
  return true;
}

std::string why_unavailable() {
  if (!cuda::is_available()) return cuda::why_unavailable();
  return Library::obstacle();
}

void add_executor(ProcessGroup& group, const StorePtr& store, Device device) {
  LOCKSTEP_CHECK(store, "[nccl] needs a store to meet the other ranks; found none");
  group.add(kCUDA, std::make_unique<NcclExecutor>(group, *store, device));
}

}  // namespace lockstep::distributed::nccl
