#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/nn/optim/grad_scaler.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::distributed {

/// Options of CapturedStep.
struct CapturedStepOptions {
  /// Off: every step is started kernel by kernel.
  bool capture = true;
  /// Steps before the capture of each size of batch, in which what is made once is made: the optimizer's state,
  /// handles, and that size's kernels and algorithm choices.
  int warmup = 3;
  /// Scales the loss, and leaves steps out whose gradients overflow, as float16 needs it (optim::GradScaler); must
  /// outlive the CapturedStep. Null: none.
  optim::GradScaler* scaler = nullptr;
  /// The norm that gradients are scaled down to before the update (Optimizer::clip_grad_norm_); 0: any. Together with a
  /// scaler steps are not captured.
  double max_grad_norm = 0.0;
};

/// Note [Captured steps]
/// A training step and its optimizer's update as one CUDA graph: forward, backward, all-reduce and update are recorded
/// once, and each further step is one launch. Batches are copied into tensors that the graph reads; the learning rate,
/// the step of random keys and a GradScaler's scale lie in device memory. One graph is made for each size of batch, of
/// the first four that come; further sizes are computed without, and so is one whose capture fails.
///
///   CapturedStep train(step, optimizer);
///   for (const data::Batch& batch : batches) {
///     optimizer.set_lr(schedule(n++));
///     Tensor loss = train(batch, loss_function);  // on the device
///   }
///
/// What a replay does is what the recorded step did, so nothing on the host may depend on the data: the loss function
/// is not called again, and values of the host cannot go to the device in it. Where a step cannot be recorded (on the
/// CPU, in lockstep mode, on several devices of a process, with a model that reads values back), each step runs as it
/// would without, and obstacle() says why. Destroy it before the process group that its graphs use.
class CapturedStep {
 public:
  /// Both must outlive this object, and their tensors must stay where they are.
  CapturedStep(TrainingStep& step, optim::Optimizer& optimizer, CapturedStepOptions options = {});
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  /// step(batch, loss), then clipping, then optimizer.step(); with a scaler, these by it, and its update(). Returns the
  /// step's loss, not scaled, valid until the next call; reading it waits for the device. The batch may be overwritten
  /// when this returns.
  Tensor operator()(const data::Batch& batch, const LossFunction& loss);

  /// Why steps are not captured; empty if they are, or will be after the warm-up.
  const std::string& obstacle() const { return obstacle_; }
  /// Steps that were replays.
  std::uint64_t replays() const { return replays_; }
  /// Kernels, copies and such in the last graph made.
  std::size_t nodes() const { return nodes_; }

 private:
  struct Graphs;

  Tensor replay(const data::Batch& batch, const LossFunction& loss, std::uint64_t number);

  TrainingStep& step_;
  optim::Optimizer& optimizer_;
  CapturedStepOptions options_;
  std::string obstacle_;
  std::uint64_t steps_ = 0, loads_seen_ = 0;
  std::uint64_t replays_ = 0;
  std::size_t nodes_ = 0;
  std::unique_ptr<Graphs> graphs_;
};

}  // namespace lockstep::distributed

namespace lockstep {

using distributed::CapturedStep;
using distributed::CapturedStepOptions;

}  // namespace lockstep
