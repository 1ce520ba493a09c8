#pragma once

// For .cpp files only.

#include <functional>
#include <memory>
#include <string>

#include "lockstep/core/dtype.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/capture.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/nn/optim/grad_scaler.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::training {

/// A training step and the optimizer's update, in the way that a run's options ask for: as a CUDA graph, in mixed
/// precision, with something done to the gradients in between. All that a run knows of steps.
class Update {
 public:
  struct Options {
    DType amp = kFloat32;  ///< kBFloat16, kFloat16 (with a scaled loss) or kFloat32, which means no mixed precision
    std::shared_ptr<optim::GradScaler> scaler = nullptr;  ///< of float16; null: one with the defaults
    bool graph = true;                                    ///< steps may be CUDA graphs
    double max_grad_norm = 0.0;                           ///< gradients are clipped to this norm; 0: they are not
  };

  /// The step and the optimizer must outlive this object.
  Update(distributed::TrainingStep& step, optim::Optimizer& optimizer, Options options);

  /// One step: gradients, then on_gradients(), clipping, before_update() and the update, as far as they are asked for.
  /// Returns the loss over the global batch, one float64 element, valid until the next call; reading it may wait for a
  /// device.
  Tensor operator()(const data::Batch& batch, const LossFunction& loss, const std::function<void()>& on_gradients,
                    const std::function<void()>& before_update);

  /// Why steps are not CUDA graphs; empty if they are, or on a CPU.
  std::string obstacle() const;
  /// Of float16: its state belongs into checkpoints. Else null.
  optim::GradScaler* scaler() { return scaler_.get(); }

 private:
  distributed::TrainingStep& step_;
  optim::Optimizer& optimizer_;
  DType amp_;
  bool graph_;
  double max_grad_norm_;
  std::shared_ptr<optim::GradScaler> scaler_;
  distributed::CapturedStep captured_;
};

}  // namespace lockstep::training
