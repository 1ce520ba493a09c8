#include "lockstep/distributed/parallel/reduction/communication_hook.h"

#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"

namespace lockstep::distributed {

ContinuedWork::ContinuedWork(WorkPtr first, std::function<WorkPtr()> then)
    : Work(first->description(), Milliseconds(0)), first_(std::move(first)), then_(std::move(then)) {}

void ContinuedWork::advance() {
  if (!first_) return;
  const WorkPtr first = std::exchange(first_, nullptr);
  try {
    first->wait();
    second_ = then_();
  } catch (...) {
    complete(std::current_exception());
    throw;
  }
  then_ = {};
  if (!second_) complete();
}

void ContinuedWork::wait(Milliseconds timeout) {
  advance();
  if (second_) {
    // The operations below have deadlines of their own; wait() without an argument leaves it to them.
    if (timeout.count() > 0)
      second_->wait(timeout);
    else
      second_->wait();
    second_.reset();
    complete();
  }
  if (const std::exception_ptr error = exception()) std::rethrow_exception(error);
}

WorkPtr continue_with(WorkPtr first, std::function<WorkPtr()> then) {
  LOCKSTEP_CHECK(first, "[continue_with] the first work is null");
  return std::make_shared<ContinuedWork>(std::move(first), std::move(then));
}

namespace {

class HalfCompression final : public CommunicationHook {
 public:
  explicit HalfCompression(DType dtype) : dtype_(dtype) {}

  bool is_replayable() const override { return true; }
  std::string name() const override { return dtype_ == kFloat16 ? "fp16" : "bf16"; }

  WorkPtr reduce(const GradientBucket& bucket, ProcessGroup& group) override {
    if (element_size(bucket.flat.dtype()) <= element_size(dtype_)) return group.all_reduce(bucket.flat, ReduceOp::avg);
    const NoGradGuard no_grad;
    if (bucket.flat.device().is_cpu()) {
      // The ranks' halves are added in float32, and their mean is rounded once.
      const Tensor small = cast_values(bucket.flat, dtype_);
      return continue_with(group.all_reduce(small, ReduceOp::avg), [small, flat = bucket.flat]() -> WorkPtr {
        copy_values(small, flat);
        return nullptr;
      });
    }
    // NCCL adds halves as halves. Divided by W before, small gradients would be lost below the type's range, and
    // divided after, large sums above it; so about half of it each. Both factors are known exactly.
    double before = 1.0;  // the largest power of two whose square is at most W
    while (4.0 * before * before <= group.world_size()) before *= 2.0;
    const double after = group.world_size() / before;
    if (before > 1.0) bucket.flat.mul_(1.0 / before);
    const Tensor small = cast_values(bucket.flat, dtype_);
    return continue_with(group.all_reduce(small), [small, after, flat = bucket.flat]() -> WorkPtr {
      const NoGradGuard no_grad;
      copy_values(small, flat);
      if (after > 1.0) flat.mul_(1.0 / after);
      return nullptr;
    });
  }

 private:
  DType dtype_;
};

}  // namespace

CommunicationHookPtr fp16_compression() {
  return std::make_shared<HalfCompression>(kFloat16);
}

CommunicationHookPtr bf16_compression() {
  return std::make_shared<HalfCompression>(kBFloat16);
}

}  // namespace lockstep::distributed
