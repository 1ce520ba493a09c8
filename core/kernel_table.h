#pragma once

#include <utility>

#include "lockstep/core/profile.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// True while LOCKSTEP_REFERENCE=1 (or set_reference_kernels) selects the plain reference kernels on the CPU.
bool reference_kernels();
void set_reference_kernels(bool value);

namespace detail {
[[noreturn]] void throw_no_kernel(const char* op, DeviceType device, DType dtype);
}

// Pending values are computed before the kernel that reads them starts, so that they have all threads.
inline void settle_argument(const Tensor& tensor) {
  if (tensor.defined()) tensor.storage()->settle();
}
template <typename T>
void settle_argument(const T&) {}

/// A kernel about to be called: the call is an event of Note [Profile].
template <typename Function>
struct KernelCall {
  const char* op;
  Function kernel;

  template <typename... Args>
  void operator()(Args&&... args) const {
    (settle_argument(args), ...);
    const LibraryAccess access;
    profile::Scope scope("kernel", op);
    if (scope.active()) [[unlikely]]
      (add_argument(scope, args), ...);
    kernel(std::forward<Args>(args)...);
  }
};

/// Note [Kernel tables]
/// One operation's kernels by device. `Function` is a function type, and declares the kernels too:
///
///   using SoftmaxKernel = void(const Tensor& x, const Tensor& out, int dim);
///   SoftmaxKernel softmax_cpu, softmax_cuda;
///   constexpr KernelTable<SoftmaxKernel> softmax_kernel{"softmax", softmax_cpu, LOCKSTEP_CUDA_KERNEL(softmax_cuda)};
///   softmax_kernel(x)(x, out, dim);
///
/// Kernels are named directly in the initialiser, so a kernel that was declared but never written is a link error, and
/// no static initialiser has to run. `cuda` is null in a CPU build. `reference` is given where `cpu` is more than plain
/// loops (a library, vectors by hand): plain loops with the same results up to rounding, which LOCKSTEP_REFERENCE=1
/// runs instead and tests compare with.
template <typename Function>
struct KernelTable {
  const char* op;
  Function* cpu;
  Function* cuda = nullptr;
  Function* reference = nullptr;

  /// The kernel for the device of `like`. Throws Error naming op, device and dtype if there is none.
  KernelCall<Function*> operator()(const Tensor& like) const {
    const DeviceType type = like.device().type;
    Function* kernel = type == kCUDA ? cuda : (reference && reference_kernels()) ? reference : cpu;
    if (!kernel) detail::throw_no_kernel(op, type, like.dtype());
    return {op, kernel};
  }
};

}  // namespace lockstep

// lockstep_add_op() sets these for an op's sources when the folder has <op>_cuda.cu and the build has CUDA, or
// <op>_onednn.cpp and the build has oneDNN.
#if defined(LOCKSTEP_OP_HAS_CUDA)
#define LOCKSTEP_CUDA_KERNEL(function) function
#else
#define LOCKSTEP_CUDA_KERNEL(function) nullptr
#endif
#if defined(LOCKSTEP_OP_HAS_ONEDNN)
#define LOCKSTEP_ONEDNN_KERNEL(function) function
#else
#define LOCKSTEP_ONEDNN_KERNEL(function) nullptr
#endif
