#include "lockstep/core/dispatch.h"
#include "lockstep/nn/optim/run_loop.h"
#include "lockstep/nn/optim/sgd.h"
#include "lockstep/nn/optim/sgd_update.h"

namespace lockstep::optim::detail {

void sgd_cpu(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "SGD", [&]<typename T>() {
    using C = compute_t<T>;
    if (plan.form == kSgdPlain)
      update_runs<T, 0, SgdPlain<C>>(plan.runs);
    else if (plan.form == kSgdNesterov)
      update_runs<T, 1, SgdMomentum<C, true>>(plan.runs);
    else
      update_runs<T, 1, SgdMomentum<C, false>>(plan.runs);
  });
}

}  // namespace lockstep::optim::detail
