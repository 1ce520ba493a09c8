#include "lockstep/core/dispatch.h"
#include "lockstep/nn/optim/rmsprop.h"
#include "lockstep/nn/optim/rmsprop_update.h"
#include "lockstep/nn/optim/run_loop.h"

namespace lockstep::optim::detail {

void rmsprop_cpu(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "RMSprop", [&]<typename T>() {
    using C = compute_t<T>;
    if (plan.form == kRmspropPlain)
      update_runs<T, 1, RmspropUpdate<C, false, false>>(plan.runs);
    else if (plan.form == kRmspropMomentum)
      update_runs<T, 2, RmspropUpdate<C, false, true>>(plan.runs);
    else if (plan.form == kRmspropCentered)
      update_runs<T, 2, RmspropUpdate<C, true, false>>(plan.runs);
    else
      update_runs<T, 3, RmspropUpdate<C, true, true>>(plan.runs);
  });
}

void adagrad_cpu(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "Adagrad",
                    [&]<typename T>() { update_runs<T, 1, AdagradUpdate<compute_t<T>>>(plan.runs); });
}

void adadelta_cpu(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "Adadelta",
                    [&]<typename T>() { update_runs<T, 2, AdadeltaUpdate<compute_t<T>>>(plan.runs); });
}

}  // namespace lockstep::optim::detail
