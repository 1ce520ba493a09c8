#pragma once

#include <utility>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::optim {

/// The Euclidean norm of all gradients taken as one vector; parameters without a gradient are left out. Summed in
/// double over blocks that depend on the shapes alone: the same bits for any number of threads and any layout. Throws
/// Error, saying what to call instead, for parameters whose gradients are divided over ranks (Note [Gradients in
/// parts]).
double grad_norm(const std::vector<Tensor>& parameters);

/// A norm that may still be on its way on a device.
class GradNorm {
 public:
  /// `value`: float64, the norm is its first element.
  explicit GradNorm(Tensor value) : value_(std::move(value)) {}
  /// Its value; waits for the device.
  operator double() const;  // NOLINT: a norm is a number

 private:
  Tensor value_;
};

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), in their memory, and returns the norm they had. A norm
/// that is not finite makes the gradients so too, as in torch.nn.utils.clip_grad_norm_; with `error_if_nonfinite` it
/// throws Error instead and leaves them alone. Gradients on one CUDA device are clipped without waiting for it, also in
/// a captured graph, unless the norm is asked for. Throws Error as grad_norm().
GradNorm clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm, bool error_if_nonfinite = false);

/// Clamps every element of every gradient to [-limit, limit], in its memory. Throws Error for parameters whose
/// gradients a step has divided (TrainingStepOptions::zero), which have none: Optimizer::clip_grad_value_() clips
/// these.
void clip_grad_value_(const std::vector<Tensor>& parameters, double limit);

}  // namespace lockstep::optim

/// PyTorch's torch.nn.utils.
namespace lockstep::nn::utils {
using optim::clip_grad_norm_;
using optim::clip_grad_value_;
/// The elements of all parameters one after the other, differentiable. Throws Error for none.
Tensor parameters_to_vector(const std::vector<Tensor>& parameters);
/// Writes the elements of a vector into the parameters, one after the other; not recorded. Throws Error for another
/// number of elements.
void vector_to_parameters(const Tensor& vector, const std::vector<Tensor>& parameters);
}  // namespace lockstep::nn::utils
