#pragma once

// What both kernels of the CPU share. For .cpp files only.

#include <array>

#include "lockstep/autograd/ops/cross_entropy/cross_entropy_kernels.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {

/// Note [Smoothed targets]
/// With smoothing s and class weights w, row i with target t has the target distribution
///   q[c] = (1 - s) w[t] [c = t] + s / C w[c],   loss = -sum_c q[c] log p[c],   d loss / d logit = (sum q) p - q.
/// Without smoothing q is w[t] at t. PyTorch computes the same from two separate losses.
template <typename C>
struct Smoothing {
  C sharp;          ///< 1 - s
  C even;           ///< s / C
  C weight_of_all;  ///< sum of all class weights
  template <typename T>
  Smoothing(const CrossEntropyProblem& problem, const T* w)
      : sharp(static_cast<C>(1.0 - problem.label_smoothing)),
        even(static_cast<C>(problem.label_smoothing / static_cast<double>(problem.rows.classes))),
        weight_of_all(static_cast<C>(problem.rows.classes)) {
    if (w) weight_of_all = cpu::lane_sum<C>(problem.rows.classes, [&](std::int64_t c) { return static_cast<C>(w[c]); });
  }
};

/// What a forward pass gives for all rows, from the sums of their losses and of their targets' weights.
template <typename T>
void write_totals(const std::array<double, 2>& sums, const CrossEntropyProblem& problem, const Tensor& loss,
                  const Tensor& total_weight) {
  *total_weight.data<double>() = sums[1];
  if (problem.reduction != Reduction::none)
    *loss.data<T>() =
        static_cast<T>(static_cast<compute_t<T>>(problem.reduction == Reduction::mean ? sums[0] / sums[1] : sums[0]));
}

}  // namespace lockstep
