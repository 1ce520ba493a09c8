#include "lockstep/nn/optim/adam.h"
#include "lockstep/nn/optim/adam_update.h"
#include "lockstep/nn/optim/step_kernel.cuh"

namespace lockstep::optim::detail {

void adam_cuda(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "Adam", [&]<typename T>() { update_runs<T, 2, AdamUpdate<compute_t<T>>>(plan); });
}

}  // namespace lockstep::optim::detail
