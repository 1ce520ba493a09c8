#include "lockstep/distributed/parallel/workers/device_threads.h"

#include <optional>

#include "lockstep/autograd/anomaly.h"
#include "lockstep/core/check.h"
#include "lockstep/core/start_thread.h"

namespace lockstep::distributed {
namespace {

thread_local const DeviceThreads::Turn* innermost = nullptr;  // of those that this thread works for

}  // namespace

DeviceThreads::Turn::Turn(DeviceThreads& threads, const char* op) : threads_(threads), outer_(innermost) {
  for (const Turn* turn = outer_; turn; turn = turn->outer_)
    LOCKSTEP_CHECK(&turn->threads_ != &threads,
                   "[{}] expected a call from outside of the module, found one inside of a forward, a loss or a "
                   "backward that the same devices compute; call the module that is given there",
                   op);
  lock_ = std::unique_lock(threads.turns_);
  innermost = this;
}

DeviceThreads::Turn::~Turn() {
  innermost = outer_;
}

DeviceThreads::DeviceThreads(int devices) : errors_(static_cast<std::size_t>(devices)) {
  LOCKSTEP_ASSERT(devices > 0, "{} devices", devices);
  try {
    for (int device = 1; device < devices; ++device)
      threads_.push_back(start_thread("a device", [this, device] { serve(device); }));
  } catch (...) {
    stop();  // those that have begun
    throw;
  }
}

DeviceThreads::~DeviceThreads() {
  stop();
}

void DeviceThreads::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void DeviceThreads::run(const std::function<void(int)>& body) {
  const autocast::Settings settings;
  {
    std::lock_guard lock(mutex_);
    settings_ = &settings;
    turn_ = innermost;
    anomaly_ = AnomalyMode::enabled();
    for (std::exception_ptr& error : errors_) error = nullptr;
    body_ = &body;
    running_ = static_cast<int>(threads_.size());
    ++round_;
  }
  changed_.notify_all();
  call(0);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return running_ == 0; });
  body_ = nullptr;
  settings_ = nullptr;
  turn_ = nullptr;
  for (const std::exception_ptr& error : errors_)
    if (error) std::rethrow_exception(error);
}

void DeviceThreads::call(int device) {
  try {
    (*body_)(device);
  } catch (...) {
    errors_[static_cast<std::size_t>(device)] = std::current_exception();
  }
}

void DeviceThreads::call_as_caller(int device) {
  innermost = turn_;
  const autocast::Resume resume(*settings_);
  std::optional<AnomalyMode> anomaly;
  if (anomaly_) anomaly.emplace();
  call(device);
  innermost = nullptr;
}

void DeviceThreads::serve(int device) {
  std::uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || round_ != seen; });
      if (stopping_) return;
      seen = round_;
    }
    call_as_caller(device);
    {
      std::lock_guard lock(mutex_);
      --running_;
    }
    changed_.notify_all();
  }
}

}  // namespace lockstep::distributed
