#include "lockstep/nn/optim/adam.h"
#include "lockstep/nn/optim/adam_update.h"
#include "lockstep/nn/optim/step_kernel.cuh"

namespace lockstep::optim::detail {

void adam_cuda(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "Adam", [&]<typename T>() {
    if (plan.form == kAdamAmsgrad)
      update_runs<T, 3, AdamUpdate<compute_t<T>, true>>(plan);
    else
      update_runs<T, 2, AdamUpdate<compute_t<T>, false>>(plan);
  });
}

}  // namespace lockstep::optim::detail
