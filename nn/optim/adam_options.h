#pragma once

// What the optimizers of Adam's family make of the options that they share. For .cpp files only.

#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/nn/optim/option_checks.h"

namespace lockstep::optim::detail {

/// Throws Error, naming `optimizer`, unless the decays and eps are such that steps are finite.
template <typename Options>
void check_adam_options(const char* optimizer, const Options& options) {
  for (const auto& [which, value] : {std::pair{"beta1", options.beta1}, {"beta2", options.beta2}})
    LOCKSTEP_CHECK(value >= 0.0 && value < 1.0, "[{}] expected 0 <= {} < 1, found {}", optimizer, which, value);
  for (const auto& [which, value] : {std::pair{"eps", options.eps}, {"weight_decay", options.weight_decay}})
    check_at_least_zero(optimizer, which, value);
}

/// The scalars of AdamMeans, in its order.
template <typename Options>
void put_adam_means(const Options& o, bool decoupled_weight_decay, double eps, double* out) {
  out[0] = decoupled_weight_decay ? 1.0 - o.lr * o.weight_decay : 1.0;
  out[1] = decoupled_weight_decay ? 0.0 : o.weight_decay;
  out[2] = o.beta1;
  out[3] = 1.0 - o.beta1;
  out[4] = o.beta2;
  out[5] = 1.0 - o.beta2;
  out[6] = eps;
}

}  // namespace lockstep::optim::detail
