#include "lockstep/core/cuda/math_mode.h"

#include <atomic>

#include "lockstep/core/check.h"
#include "lockstep/core/computation.h"
#include "lockstep/core/environment.h"

namespace lockstep::cuda {
namespace {

std::atomic<bool>& tf32_flag() {
  static std::atomic<bool> flag = environment_flag("LOCKSTEP_ALLOW_TF32");
  return flag;
}

std::atomic<bool>& benchmark_flag() {
  static std::atomic<bool> flag = environment_flag("LOCKSTEP_CUDNN_BENCHMARK");
  return flag;
}

std::atomic<bool>& deterministic_flag() {
  static std::atomic<bool> flag = !benchmark_flag().load(std::memory_order_relaxed);
  return flag;
}

std::atomic<bool> portable_flag = false;

}  // namespace

bool allow_tf32() {
  return tf32_flag().load(std::memory_order_relaxed);
}
void set_allow_tf32(bool value) {
  Computation::settle_all();
  tf32_flag().store(value, std::memory_order_relaxed);
}
bool deterministic() {
  return deterministic_flag().load(std::memory_order_relaxed);
}
void set_deterministic(bool value) {
  Computation::settle_all();
  deterministic_flag().store(value, std::memory_order_relaxed);
}
bool benchmark() {
  return benchmark_flag().load(std::memory_order_relaxed) && !deterministic();
}
void set_benchmark(bool value) {
  Computation::settle_all();
  benchmark_flag().store(value, std::memory_order_relaxed);
}
bool portable() {
  return portable_flag.load(std::memory_order_relaxed);
}
void set_portable(bool value) {
  Computation::settle_all();
  portable_flag.store(value, std::memory_order_relaxed);
}
void require_not_portable(std::string_view what) {
  LOCKSTEP_CHECK(!portable(),
                 "{} on a CUDA device has no kernel with the CPU's bits; turn portable arithmetic off "
                 "(--lockstep-portable, cuda::set_portable), or compute on the CPU",
                 what);
}

}  // namespace lockstep::cuda
