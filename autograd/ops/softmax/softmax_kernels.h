#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// A contiguous tensor seen as [outer, length, inner]; the operation runs along the middle.
struct SoftmaxSlices {
  std::int64_t outer = 1;
  std::int64_t length = 1;
  std::int64_t inner = 1;
};

/// All tensors contiguous, of one dtype. `log`: log_softmax.
using SoftmaxKernel = void(const Tensor& input, const Tensor& output, SoftmaxSlices slices, bool log);
SoftmaxKernel softmax_cpu, softmax_cuda;
/// The same of an input that is pending, as its expression is computed (Note [Elementwise chains]); false, with nothing
/// done, if it is not.
bool softmax_elements(const Tensor& input, const Tensor& output, SoftmaxSlices slices, bool log);
/// `output` is what the forward kernel gave.
using SoftmaxBackwardKernel = void(const Tensor& grad, const Tensor& output, const Tensor& grad_input,
                                   SoftmaxSlices slices, bool log);
SoftmaxBackwardKernel softmax_backward_cpu, softmax_backward_cuda;

}  // namespace lockstep
