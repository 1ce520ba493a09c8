#include "lockstep/emulated/core/faults.h"

#include <atomic>
#include <map>
#include <mutex>

namespace lockstep::cuda::emulated::faults {
namespace {

std::atomic<int> allocations_left{-1};
std::atomic<cudaError_t> sticky{cudaSuccess};

struct LateFault {
  int left;  // pieces of work before it
  cudaError_t error;
};
std::mutex mutex;               // of what follows
std::map<int, LateFault> late;  // by device
std::atomic<bool> any_late{false};

}  // namespace

void fail_allocation(int n) {
  allocations_left = n;
}

bool allocation_fails() {
  for (int left = allocations_left; left >= 0;) {
    if (left == 0) return true;
    if (allocations_left.compare_exchange_weak(left, left - 1)) return false;
  }
  return false;
}

void fail_device(cudaError_t error) {
  sticky = error;
  const std::lock_guard lock(mutex);
  late.clear();
  any_late = false;
}

void fail_work(int device, int n, cudaError_t error) {
  const std::lock_guard lock(mutex);
  late[device] = {n, error};
  any_late = true;
}

bool work_fails(int device) {
  if (!any_late) return false;
  const std::lock_guard lock(mutex);
  const auto found = late.find(device);
  if (found == late.end()) return false;
  if (found->second.left < 0) return true;
  return --found->second.left < 0;
}

cudaError_t device_error(int device) {
  if (any_late) {
    const std::lock_guard lock(mutex);
    const auto found = late.find(device);
    if (found != late.end() && found->second.left < 0) return found->second.error;
  }
  return sticky;
}

}  // namespace lockstep::cuda::emulated::faults
