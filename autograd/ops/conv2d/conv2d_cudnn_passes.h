#pragma once

// A convolution in cuDNN's words, and its three passes. For conv2d_cudnn.cpp.

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cuda/cudnn.h"
#include "lockstep/core/cuda/math_mode.h"

namespace lockstep::conv2d_device {
namespace {

using cuda::cudnn;
using cuda::CudnnFunctions;

template <auto create, auto destroy, typename Handle>
class Owned {
 public:
  Owned() { LOCKSTEP_CUDNN_CHECK((cudnn().*create)(&handle_)); }
  ~Owned() { (cudnn().*destroy)(handle_); }
  Owned(const Owned&) = delete;
  operator Handle() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using TensorDescriptor = Owned<&CudnnFunctions::cudnnCreateTensorDescriptor,
                               &CudnnFunctions::cudnnDestroyTensorDescriptor, cudnnTensorDescriptor_t>;
using FilterDescriptor = Owned<&CudnnFunctions::cudnnCreateFilterDescriptor,
                               &CudnnFunctions::cudnnDestroyFilterDescriptor, cudnnFilterDescriptor_t>;
using ConvolutionDescriptor = Owned<&CudnnFunctions::cudnnCreateConvolutionDescriptor,
                                    &CudnnFunctions::cudnnDestroyConvolutionDescriptor, cudnnConvolutionDescriptor_t>;
using ActivationDescriptor = Owned<&CudnnFunctions::cudnnCreateActivationDescriptor,
                                   &CudnnFunctions::cudnnDestroyActivationDescriptor, cudnnActivationDescriptor_t>;

std::string describe(const Conv2dGeometry& g, DType dtype) {
  return fmt::format("x [{}, {}, {}, {}], weight [{}, {}, {}, {}], {} group{}, {}", g.n, g.in, g.h, g.w, g.out,
                     g.group_in(), g.kh, g.kw, g.groups, g.groups == 1 ? "" : "s", name(dtype));
}

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return CUDNN_DATA_DOUBLE;
    case DType::float16:
      return CUDNN_DATA_HALF;
    case DType::bfloat16:
      return CUDNN_DATA_BFLOAT16;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

// FMA: float32 products are rounded to nothing less.
cudnnMathType_t math_type(DType dtype) {
  if (dtype == kFloat32) return cuda::allow_tf32() ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH;
  return dtype == kFloat64 ? CUDNN_DEFAULT_MATH : CUDNN_TENSOR_OP_MATH;
}

constexpr std::int64_t kMostElements = std::numeric_limits<std::int32_t>::max();

bool has_size(const Conv2dGeometry& g) {
  return g.n * g.in * g.h * g.w <= kMostElements && g.n * g.out * g.oh * g.ow <= kMostElements &&
         g.out * g.group_in() * g.kh * g.kw <= kMostElements;
}

/// A convolution in the library's words. Makes nothing that a device is needed for.
struct Descriptors {
  Descriptors(const Conv2dGeometry& g, DType dtype) {
    LOCKSTEP_CHECK(has_size(g), "[conv2d] cuDNN takes tensors of up to {} elements, found {}; use a smaller batch",
                   kMostElements, describe(g, dtype));
    const cudnnTensorFormat_t format = g.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    const auto set = [&](const TensorDescriptor& tensor, std::int64_t n, std::int64_t c, std::int64_t h,
                         std::int64_t w) {
      LOCKSTEP_CUDNN_CHECK(cudnn().cudnnSetTensor4dDescriptor(tensor, format, data_type(dtype), static_cast<int>(n),
                                                              static_cast<int>(c), static_cast<int>(h),
                                                              static_cast<int>(w)));
    };
    set(x, g.n, g.in, g.h, g.w);
    set(y, g.n, g.out, g.oh, g.ow);
    set(bias, 1, g.out, 1, 1);
    LOCKSTEP_CUDNN_CHECK(cudnn().cudnnSetFilter4dDescriptor(weight, data_type(dtype), format, static_cast<int>(g.out),
                                                            static_cast<int>(g.group_in()), static_cast<int>(g.kh),
                                                            static_cast<int>(g.kw)));
    LOCKSTEP_CUDNN_CHECK(cudnn().cudnnSetConvolution2dDescriptor(
        convolution, static_cast<int>(g.padding.h), static_cast<int>(g.padding.w), static_cast<int>(g.stride.h),
        static_cast<int>(g.stride.w), static_cast<int>(g.dilation.h), static_cast<int>(g.dilation.w),
        CUDNN_CROSS_CORRELATION, dtype == kFloat64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT));
    LOCKSTEP_CUDNN_CHECK(cudnn().cudnnSetConvolutionGroupCount(convolution, static_cast<int>(g.groups)));
    LOCKSTEP_CUDNN_CHECK(cudnn().cudnnSetConvolutionMathType(convolution, math_type(dtype)));
  }

  Shape output_sizes() const {
    int n, c, h, w;
    LOCKSTEP_CUDNN_CHECK(cudnn().cudnnGetConvolution2dForwardOutputDim(convolution, x, weight, &n, &c, &h, &w));
    return {n, c, h, w};
  }

  TensorDescriptor x, y, bias;
  FilterDescriptor weight;
  ConvolutionDescriptor convolution;
};

/// Memory to time algorithms in; what is in it does not matter.
struct Scratch {
  void *x, *weight, *y, *work;
  std::size_t bytes;
};

struct Forward {
  using Algorithm = cudnnConvolutionFwdAlgo_t;
  using Result = cudnnConvolutionFwdAlgoPerf_t;
  static constexpr const char* kName = "the forward pass";
  static constexpr Algorithm kSafe[] = {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                        CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM};
  static constexpr Algorithm kInaccurate[] = {CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
                                              CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING};
  static cudnnStatus_t ask(cudnnHandle_t handle, const Descriptors& d, int room, int* count, Result* results) {
    return cudnn().cudnnGetConvolutionForwardAlgorithm_v7(handle, d.x, d.weight, d.convolution, d.y, room, count,
                                                          results);
  }
  static cudnnStatus_t measure(cudnnHandle_t handle, const Descriptors& d, const Scratch& s, int room, int* count,
                               Result* results) {
    return cudnn().cudnnFindConvolutionForwardAlgorithmEx(handle, d.x, s.x, d.weight, s.weight, d.convolution, d.y, s.y,
                                                          room, count, results, s.work, s.bytes);
  }
  static cudnnStatus_t workspace(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm, std::size_t* bytes) {
    return cudnn().cudnnGetConvolutionForwardWorkspaceSize(handle, d.x, d.weight, d.convolution, d.y, algorithm, bytes);
  }
};

struct BackwardData {
  using Algorithm = cudnnConvolutionBwdDataAlgo_t;
  using Result = cudnnConvolutionBwdDataAlgoPerf_t;
  static constexpr const char* kName = "the gradient of x";
  static constexpr Algorithm kSafe[] = {CUDNN_CONVOLUTION_BWD_DATA_ALGO_1};
  static constexpr Algorithm kInaccurate[] = {CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED,
                                              CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT,
                                              CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING};
  static cudnnStatus_t ask(cudnnHandle_t handle, const Descriptors& d, int room, int* count, Result* results) {
    return cudnn().cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, d.weight, d.y, d.convolution, d.x, room, count,
                                                               results);
  }
  static cudnnStatus_t measure(cudnnHandle_t handle, const Descriptors& d, const Scratch& s, int room, int* count,
                               Result* results) {
    return cudnn().cudnnFindConvolutionBackwardDataAlgorithmEx(handle, d.weight, s.weight, d.y, s.y, d.convolution, d.x,
                                                               s.x, room, count, results, s.work, s.bytes);
  }
  static cudnnStatus_t workspace(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm, std::size_t* bytes) {
    return cudnn().cudnnGetConvolutionBackwardDataWorkspaceSize(handle, d.weight, d.y, d.convolution, d.x, algorithm,
                                                                bytes);
  }
};

struct BackwardWeight {
  using Algorithm = cudnnConvolutionBwdFilterAlgo_t;
  using Result = cudnnConvolutionBwdFilterAlgoPerf_t;
  static constexpr const char* kName = "the gradient of weight";
  static constexpr Algorithm kSafe[] = {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1};
  static constexpr Algorithm kInaccurate[] = {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED,
                                              CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT,
                                              CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING};
  static cudnnStatus_t ask(cudnnHandle_t handle, const Descriptors& d, int room, int* count, Result* results) {
    return cudnn().cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, d.x, d.y, d.convolution, d.weight, room, count,
                                                                 results);
  }
  static cudnnStatus_t measure(cudnnHandle_t handle, const Descriptors& d, const Scratch& s, int room, int* count,
                               Result* results) {
    return cudnn().cudnnFindConvolutionBackwardFilterAlgorithmEx(handle, d.x, s.x, d.y, s.y, d.convolution, d.weight,
                                                                 s.weight, room, count, results, s.work, s.bytes);
  }
  static cudnnStatus_t workspace(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm, std::size_t* bytes) {
    return cudnn().cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, d.x, d.y, d.convolution, d.weight, algorithm,
                                                                  bytes);
  }
};

}  // namespace
}  // namespace lockstep::conv2d_device
