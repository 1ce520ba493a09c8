#include "lockstep/core/dispatch.h"
#include "lockstep/nn/optim/rmsprop.h"
#include "lockstep/nn/optim/rprop_update.h"
#include "lockstep/nn/optim/run_loop.h"

namespace lockstep::optim::detail {

void rprop_cpu(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "Rprop",
                    [&]<typename T>() { update_runs<T, 2, RpropUpdate<compute_t<T>>>(plan.runs); });
}

void asgd_cpu(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "ASGD", [&]<typename T>() { update_runs<T, 1, AsgdUpdate<compute_t<T>>>(plan.runs); });
}

}  // namespace lockstep::optim::detail
