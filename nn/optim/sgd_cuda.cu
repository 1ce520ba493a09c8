#include "lockstep/nn/optim/sgd.h"
#include "lockstep/nn/optim/sgd_update.h"
#include "lockstep/nn/optim/step_kernel.cuh"

namespace lockstep::optim::detail {

void sgd_cuda(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "SGD", [&]<typename T>() {
    using C = compute_t<T>;
    if (plan.form == kSgdPlain)
      update_runs<T, 0, SgdPlain<C>>(plan);
    else if (plan.form == kSgdNesterov)
      update_runs<T, 1, SgdMomentum<C, true>>(plan);
    else
      update_runs<T, 1, SgdMomentum<C, false>>(plan);
  });
}

}  // namespace lockstep::optim::detail
