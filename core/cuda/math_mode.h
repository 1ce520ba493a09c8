#pragma once

#include <string_view>

namespace lockstep::cuda {

/// True if products, convolutions and attention of float32 tensors on CUDA devices may compute with TF32's 10 bits
/// (accumulated in float32). Several times as fast on GPUs that have it, at a relative error of about 1e-3 instead of
/// 1e-7. Off, unless LOCKSTEP_ALLOW_TF32=1 or set_allow_tf32(true). For the whole process; set it before training.
bool allow_tf32();
void set_allow_tf32(bool value);

/// True, as it is at first, if only algorithms may run on CUDA devices that give the same bits each time on one device
/// model with one set of libraries. set_deterministic(false) lets libraries choose others where they are faster;
/// lockstep's own kernels are always deterministic, and lockstep training refuses to start without it.
bool deterministic();
void set_deterministic(bool value);

/// With set_deterministic(false): whether cuDNN's algorithms for a convolution are timed when it is first met on a
/// device, and the fastest is kept, as with torch.backends.cudnn.benchmark. Else its heuristics choose. Measured, a net
/// may train faster, float32 above all, where transforms may win, whose errors are up to ten times those of the sums;
/// but which is the fastest may differ from run to run, and with it the last bits. A convolution first met while a
/// graph is captured is not measured. Off, unless LOCKSTEP_CUDNN_BENCHMARK=1 (which is set_deterministic(false) too) or
/// set_benchmark(true). For the whole process.
bool benchmark();
void set_benchmark(bool value);

/// Note [Portable arithmetic]
/// With set_portable(true), products, convolutions and losses of float32 tensors on CUDA devices are computed by our
/// own kernels in the order of the CPU's (LOCKSTEP_KERNELS=own), step by step: a training step then gives the CPU's
/// bits. They use no libraries and no tensor cores and are many times slower; they are there to check a device, or to
/// go on with a run of another one. What has no such kernel throws Error: everything that sums or has library functions
/// in it and is not named here. Portable are copies, what is computed element by element without such functions, random
/// numbers, linear, matmul, cross_entropy, max_pool2d, the optimizers, and conv2d where the CPU computes it without a
/// transform: forward with few channels, backward under a 2 x 2 max_pool2d. For the whole process, off at first.
bool portable();
void set_portable(bool value);
/// Throws Error, naming `what`, while portable() holds.
void require_not_portable(std::string_view what);

}  // namespace lockstep::cuda
