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

void nadam_cuda(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "NAdam", [&]<typename T>() { update_runs<T, 2, NadamUpdate<compute_t<T>>>(plan); });
}

void radam_cuda(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "RAdam", [&]<typename T>() { update_runs<T, 2, RadamUpdate<compute_t<T>>>(plan); });
}

void adamax_cuda(const Optimizer::Plan& plan) {
  dispatch_floating(plan.dtype, "Adamax", [&]<typename T>() { update_runs<T, 2, AdamaxUpdate<compute_t<T>>>(plan); });
}

}  // namespace lockstep::optim::detail
