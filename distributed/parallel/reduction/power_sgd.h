#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/distributed/parallel/reduction/communication_hook.h"

namespace lockstep::distributed {

/// Options of power_sgd().
struct PowerSgdOptions {
  std::int64_t rank = 2;  ///< of the approximation; higher is closer to the gradient, and more bytes
  /// Steps that are averaged uncompressed at first, while gradients change fast.
  std::int64_t start_iteration = 100;
  /// Matrices that would not shrink by this factor travel as they are.
  double min_compression = 2.0;
  bool error_feedback = true;  ///< what a step leaves out is added to the next one's gradient
  bool warm_start = true;      ///< each step's power iteration starts from the last one's result
  std::uint64_t seed = 0;      ///< of the first iteration's start; must be the same on every rank
  /// What the losses are multiplied by in the step under way, such as [&] { return scaler.scale_factor(); }: what is
  /// left out of one step's gradient enters the next one's in its scale. Null: always by the same.
  std::function<double()> loss_scale = nullptr;
};

/// Note [PowerSGD]
/// Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed optimization"
/// (NeurIPS 2019), algorithms 1 and 2. A gradient of dimension 2 or more is taken as a matrix M [n, m] (first dimension
/// by all others) and approximated by P Q^T with one step of subspace iteration, started from the last step's Q:
///
///   M += error;  P = mean over ranks of M Q;  orthogonalise P;  Q = mean over ranks of M^T P;  M' = P Q^T
///
/// so that r (n + m) values travel instead of n m. Everything is linear in M: the result is the same approximation of
/// the mean gradient that one process would make of the whole batch's. Each rank keeps its own error M - P (M^T P)^T,
/// the part of its gradient outside of the subspace. Vectors travel as they are, together with P.
///
/// A column of P that vanishes (a gradient that is zero, or of lower rank) is replaced by a fixed random direction;
/// otherwise the next step, which starts from it, could never find anything there.
///
/// A gradient that is not finite on some rank, as an optim::GradScaler provokes now and then, makes the bucket's
/// matrices NaN on all ranks for that step. It leaves no trace: errors stay what they were before it, and Q starts
/// anew.
///
/// Errors, Q and the number of steps are the hook's state(), which training::Run writes into checkpoints.
///
/// Throws Error for options out of range.
CommunicationHookPtr power_sgd(PowerSgdOptions options = {});

}  // namespace lockstep::distributed
