#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/autograd/ops/conv2d/conv2d.h"
#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// The sizes of one convolution; every size is at least 1.
struct Conv2dGeometry {
  std::int64_t n, in, h, w;  ///< x: [n, in, h, w]
  std::int64_t out, kh, kw;  ///< weight: [out, in / groups, kh, kw]
  std::int64_t oh, ow;       ///< result: [n, out, oh, ow]
  Size2d stride, padding, dilation;
  std::int64_t groups;
  /// The device's library alone: x and result lie as [n, h, w, channels], weight as [out, kh, kw, in / groups].
  bool channels_last = false;

  std::int64_t group_in() const { return in / groups; }
  std::int64_t group_out() const { return out / groups; }
  /// Multiply-adds of one image.
  std::int64_t macs() const { return out * oh * ow * group_in() * kh * kw; }
  friend bool operator==(const Conv2dGeometry&, const Conv2dGeometry&) = default;
};

/// Checks the arguments of conv2d() and works out the sizes, which may be 0. Throws Error.
Conv2dGeometry conv2d_geometry(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options);

// The passes. All tensors are contiguous, of one dtype and on one device. `bias` and `bias_grad` may be undefined.
/// out = conv(x, weight) + bias, then max(0, out) if `relu`.
using Conv2dForward = void(const Conv2dGeometry& geometry, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& out, bool relu);
/// The gradient of x.
using Conv2dBackwardData = void(const Conv2dGeometry& geometry, const Tensor& grad, const Tensor& weight,
                                const Tensor& x_grad);
/// The gradients of weight and bias.
using Conv2dBackwardWeight = void(const Conv2dGeometry& geometry, const Tensor& grad, const Tensor& x,
                                  const Tensor& weight_grad, const Tensor& bias_grad);
/// Takes the results of images [first, first + count), values [count, out, oh, ow], on the thread that computed them.
/// The values are gone afterwards.
using Conv2dSink = std::function<void(std::int64_t first, std::int64_t count, const float* values)>;
/// The forward pass, handed to a sink.
using Conv2dForwardToSink = void(const Conv2dGeometry& geometry, const Tensor& x, const Tensor& weight,
                                 const Tensor& bias, const Conv2dSink& sink);

/// One way to compute all of them.
struct Conv2dEngine {
  Conv2dForward* forward;
  Conv2dBackwardData* backward_data;
  Conv2dBackwardWeight* backward_weight;
  Conv2dForwardToSink* forward_to_sink;
};

// The CPU's choice among the engines below, by dtype and geometry alone; other halves are computed in float32.
Conv2dForward conv2d_forward_cpu;
Conv2dBackwardData conv2d_backward_data_cpu;
Conv2dBackwardWeight conv2d_backward_weight_cpu;
/// True if the CPU's own kernels compute the forward pass directly, as conv2d_forward_direct().
bool conv2d_forward_is_direct(const Conv2dGeometry& geometry);
/// The forward pass of float32 tensors on the CPU without a result: each block of images is handed on while it lies in
/// the cache. Blocks come in any order, from several threads; what is computed is what conv2d_forward_cpu() computes.
Conv2dForwardToSink conv2d_forward_to_sink;

// Plain loops, any floating-point dtype.
Conv2dForward conv2d_forward_reference;
Conv2dBackwardData conv2d_backward_data_reference;
Conv2dBackwardWeight conv2d_backward_weight_reference;

// Image columns and matrix products: float32 and float64, any geometry.
Conv2dForward conv2d_forward_im2col;
Conv2dBackwardData conv2d_backward_data_im2col;
Conv2dBackwardWeight conv2d_backward_weight_im2col;

// Products whose panels are packed from the images: float32, any geometry; the same bits on any processor.
Conv2dForward conv2d_forward_own;
Conv2dBackwardData conv2d_backward_data_own;
Conv2dBackwardWeight conv2d_backward_weight_own;
Conv2dForwardToSink conv2d_forward_own_to_sink;
/// Whether these use minimal filtering, forward and for the gradient of x: fewer multiplications than any direct
/// kernel.
bool conv2d_own_filters_minimally(const Conv2dGeometry& g);

// Products of bfloat16, rounded once; the same bits on any processor.
Conv2dForward conv2d_forward_bfloat16;
Conv2dBackwardData conv2d_backward_data_bfloat16;
Conv2dBackwardWeight conv2d_backward_weight_bfloat16;
/// Whether these serve; others are computed as float32 is.
bool conv2d_goes_by_products(const Conv2dGeometry& g);

// oneDNN: float32, any geometry.
Conv2dForward conv2d_forward_onednn;
Conv2dBackwardData conv2d_backward_data_onednn;
Conv2dBackwardWeight conv2d_backward_weight_onednn;
Conv2dForwardToSink conv2d_forward_onednn_to_sink;

// Direct convolution in the plain layout: float32, geometries that conv2d_direct_supports() accepts.
bool conv2d_direct_supports(const Conv2dGeometry&);
/// True if conv2d_backward_data_direct() adds each product where it belongs, instead of correlating with zeros around.
bool conv2d_direct_scatters(const Conv2dGeometry&);
Conv2dForward conv2d_forward_direct;
Conv2dBackwardData conv2d_backward_data_direct;
Conv2dBackwardWeight conv2d_backward_weight_direct;
Conv2dForwardToSink conv2d_forward_direct_to_sink;

// CUDA.
Conv2dForward conv2d_forward_cuda;
Conv2dBackwardData conv2d_backward_data_cuda;
Conv2dBackwardWeight conv2d_backward_weight_cuda;
/// Whether these take tensors like x that lie as the geometry says.
using Conv2dSupports = bool(const Conv2dGeometry& geometry, const Tensor& x);
Conv2dSupports conv2d_supports_cuda;

/// Forces one engine for float32 on the CPU where it can serve (tests, benchmarks); `automatic` chooses.
enum class Conv2dPath : unsigned char { automatic, im2col, own, onednn, direct };
void set_conv2d_path(Conv2dPath path);
/// False for onednn in a build without it.
bool conv2d_path_available(Conv2dPath path);

}  // namespace lockstep
