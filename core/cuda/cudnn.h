#pragma once

// cuDNN's functions, opened as Note [Libraries of CUDA] says. For .cpp files only, and not on the emulated device.

#include <cudnn.h>

#include "lockstep/core/cuda/dynamic_library.h"

// Those that are used.
#define LOCKSTEP_CUDNN_FUNCTIONS(X)                 \
  X(cudnnCreate)                                    \
  X(cudnnSetStream)                                 \
  X(cudnnGetErrorString)                            \
  X(cudnnGetLastErrorString)                        \
  X(cudnnCreateTensorDescriptor)                    \
  X(cudnnDestroyTensorDescriptor)                   \
  X(cudnnSetTensor4dDescriptor)                     \
  X(cudnnCreateFilterDescriptor)                    \
  X(cudnnDestroyFilterDescriptor)                   \
  X(cudnnSetFilter4dDescriptor)                     \
  X(cudnnCreateActivationDescriptor)                \
  X(cudnnDestroyActivationDescriptor)               \
  X(cudnnSetActivationDescriptor)                   \
  X(cudnnCreateConvolutionDescriptor)               \
  X(cudnnDestroyConvolutionDescriptor)              \
  X(cudnnSetConvolution2dDescriptor)                \
  X(cudnnSetConvolutionGroupCount)                  \
  X(cudnnSetConvolutionMathType)                    \
  X(cudnnGetConvolution2dForwardOutputDim)          \
  X(cudnnGetConvolutionForwardAlgorithm_v7)         \
  X(cudnnGetConvolutionForwardWorkspaceSize)        \
  X(cudnnFindConvolutionForwardAlgorithmEx)         \
  X(cudnnConvolutionForward)                        \
  X(cudnnConvolutionBiasActivationForward)          \
  X(cudnnGetConvolutionBackwardDataAlgorithm_v7)    \
  X(cudnnGetConvolutionBackwardDataWorkspaceSize)   \
  X(cudnnFindConvolutionBackwardDataAlgorithmEx)    \
  X(cudnnConvolutionBackwardData)                   \
  X(cudnnGetConvolutionBackwardFilterAlgorithm_v7)  \
  X(cudnnGetConvolutionBackwardFilterWorkspaceSize) \
  X(cudnnFindConvolutionBackwardFilterAlgorithmEx)  \
  X(cudnnConvolutionBackwardFilter)

namespace lockstep::cuda {

struct CudnnFunctions {
#define LOCKSTEP_MEMBER(name) decltype(&::name) name = LOCKSTEP_FUNCTION_OF(cudnn_library(), name);
  LOCKSTEP_CUDNN_FUNCTIONS(LOCKSTEP_MEMBER)
#undef LOCKSTEP_MEMBER
};

/// Opens the library when first called. Throws Error if it, or one of the functions, cannot be found. Thread-safe.
const CudnnFunctions& cudnn();

/// A handle for this thread on the device, which is the present one, with work going to its current stream. Handles of
/// threads that have ended are used again.
cudnnHandle_t cudnn_handle(int device);

namespace detail {
[[noreturn]] void throw_cudnn_error(const char* file, int line, const char* expression, cudnnStatus_t status);
}

}  // namespace lockstep::cuda

/// Throws lockstep::Error with the expression, file:line and cuDNN's own words unless the call succeeded.
#define LOCKSTEP_CUDNN_CHECK(expression)                                                             \
  do {                                                                                               \
    const cudnnStatus_t lockstep_status = (expression);                                              \
    if (lockstep_status != CUDNN_STATUS_SUCCESS) [[unlikely]]                                        \
      ::lockstep::cuda::detail::throw_cudnn_error(__FILE__, __LINE__, #expression, lockstep_status); \
  } while (false)
