#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of cross_entropy().
struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;  ///< mean or sum over the samples, or each of them
  std::int64_t ignore_index = -100;       ///< targets of this value count for nothing
  double label_smoothing = 0.0;           ///< in [0, 1]: share of the target that is spread evenly over all classes
  Tensor weight = {};                     ///< [C], a factor for each class, of the input's dtype; takes no gradient
};

/// nll_loss(log_softmax(logits)) as one operation. Semantics of torch.nn.functional.cross_entropy (PyTorch >= 1.10)
/// with class indices: label smoothing, class weights and ignore_index combine as there.
///
/// `logits`: [C], [N, C] or [N, C, d1, ...], floating point. `target`: int64 class indices of shape [], [N] or
/// [N, d1, ...]. Returns target's shape for Reduction::none (0 where ignored), else a scalar; the mean divides by the
/// weights of the targets that count, so it is NaN if there are none.
///
/// A floating-point target of the logits' shape holds a probability for each class instead, and takes a gradient; it is
/// not checked that they add up to 1, the mean then divides by the number of samples, and ignore_index has no meaning.
/// Throws Error for shapes, dtypes or devices that
/// do not fit, and for a target outside [0, C) that is not ignore_index; on a CUDA device such a target makes the loss
/// NaN instead.
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& options = {});

}  // namespace lockstep
