#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/autograd/ops/cross_entropy/cross_entropy.h"
#include "lockstep/autograd/ops/loss/loss.h"
#include "lockstep/autograd/ops/nll_loss/nll_loss.h"
#include "lockstep/autograd/ops/norm/norm.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

// Losses as modules, for programs that hold one: `nn::MSELoss criterion; loss = criterion(output, target);`. What they
// compute, and what their arguments mean, stands at the functions.

/// See mse_loss().
class MSELoss : public ModuleOf<MSELoss> {
 public:
  explicit MSELoss(Reduction reduction = Reduction::mean) : reduction_(reduction) {}
  /// Of floating-point tensors whose shapes broadcast.
  Tensor forward(const Tensor& input, const Tensor& target) const { return mse_loss(input, target, {reduction_}); }

 private:
  Reduction reduction_;
};

/// See l1_loss().
class L1Loss : public ModuleOf<L1Loss> {
 public:
  explicit L1Loss(Reduction reduction = Reduction::mean) : reduction_(reduction) {}
  /// Of floating-point tensors whose shapes broadcast.
  Tensor forward(const Tensor& input, const Tensor& target) const { return l1_loss(input, target, reduction_); }

 private:
  Reduction reduction_;
};

/// See smooth_l1_loss().
class SmoothL1Loss : public ModuleOf<SmoothL1Loss> {
 public:
  explicit SmoothL1Loss(double beta = 1.0, Reduction reduction = Reduction::mean)
      : beta_(beta), reduction_(reduction) {}
  /// Of floating-point tensors whose shapes broadcast.
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return smooth_l1_loss(input, target, beta_, reduction_);
  }

 private:
  double beta_;
  Reduction reduction_;
};

/// See huber_loss().
class HuberLoss : public ModuleOf<HuberLoss> {
 public:
  explicit HuberLoss(double delta = 1.0, Reduction reduction = Reduction::mean)
      : delta_(delta), reduction_(reduction) {}
  /// Of floating-point tensors whose shapes broadcast.
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return huber_loss(input, target, delta_, reduction_);
  }

 private:
  double delta_;
  Reduction reduction_;
};

/// See binary_cross_entropy().
class BCELoss : public ModuleOf<BCELoss> {
 public:
  explicit BCELoss(Reduction reduction = Reduction::mean, Tensor weight = {})
      : reduction_(reduction), weight_(std::move(weight)) {}
  /// Of probabilities and targets of the same shape.
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return binary_cross_entropy(input, target, weight_, reduction_);
  }

 private:
  Reduction reduction_;
  Tensor weight_;
};

/// See binary_cross_entropy_with_logits().
class BCEWithLogitsLoss : public ModuleOf<BCEWithLogitsLoss> {
 public:
  explicit BCEWithLogitsLoss(BceWithLogitsOptions options = {}) : options_(options) {}
  /// Of logits and targets in [0, 1] of the same shape.
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return binary_cross_entropy_with_logits(input, target, options_);
  }

 private:
  BceWithLogitsOptions options_;
};

/// See cross_entropy().
class CrossEntropyLoss : public ModuleOf<CrossEntropyLoss> {
 public:
  explicit CrossEntropyLoss(CrossEntropyOptions options = {}) : options_(options) {}
  /// Of logits [N, C] or [N, C, d1, ...] and classes [N] or [N, d1, ...], or probabilities of the logits' shape.
  Tensor forward(const Tensor& input, const Tensor& target) const { return cross_entropy(input, target, options_); }

 private:
  CrossEntropyOptions options_;
};

/// See nll_loss().
class NLLLoss : public ModuleOf<NLLLoss> {
 public:
  explicit NLLLoss(NllLossOptions options = {}) : options_(options) {}
  /// Of logarithms of probabilities [N, C] or [N, C, d1, ...] and classes [N] or [N, d1, ...].
  Tensor forward(const Tensor& input, const Tensor& target) const { return nll_loss(input, target, options_); }

 private:
  NllLossOptions options_;
};

/// See kl_div().
class KLDivLoss : public ModuleOf<KLDivLoss> {
 public:
  explicit KLDivLoss(Reduction reduction = Reduction::mean, bool log_target = false)
      : KLDivLoss(reduction == Reduction::none  ? "none"
                  : reduction == Reduction::sum ? "sum"
                                                : "mean",
                  log_target) {}
  explicit KLDivLoss(std::string_view reduction, bool log_target = false)
      : reduction_(reduction), log_target_(log_target) {}
  /// Of logarithms of probabilities and, unless log_target, probabilities.
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return kl_div(input, target, std::string_view(reduction_), log_target_);
  }

 private:
  std::string reduction_;
  bool log_target_;
};

/// See hinge_embedding_loss().
class HingeEmbeddingLoss : public ModuleOf<HingeEmbeddingLoss> {
 public:
  explicit HingeEmbeddingLoss(double margin = 1.0, Reduction reduction = Reduction::mean)
      : margin_(margin), reduction_(reduction) {}
  /// Of distances and targets that are 1 or -1.
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return hinge_embedding_loss(input, target, margin_, reduction_);
  }

 private:
  double margin_;
  Reduction reduction_;
};

/// See soft_margin_loss().
class SoftMarginLoss : public ModuleOf<SoftMarginLoss> {
 public:
  explicit SoftMarginLoss(Reduction reduction = Reduction::mean) : reduction_(reduction) {}
  /// Of scores and targets that are 1 or -1.
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return soft_margin_loss(input, target, reduction_);
  }

 private:
  Reduction reduction_;
};

/// See margin_ranking_loss().
class MarginRankingLoss : public ModuleOf<MarginRankingLoss> {
 public:
  explicit MarginRankingLoss(double margin = 0.0, Reduction reduction = Reduction::mean)
      : margin_(margin), reduction_(reduction) {}
  /// `target` is 1 where a should be larger than b, -1 where b should.
  Tensor forward(const Tensor& a, const Tensor& b, const Tensor& target) const {
    return margin_ranking_loss(a, b, target, margin_, reduction_);
  }

 private:
  double margin_;
  Reduction reduction_;
};

/// See cosine_embedding_loss().
class CosineEmbeddingLoss : public ModuleOf<CosineEmbeddingLoss> {
 public:
  explicit CosineEmbeddingLoss(double margin = 0.0, Reduction reduction = Reduction::mean)
      : margin_(margin), reduction_(reduction) {}
  /// Of rows [N, D] and targets [N]: 1 for a pair that should be alike, -1 for one that should not.
  Tensor forward(const Tensor& a, const Tensor& b, const Tensor& target) const {
    return cosine_embedding_loss(a, b, target, margin_, reduction_);
  }

 private:
  double margin_;
  Reduction reduction_;
};

/// See triplet_margin_loss().
class TripletMarginLoss : public ModuleOf<TripletMarginLoss> {
 public:
  explicit TripletMarginLoss(double margin = 1.0, double order = 2.0, bool swap = false,
                             Reduction reduction = Reduction::mean)
      : margin_(margin), order_(order), swap_(swap), reduction_(reduction) {}
  /// Of rows [N, D] each.
  Tensor forward(const Tensor& anchor, const Tensor& positive, const Tensor& negative) const {
    return triplet_margin_loss(anchor, positive, negative, margin_, order_, 1e-6, swap_, reduction_);
  }

 private:
  double margin_;
  double order_;
  bool swap_;
  Reduction reduction_;
};

/// See gaussian_nll_loss().
class GaussianNLLLoss : public ModuleOf<GaussianNLLLoss> {
 public:
  explicit GaussianNLLLoss(double eps = 1e-6, Reduction reduction = Reduction::mean)
      : eps_(eps), reduction_(reduction) {}
  /// Of means, observations and variances.
  Tensor forward(const Tensor& input, const Tensor& target, const Tensor& var) const {
    return gaussian_nll_loss(input, target, var, eps_, reduction_);
  }

 private:
  double eps_;
  Reduction reduction_;
};

/// See poisson_nll_loss().
class PoissonNLLLoss : public ModuleOf<PoissonNLLLoss> {
 public:
  explicit PoissonNLLLoss(bool log_input = true, Reduction reduction = Reduction::mean)
      : log_input_(log_input), reduction_(reduction) {}
  /// Of rates, or with log_input their logarithms, and counts.
  Tensor forward(const Tensor& input, const Tensor& target) const {
    return poisson_nll_loss(input, target, log_input_, 1e-8, reduction_);
  }

 private:
  bool log_input_;
  Reduction reduction_;
};

/// See ctc_loss().
class CTCLoss : public ModuleOf<CTCLoss> {
 public:
  explicit CTCLoss(CtcLossOptions options = {}) : options_(options) {}
  /// `Lengths`: a list of integers, or an int64 tensor.
  template <typename Lengths>
  Tensor forward(const Tensor& log_probs, const Tensor& targets, const Lengths& input_lengths,
                 const Lengths& target_lengths) const {
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, options_);
  }

 private:
  CtcLossOptions options_;
};

/// See cosine_similarity().
class CosineSimilarity : public ModuleOf<CosineSimilarity> {
 public:
  explicit CosineSimilarity(std::int64_t dim = 1, double eps = 1e-8) : dim_(dim), eps_(eps) {}
  /// Of tensors whose shapes broadcast; the result is without `dim`.
  Tensor forward(const Tensor& a, const Tensor& b) const { return cosine_similarity(a, b, dim_, eps_); }

 private:
  std::int64_t dim_;
  double eps_;
};

/// See pairwise_distance().
class PairwiseDistance : public ModuleOf<PairwiseDistance> {
 public:
  explicit PairwiseDistance(double order = 2.0, double eps = 1e-6, bool keepdim = false)
      : order_(order), eps_(eps), keepdim_(keepdim) {}
  /// Of rows [N, D]: [N], or [N, 1] with keepdim.
  Tensor forward(const Tensor& a, const Tensor& b) const { return pairwise_distance(a, b, order_, eps_, keepdim_); }

 private:
  double order_;
  double eps_;
  bool keepdim_;
};

}  // namespace lockstep::nn

namespace lockstep {

// What libtorch's functions of torch::nn::functional take: options by calls, one after the other.

/// CrossEntropyOptions: `F::cross_entropy(x, y, F::CrossEntropyFuncOptions().reduction(kSum).ignore_index(0))`.
class CrossEntropyFuncOptions {
 public:
  CrossEntropyFuncOptions& reduction(Reduction value) {  ///< mean or sum over the samples, or each of them
    value_.reduction = value;
    return *this;
  }
  CrossEntropyFuncOptions& ignore_index(std::int64_t value) {  ///< targets of this value count for nothing
    value_.ignore_index = value;
    return *this;
  }
  CrossEntropyFuncOptions& label_smoothing(double value) {  ///< share that all classes get evenly, in [0, 1]
    value_.label_smoothing = value;
    return *this;
  }
  CrossEntropyFuncOptions& weight(Tensor value) {  ///< [C], a factor for each class
    value_.weight = std::move(value);
    return *this;
  }
  operator const CrossEntropyOptions&() const { return value_; }  ///< what has been set

 private:
  CrossEntropyOptions value_;
};
/// NllLossOptions by calls.
class NLLLossFuncOptions {
 public:
  NLLLossFuncOptions& reduction(Reduction value) {  ///< mean or sum over the samples, or each of them
    value_.reduction = value;
    return *this;
  }
  NLLLossFuncOptions& ignore_index(std::int64_t value) {  ///< targets of this value count for nothing
    value_.ignore_index = value;
    return *this;
  }
  NLLLossFuncOptions& weight(Tensor value) {  ///< [C], a factor for each class
    value_.weight = std::move(value);
    return *this;
  }
  operator const NllLossOptions&() const { return value_; }  ///< what has been set

 private:
  NllLossOptions value_;
};
/// MseLossOptions by calls.
class MSELossFuncOptions {
 public:
  MSELossFuncOptions& reduction(Reduction value) {  ///< mean or sum over the elements, or all of them
    value_.reduction = value;
    return *this;
  }
  operator const MseLossOptions&() const { return value_; }  ///< what has been set

 private:
  MseLossOptions value_;
};
/// BceWithLogitsOptions by calls.
class BinaryCrossEntropyWithLogitsFuncOptions {
 public:
  BinaryCrossEntropyWithLogitsFuncOptions& reduction(Reduction value) {  ///< mean or sum over the elements, or all
    value_.reduction = value;
    return *this;
  }
  BinaryCrossEntropyWithLogitsFuncOptions& weight(Tensor value) {  ///< a factor for each element
    value_.weight = std::move(value);
    return *this;
  }
  BinaryCrossEntropyWithLogitsFuncOptions& pos_weight(Tensor value) {  ///< a factor for the positive part
    value_.pos_weight = std::move(value);
    return *this;
  }
  operator const BceWithLogitsOptions&() const { return value_; }  ///< what has been set

 private:
  BceWithLogitsOptions value_;
};
/// Options of binary_cross_entropy() by calls.
class BinaryCrossEntropyFuncOptions {
 public:
  BinaryCrossEntropyFuncOptions& reduction(Reduction value) {  ///< mean or sum over the elements, or all of them
    reduction_ = value;
    return *this;
  }
  BinaryCrossEntropyFuncOptions& weight(Tensor value) {  ///< a factor for each element
    weight_ = std::move(value);
    return *this;
  }

 private:
  friend Tensor binary_cross_entropy(const Tensor& input, const Tensor& target,
                                     const BinaryCrossEntropyFuncOptions& options) {
    return binary_cross_entropy(input, target, options.weight_, options.reduction_);
  }
  Reduction reduction_ = Reduction::mean;
  Tensor weight_;
};
/// binary_cross_entropy() with options by calls.
Tensor binary_cross_entropy(const Tensor& input, const Tensor& target, const BinaryCrossEntropyFuncOptions& options);

}  // namespace lockstep
