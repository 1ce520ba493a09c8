#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// What a sample's labels are, on the host.
struct CtcSample {
  std::int64_t steps;                  ///< of its input
  std::vector<std::int64_t> extended;  ///< blank, label, blank, ..., blank
};

/// Losses [n] of log_probs [t, n, classes], contiguous, and, if it is defined, the gradient of each loss [t, n,
/// classes], which is exp(log_probs) before: that less the alignments' share, zero behind a sample's steps, and
/// NaN in them where the loss is not finite.
using CtcLossKernel = void(const Tensor& log_probs, const std::vector<CtcSample>& samples, const Tensor& losses,
                           const Tensor& gradient);
CtcLossKernel ctc_loss_cpu;

}  // namespace lockstep::detail
