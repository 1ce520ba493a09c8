#pragma once

#include <utility>

#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {

/// Note [Autocast]
/// Mixed precision without a change to the model: parameters stay float32, and while an AutocastGuard lives, each
/// operation picks the type that it computes in, as torch.autocast does:
///   the guard's type:      convolutions, linear, recurrent layers, matmul and what computes by it (mm, bmm, einsum,
///                          tensordot, inner), addmm, baddbmm, addbmm, prelu, scaled_dot_product_attention; on CUDA
///                          devices mv and addmv
///   float32:               softmax, log_softmax, losses, batch_norm (on CUDA devices of float32 inputs alone),
///                          layer_norm, rms_norm, exp, log, pow, square, rsqrt, reciprocal, sum, mean, var, logsumexp,
///                          grid_sample (on CUDA devices of inputs of two types alone)
///   the widest input's:    dot, bilinear, on CPUs mv and addmv, everything else (two operands of different types are
///   promoted)
/// float64 tensors, integers, in-place operations and tensors on other devices are left alone. Casts are recorded, so
/// gradients arrive in the type of what they belong to: float32 for float32 parameters. A parameter is cast once, until
/// it changes or the outermost guard ends. backward() and the optimizer belong outside; backward() inside of a guard is
/// not affected by it.
///
///   {
///     const AutocastGuard autocast(kBFloat16, x.device().type);
///     loss = cross_entropy(model.forward(x), y);  // float32
///   }
///   loss.backward();
///
/// float16 gradients underflow: scale the loss (optim::GradScaler). bfloat16 has the range of float32 and needs none.
class AutocastGuard {
 public:
  /// `dtype`: kFloat16 or kBFloat16, or kFloat32 to switch autocasting off for its lifetime, on this thread, for
  /// tensors on devices of this type. Throws Error for another dtype. Guards nest.
  AutocastGuard(DType dtype, DeviceType device);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  DeviceType device_;
  DType saved_;
};

/// What operations and the engine need of it.
namespace autocast {

/// True if an operation of this thread has to look at its inputs' types.
LOCKSTEP_INITIAL_EXEC inline thread_local constinit bool is_active = false;

/// The input as an operation wants it that computes in the guard's type, or in float32.
Tensor low(const Tensor& tensor);
Tensor full(const Tensor& tensor);

/// No autocasting on this thread for its lifetime: inside of an operation whose inputs have been cast, and in
/// backward().
class Pause {
 public:
  /// From here to its end operations compute in their inputs' types, as without autocast.
  Pause() : saved_(std::exchange(is_active, false)) {}
  ~Pause() { is_active = saved_; }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  bool saved_;
};

/// What the guards of this thread say now, by DeviceType, to compute something in the same types later.
class Settings {
 public:
  /// Of this thread.
  Settings();

 private:
  friend class Resume;
  DType dtypes_[2];
};

/// Computes under settings of before for its lifetime, with casts of its own of all parameters.
class Resume {
 public:
  explicit Resume(const Settings& settings);
  ~Resume();
  Resume(const Resume&) = delete;
  Resume& operator=(const Resume&) = delete;

 private:
  struct Outer;
  Outer* outer_;
};

/// op(tensors...) with inputs cast to the guard's type: `if (autocast::is_active) return autocast::in_low(matmul, a,
/// b);`
template <typename Op, typename... Tensors>
Tensor in_low(Op&& op, const Tensors&... tensors) {
  const Pause pause;
  return op(low(tensors)...);
}
/// And with inputs cast to float32.
template <typename Op, typename... Tensors>
Tensor in_full(Op&& op, const Tensors&... tensors) {
  const Pause pause;
  return op(full(tensors)...);
}

}  // namespace autocast
}  // namespace lockstep
