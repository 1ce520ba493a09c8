#include "lockstep/autograd/autograd_meta.h"

#include "lockstep/autograd/accumulate_grad.h"
#include "lockstep/core/check.h"
#include "lockstep/core/free_list.h"

namespace lockstep {

AutogradMeta::~AutogradMeta() {
  delete accumulator.load(std::memory_order_relaxed);
}

void* AutogradMeta::operator new(std::size_t bytes) {
  return FreeList<sizeof(AutogradMeta)>::allocate(bytes);
}
void AutogradMeta::operator delete(void* pointer) noexcept {
  FreeList<sizeof(AutogradMeta)>::release(pointer);
}

AutogradMeta& ensure_autograd_meta(const Tensor& tensor) {
  LOCKSTEP_ASSERT(tensor.defined(), "an undefined tensor takes no part in autograd");
  auto& slot = tensor.impl()->autograd;
  if (!slot) slot = std::make_unique<AutogradMeta>();
  return static_cast<AutogradMeta&>(*slot);
}

Edge gradient_edge(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  AutogradMeta* meta = autograd_meta(tensor);
  if (!meta) return {};
  if (meta->grad_fn) return {meta->grad_fn, meta->output_index};
  if (!meta->requires_grad) return {};
  AccumulateGrad* accumulator = meta->accumulator.load(std::memory_order_acquire);
  if (!accumulator) {
    auto made = std::make_unique<AccumulateGrad>(tensor.impl());
    // Another thread may be first; then `accumulator` becomes its node.
    if (meta->accumulator.compare_exchange_strong(accumulator, made.get(), std::memory_order_acq_rel))
      accumulator = made.release();
  }
  return accumulator->edge();
}

}  // namespace lockstep
