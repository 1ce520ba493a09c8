#include "lockstep/core/kernel_table.h"

#include <atomic>

#include "lockstep/core/check.h"
#include "lockstep/core/computation.h"
#include "lockstep/core/environment.h"

namespace lockstep {
namespace {

std::atomic<bool>& reference_flag() {
  static std::atomic<bool> flag = environment_flag("LOCKSTEP_REFERENCE");
  return flag;
}

}  // namespace

bool reference_kernels() {
  return reference_flag().load(std::memory_order_relaxed);
}
void set_reference_kernels(bool value) {
  Computation::settle_all();
  reference_flag().store(value, std::memory_order_relaxed);
}

namespace detail {
void throw_no_kernel(const char* op, DeviceType device, DType dtype) {
  throw_error(fmt::format("[{}] has no {} kernel for {} tensors in this build", op, name(device), name(dtype)));
}
}  // namespace detail

}  // namespace lockstep
