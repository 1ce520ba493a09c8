#include "lockstep/core/dispatch.h"
#include "lockstep/nn/optim/adam.h"
#include "lockstep/nn/optim/adam_update.h"
#include "lockstep/nn/optim/run_loop.h"

namespace lockstep::optim::detail {

void adam_cpu(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "Adam", [&]<typename T>() {
    if (plan.form == kAdamAmsgrad)
      update_runs<T, 3, AdamUpdate<compute_t<T>, true>>(plan.runs);
    else
      update_runs<T, 2, AdamUpdate<compute_t<T>, false>>(plan.runs);
  });
}

}  // namespace lockstep::optim::detail
