#pragma once

// The convolution as part of Note [Pending values]. For conv2d's files only.

#include <array>

#include "lockstep/autograd/node.h"
#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/computation.h"

namespace lockstep {

/// A convolution of contiguous tensors that has products to add. Computed together with a relu, a max pool of 2 x 2
/// side by side, or both in either order. Where the geometry says so, x and weight are
/// those of laid out tensors.
class Conv2dComputation final : public Computation {
 public:
  Conv2dComputation(const Conv2dGeometry& geometry, const Tensor& x, const Tensor& weight, const Tensor& bias)
      : Computation({x, weight, bias}), geometry_(geometry) {
    if (geometry.channels_last) set_follows_laid_out();
  }

 private:
  void compute() override;
  bool compute_through(std::span<Computation* const> links) override;
  Tensor compute_channels_last(std::span<Computation* const> links) override;

  Conv2dGeometry geometry_;
};

/// The gradients of a convolution from that of its result: those of weight and bias, and of x. Undefined ones are not
/// wanted; a bias's comes with a weight's.
void conv2d_backward(const Conv2dGeometry& geometry, const Tensor& grad, const Tensor& x, const Tensor& weight,
                     const Tensor& x_grad, const Tensor& weight_grad, const Tensor& bias_grad);

/// Whether this convolution of tensors like x is one that cuDNN computes on tensor cores, and so better with the
/// channels last (Note [Channels last]). Needs the library.
bool conv2d_takes_channels_last(Conv2dGeometry geometry, const Tensor& x);
/// The gradients of x, weight and bias, as far as they are `wanted`, of such a convolution: x's is laid out. False,
/// with nothing done, if neither x nor the gradient is laid out, or if the convolution is not such a one.
bool conv2d_backward_channels_last(Conv2dGeometry geometry, const Tensor& grad, const Tensor& x, const Tensor& weight,
                                   std::array<bool, 3> wanted, TensorList& result);

/// The three passes by themselves, at once, for a convolution that is looked at from the other end: conv_transpose2d.
/// Contiguous tensors; sizes that leave nothing to multiply give zeros.
void conv2d_values(const Conv2dGeometry& geometry, const Tensor& x, const Tensor& weight, const Tensor& out);
void conv2d_data_gradient(const Conv2dGeometry& geometry, const Tensor& grad, const Tensor& weight,
                          const Tensor& x_grad);
void conv2d_weight_gradient(const Conv2dGeometry& geometry, const Tensor& grad, const Tensor& x,
                            const Tensor& weight_grad);

}  // namespace lockstep
