#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

/// Options of GradScaler.
struct GradScalerOptions {
  double init_scale = 65536.0;  ///< scale at first
  double growth_factor = 2.0;   ///< of the scale, after growth_interval good steps
  double backoff_factor = 0.5;  ///< of the scale, after an overflow
  /// Steps in a row without overflow after which the scale grows.
  std::int64_t growth_interval = 2000;
};

/// What a checkpoint keeps of a GradScaler.
struct GradScalerState {
  double scale;             ///< of the loss
  std::int64_t good_steps;  ///< since the scale last changed
};

/// Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", 2018; PyTorch's torch.amp.GradScaler):
/// gradients of half type underflow, so the loss is multiplied by a scale, the gradients are divided by it before the
/// optimizer's step, and a step whose gradients are not finite is left out and the scale reduced. Gradients that are
/// NaN for other reasons than overflow reduce it to 2^-126 and no further, so that it can grow when they are gone;
/// PyTorch's becomes 0, by which nothing can be divided any more.
///
///   Tensor loss = scaler.unscaled(step(batch, [&](nn::Module& net, const data::Batch& part) {
///     return scaler.scale(cross_entropy(net(part.x), part.y));
///   }));
///   scaler.unscale(optimizer);                    // only to clip in between
///   optimizer.clip_grad_norm_(1.0);
///   scaler.step(optimizer);
///   scaler.update();
///
/// Between processes nothing needs to be agreed on: the decision is taken on the reduced gradients, which are the same
/// on every rank, so it is too; in lockstep mode it is the same for any number of workers. Where ranks have different
/// parameters, tensor parallel or of a pipeline, Optimizer::set_agreement() lets them agree;
/// MeshModel::make_optimizer() has done so.
///
/// On a CUDA device gradients are unscaled and looked through in one pass, and its answer is read: unscale(), or step()
/// without it, waits for the device once. In a captured step nothing is read: CapturedStep, given a scaler, records
/// record_step(), and scale_factor() and state() wait for the device when they are called (Note [Scaling on the
/// device]). bfloat16, which has the range of float32, needs no scaling.
class GradScaler {
 public:
  /// Throws Error unless init_scale > 0, growth_factor > 1, 0 < backoff_factor < 1 and growth_interval >= 1.
  explicit GradScaler(GradScalerOptions options = {});
  /// A scaler of its own with the same options and state.
  GradScaler(const GradScaler& other);
  GradScaler& operator=(const GradScaler& other);

  /// loss x scale_factor(), differentiable.
  Tensor scale(const Tensor& loss) const;
  /// A step's loss, one float64 element, without the scale: read and divided by scale_factor(), or, while the device's
  /// work is captured, divided there. Call it before update() or record_step().
  Tensor unscaled(const Tensor& loss) const;
  double scale_factor() const { return state().scale; }  ///< what the loss is multiplied by now
  double get_scale() const { return scale_factor(); }    ///< as torch calls it

  /// Divides the gradients of the optimizer's parameters by the scale, in their memory. Returns whether all of them are
  /// finite. Throws Error if called twice for an optimizer before update(), or for a gradient of type float16, which
  /// could underflow again: keep the parameters in float32. Where gradients are divided over ranks, these agree on the
  /// answer.
  bool unscale(Optimizer& optimizer);
  /// optimizer.step(), after unscale() if that has not been done, unless a gradient is not finite. Returns whether the
  /// step was made. Throws Error if called twice for an optimizer before update().
  bool step(Optimizer& optimizer);
  /// Ends an iteration, of one optimizer or of several: the scale shrinks after one in which gradients of any of them
  /// overflowed, and grows after growth_interval others in a row.
  /// Throws Error if nothing was unscaled since the last update().
  void update();

  /// Before the first capture: has the memory on a CUDA device that captured steps use. Throws Error if it has some on
  /// another device.
  void prepare_capture(const Device& device);
  /// While the device's work is captured: unscale(), step() and update() as kernels, of which the update does nothing
  /// if a gradient is not finite. Throws Error where ranks would have to agree (Optimizer::set_agreement()), for a
  /// float16 gradient, and without prepare_capture().
  void record_step(Optimizer& optimizer);
  /// Before each launch of a graph with record_step() in it, in the place of optimizer.prepare_step(). Waits for the
  /// launch four launches ago.
  void prepare_replay(Optimizer& optimizer);
  /// After the launch, with its stream the current one.
  void replayed();

  GradScalerState state() const;  ///< for a checkpoint
  /// Throws Error for a scale that is not finite and positive, or a negative number of steps.
  void load_state(const GradScalerState& state);

 private:
  /// What was done for an optimizer since the last update().
  struct Turn {
    const Optimizer* optimizer;
    bool finite;
    bool stepped = false;
  };

  Turn& unscaled_turn(Optimizer& optimizer);
  Turn* turn_of(const Optimizer& optimizer);
  bool is_capturing() const;
  void check_gradients(const Optimizer& optimizer) const;

  GradScalerOptions options_;
  mutable double scale_;
  mutable std::int64_t good_steps_ = 0;
  mutable bool on_device_ = false;  // the device's are later than these two
  std::shared_ptr<detail::ScalerOnDevice> device_;
  std::vector<Turn> turns_;
};

}  // namespace lockstep::optim
