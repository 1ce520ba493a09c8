#include "lockstep/emulated/core/faults.h"

#include <atomic>

namespace lockstep::cuda::emulated::faults {
namespace {

std::atomic<int> allocations_left{-1};
std::atomic<cudaError_t> sticky{cudaSuccess};

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
}

cudaError_t device_error() {
  return sticky;
}

}  // namespace lockstep::cuda::emulated::faults
