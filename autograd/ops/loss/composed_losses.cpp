// Losses that are composed of other operations.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/loss/loss.h"
#include "lockstep/autograd/ops/norm/norm.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

Tensor reduced(const Tensor& each, Reduction reduction) {
  return reduction == Reduction::none ? each : reduction == Reduction::sum ? sum(each) : mean(each);
}

void check_defined(std::initializer_list<const Tensor*> tensors, const char* op) {
  for (const Tensor* tensor : tensors) LOCKSTEP_CHECK(tensor->defined(), "[{}] a tensor is undefined", op);
}

}  // namespace

Tensor kl_div(const Tensor& input, const Tensor& target, Reduction reduction, bool log_target) {
  check_defined({&input, &target}, "kl_div");
  if (log_target) return reduced(exp(target) * (target - input), reduction);
  const Tensor empty_class = eq(target, 0.0);
  const Tensor entropy = where(empty_class, 0.0, target * log(where(empty_class, 1.0, target)));
  return reduced(entropy - target * input, reduction);
}

Tensor kl_div(const Tensor& input, const Tensor& target, std::string_view reduction, bool log_target) {
  if (reduction == "none") return kl_div(input, target, Reduction::none, log_target);
  if (reduction == "mean") return kl_div(input, target, Reduction::mean, log_target);
  LOCKSTEP_CHECK(reduction == "sum" || reduction == "batchmean",
                 "[kl_div] expected \"none\", \"mean\", \"sum\" or \"batchmean\", found \"{}\"", reduction);
  const Tensor sum = kl_div(input, target, Reduction::sum, log_target);
  return reduction == "sum" || input.dim() == 0 ? sum : sum / input.size(0);
}

Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target, double margin, Reduction reduction) {
  check_defined({&a, &b, &target}, "margin_ranking_loss");
  return reduced(clamp(-target * (a - b) + margin, 0.0), reduction);
}

Tensor hinge_embedding_loss(const Tensor& input, const Tensor& target, double margin, Reduction reduction) {
  check_defined({&input, &target}, "hinge_embedding_loss");
  // At the margin the slope is 0, as in PyTorch; clamp()'s is 1 there.
  const Tensor missing = margin - input;
  const Tensor apart = where(eq(target, 1.0), 0.0, where(missing > 0.0, missing, clamp(missing.detach(), 0.0)));
  return reduced(apart + where(eq(target, -1.0), 0.0, input), reduction);
}

Tensor soft_margin_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check_defined({&input, &target}, "soft_margin_loss");
  // At infinity the slope is that of log1p(exp(-z)), which is not a number; elsewhere that would overflow.
  const Tensor z = target * input, endless = eq(z, -std::numeric_limits<double>::infinity());
  return reduced(where(endless, log1p(exp(-where(endless, z, 0.0))), -logsigmoid(z)), reduction);
}

Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target, double margin,
                             Reduction reduction) {
  check_defined({&a, &b, &target}, "cosine_embedding_loss");
  const auto in_numbers = [](const Tensor& x) { return x.is_floating_point() ? x : x.to(kFloat32); };
  const Tensor cosine = cosine_similarity(in_numbers(a), in_numbers(b), -1);
  const Tensor near = where(eq(target, 1.0), 1.0 - cosine, 0.0);
  return reduced(near + where(eq(target, -1.0), clamp(cosine - margin, 0.0), 0.0), reduction);
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative, double margin,
                           double order, double eps, bool swap, Reduction reduction) {
  check_defined({&anchor, &positive, &negative}, "triplet_margin_loss");
  Tensor far = pairwise_distance(anchor, negative, order, eps);
  if (swap) far = minimum(far, pairwise_distance(positive, negative, order, eps));
  return reduced(clamp(pairwise_distance(anchor, positive, order, eps) - far + margin, 0.0), reduction);
}

Tensor gaussian_nll_loss(const Tensor& input, const Tensor& target, const Tensor& var, double eps, Reduction reduction,
                         bool full) {
  check_defined({&input, &target, &var}, "gaussian_nll_loss");
  const Shape sizes = input.sizes();
  const bool by_row = var.dim() + 1 == input.dim() && std::equal(var.sizes().begin(), var.sizes().end(), sizes.begin());
  bool fits = var.dim() == input.dim();
  for (std::int64_t d = 0; fits && d < input.dim(); ++d) fits = var.size(d) == input.size(d) || var.size(d) == 1;
  LOCKSTEP_CHECK(
      by_row || fits || var.dim() == 0,
      "[gaussian_nll_loss] expected a var of input's sizes {}, of these with some 1, or of all but the last, "
      "found {}",
      to_string(sizes), to_string(var.sizes()));
  const Tensor spread = by_row ? var.unsqueeze(-1) : var;
  // The bound takes no gradient, as in PyTorch: var keeps its own where it is below.
  const Tensor bounded = spread + (maximum(spread.detach(), eps) - spread.detach());
  const Tensor each = (log(bounded) + square(input - target) / bounded) * 0.5;
  return reduced(full ? each + 0.5 * std::log(2.0 * std::numbers::pi) : each, reduction);
}

Tensor poisson_nll_loss(const Tensor& input, const Tensor& target, bool log_input, double eps, Reduction reduction,
                        bool full) {
  check_defined({&input, &target}, "poisson_nll_loss");
  Tensor each = log_input ? exp(input) - target * input : input - target * log(input + eps);
  if (full) {
    const Tensor few = target <= 1;
    const Tensor n = where(few, 1, target);
    each = each + where(few, 0.0, n * log(n) - n + log(n * (2.0 * std::numbers::pi)) * 0.5);
  }
  return reduced(each, reduction);
}

}  // namespace lockstep
