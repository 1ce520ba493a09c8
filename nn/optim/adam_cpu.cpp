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

void nadam_cpu(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "NAdam",
                    [&]<typename T>() { update_runs<T, 2, NadamUpdate<compute_t<T>>>(plan.runs); });
}

void radam_cpu(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "RAdam",
                    [&]<typename T>() { update_runs<T, 2, RadamUpdate<compute_t<T>>>(plan.runs); });
}

void adamax_cpu(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "Adamax",
                    [&]<typename T>() { update_runs<T, 2, AdamaxUpdate<compute_t<T>>>(plan.runs); });
}

}  // namespace lockstep::optim::detail
