#include "lockstep/nn/optim/rmsprop.h"
#include "lockstep/nn/optim/rprop_update.h"
#include "lockstep/nn/optim/step_kernel.cuh"

namespace lockstep::optim::detail {

void rprop_cuda(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "Rprop", [&]<typename T>() { update_runs<T, 2, RpropUpdate<compute_t<T>>>(plan); });
}

void asgd_cuda(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "ASGD", [&]<typename T>() { update_runs<T, 1, AsgdUpdate<compute_t<T>>>(plan); });
}

}  // namespace lockstep::optim::detail
