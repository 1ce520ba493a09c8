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
using SoftmaxKernel = void (*)(const Tensor& input, const Tensor& output, SoftmaxSlices slices, bool log);
/// `output` is what the forward kernel gave.
using SoftmaxBackwardKernel = void (*)(const Tensor& grad, const Tensor& output, const Tensor& grad_input,
                                       SoftmaxSlices slices, bool log);

void softmax_cpu(const Tensor& input, const Tensor& output, SoftmaxSlices slices, bool log);
void softmax_backward_cpu(const Tensor& grad, const Tensor& output, const Tensor& grad_input, SoftmaxSlices slices,
                          bool log);
void softmax_cuda(const Tensor& input, const Tensor& output, SoftmaxSlices slices, bool log);
void softmax_backward_cuda(const Tensor& grad, const Tensor& output, const Tensor& grad_input, SoftmaxSlices slices,
                           bool log);

}  // namespace lockstep
