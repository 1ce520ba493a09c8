// Losses that are composed of other operations.

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

Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target, double margin, Reduction reduction) {
  check_defined({&a, &b, &target}, "margin_ranking_loss");
  return reduced(clamp(-target * (a - b) + margin, 0.0), reduction);
}

Tensor hinge_embedding_loss(const Tensor& input, const Tensor& target, double margin, Reduction reduction) {
  check_defined({&input, &target}, "hinge_embedding_loss");
  const Tensor apart = where(eq(target, 1.0), 0.0, clamp(margin - input, 0.0));
  return reduced(apart + where(eq(target, -1.0), 0.0, input), reduction);
}

Tensor soft_margin_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check_defined({&input, &target}, "soft_margin_loss");
  return reduced(-logsigmoid(target * input), reduction);
}

Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target, double margin,
                             Reduction reduction) {
  check_defined({&a, &b, &target}, "cosine_embedding_loss");
  const Tensor cosine = cosine_similarity(a, b, -1);
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

Tensor gaussian_nll_loss(const Tensor& input, const Tensor& target, const Tensor& var, double eps,
                         Reduction reduction) {
  check_defined({&input, &target, &var}, "gaussian_nll_loss");
  // The bound takes no gradient, as in PyTorch: var keeps its own where it is below.
  const Tensor bounded = var + (maximum(var.detach(), eps) - var.detach());
  return reduced((log(bounded) + square(input - target) / bounded) * 0.5, reduction);
}

Tensor poisson_nll_loss(const Tensor& input, const Tensor& target, bool log_input, double eps, Reduction reduction) {
  check_defined({&input, &target}, "poisson_nll_loss");
  return reduced(log_input ? exp(input) - target * input : input - target * log(input + eps), reduction);
}

}  // namespace lockstep
