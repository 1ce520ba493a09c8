#include "nn/optim/adam.h"
#include "nn/optim/adam_update.h"
#include "nn/optim/step_kernel.cuh"

namespace lockstep::optim::detail {

void adam_cuda(const Optimizer::Plan& plan) {
  cuda::dispatch_floating(plan.dtype, "Adam",
                          [&]<typename T>() { update_runs<T, 2, AdamUpdate<cuda::compute_t<T>>>(plan); });
}

}  // namespace lockstep::optim::detail
