#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// Losses that compare two tensors element by element. Unless said otherwise both have one floating-point dtype and
// device and are differentiable, shapes broadcast, and semantics are those of torch.nn.functional.

/// Options of mse_loss().
struct MseLossOptions {
  Reduction reduction = Reduction::mean;  ///< mean or sum over the elements, or all of them
};

/// (input - target)^2, kept by element, averaged over all elements or summed. Differentiable in both arguments.
/// Shapes broadcast, as in PyTorch, which warns of it: a target of [N] against an input of [N, 1] compares all pairs.
/// Throws Error for shapes that do not broadcast, differing dtypes or devices, and dtypes that are not floating point.
Tensor mse_loss(const Tensor& input, const Tensor& target, MseLossOptions options = {});
/// The same with the reduction alone, as l1_loss() takes it.
template <std::same_as<Reduction> R>
Tensor mse_loss(const Tensor& input, const Tensor& target, R reduction) {
  return mse_loss(input, target, MseLossOptions{reduction});
}

/// Options of bce_with_logits().
struct BceWithLogitsOptions {
  Reduction reduction = Reduction::mean;  ///< mean or sum over the elements, or all of them
  Tensor weight = {};                     ///< a factor for each element; broadcasts to the input; takes no gradient
  Tensor pos_weight = {};  ///< a factor for the positive part, usually [C]; broadcasts to the input; takes no gradient
};

/// Binary cross-entropy of sigmoid(input) against targets in [0, 1], stable for any input:
///   weight * ((1 - t) * x + (1 + (pos_weight - 1) * t) * log(1 + exp(-x)))
/// Semantics of torch.nn.functional.binary_cross_entropy_with_logits. Differentiable in input and target. Throws Error
/// unless both have the same shape, floating-point dtype and device.
Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target,
                                        const BceWithLogitsOptions& options = {});
/// The same with its options in the order of binary_cross_entropy(); a factor may be undefined.
inline Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target, const Tensor& weight,
                                               Reduction reduction, const Tensor& pos_weight = {}) {
  return binary_cross_entropy_with_logits(input, target, {reduction, weight, pos_weight});
}

/// |input - target|; its gradient where they are equal is 0.
Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);
/// d^2 / (2 beta) where |d| = |input - target| < beta, |d| - beta / 2 elsewhere. Girshick, "Fast R-CNN" (2015). Throws
/// Error for a negative beta; 0 is l1_loss().
Tensor smooth_l1_loss(const Tensor& input, const Tensor& target, double beta = 1.0,
                      Reduction reduction = Reduction::mean);
/// beta = delta times smooth_l1_loss(). Huber, "Robust estimation of a location parameter" (1964). Throws Error unless
/// delta > 0.
Tensor huber_loss(const Tensor& input, const Tensor& target, double delta = 1.0, Reduction reduction = Reduction::mean);
/// -(t log(x) + (1 - t) log(1 - x)) for probabilities x, with logarithms of at least -100; on the CPU an x outside
/// [0, 1] throws Error. `weight`, a factor for each element, may be undefined. Shapes must be equal.
Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, const Tensor& weight = {},
                            Reduction reduction = Reduction::mean);

// Composed of other operations:

/// t (log(t) - input) for logarithms `input` of probabilities, 0 where t is; with `log_target` the target is a
/// logarithm too.
Tensor kl_div(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean,
              bool log_target = false);
/// The same by PyTorch's words for the reduction: "none", "mean", "sum" or "batchmean", the sum divided by the size of
/// dimension 0, which is the divergence. Throws Error for others.
Tensor kl_div(const Tensor& input, const Tensor& target, std::string_view reduction, bool log_target = false);
/// max(0, -target (a - b) + margin), target 1 or -1.
Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target, double margin = 0.0,
                           Reduction reduction = Reduction::mean);
/// x where target is 1, max(0, margin - x) where it is -1.
Tensor hinge_embedding_loss(const Tensor& input, const Tensor& target, double margin = 1.0,
                            Reduction reduction = Reduction::mean);
/// log(1 + exp(-target input)), target 1 or -1.
Tensor soft_margin_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);
/// 1 - cosine_similarity(a, b) where target [N] is 1, max(0, cosine_similarity - margin) where it is -1.
Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target, double margin = 0.0,
                             Reduction reduction = Reduction::mean);
/// max(0, |anchor - positive| - |anchor - negative| + margin) with pairwise_distance() of the given order. Schroff,
/// Kalenichenko and Philbin, "FaceNet" (2015). `swap` takes the nearer of negative's distances to the other two.
Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative, double margin = 1.0,
                           double order = 2.0, double eps = 1e-6, bool swap = false,
                           Reduction reduction = Reduction::mean);
/// (log(var) + (input - target)^2 / var) / 2, with variances of at least eps. var has input's sizes, or these with
/// some 1, or all but the last (one variance a row). `full` adds the density's constant, log(2 pi) / 2.
Tensor gaussian_nll_loss(const Tensor& input, const Tensor& target, const Tensor& var, double eps = 1e-6,
                         Reduction reduction = Reduction::mean, bool full = false);
/// exp(input) - target * input, or, without `log_input`, input - target * log(input + eps). `full` adds Stirling's
/// approximation of log(target!) where the target is above 1.
Tensor poisson_nll_loss(const Tensor& input, const Tensor& target, bool log_input = true, double eps = 1e-8,
                        Reduction reduction = Reduction::mean, bool full = false);

/// Options of ctc_loss().
struct CtcLossOptions {
  std::int64_t blank = 0;                 ///< the class that stands for no label
  Reduction reduction = Reduction::mean;  ///< mean of the losses divided by their numbers of labels, sum, or each
  bool zero_infinity = false;             ///< a loss without an alignment and its gradient are 0, not infinite and NaN
};

/// Connectionist temporal classification: minus the logarithm of the probability of all alignments of labels to steps.
/// Graves et al., "Connectionist temporal classification" (2006); semantics of torch.nn.functional.ctc_loss.
///
/// log_probs [t, n, classes], float32 or float64 on the CPU, are what log_softmax() gives; targets int64 [n, s], or the
/// labels of all samples one after the other. The gradient is that of PyTorch, which counts on the log_softmax():
/// exp(log_probs) less the share of the alignments. Throws Error for lengths and labels that do not fit.
Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const std::vector<std::int64_t>& input_lengths,
                const std::vector<std::int64_t>& target_lengths, const CtcLossOptions& options = {});
/// The same for lengths in int64 tensors [n].
Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, const CtcLossOptions& options = {});

}  // namespace lockstep
