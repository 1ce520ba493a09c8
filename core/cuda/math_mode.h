#pragma once

namespace lockstep::cuda {

/// True if products and convolutions of float32 tensors on CUDA devices may be computed with TF32's 10 bits of mantissa
/// (accumulated in float32). Several times as fast on GPUs that have it, at a relative error of about 1e-3 instead of
/// 1e-7. Off, unless LOCKSTEP_ALLOW_TF32=1 or set_allow_tf32(true). For the whole process; set it before training.
bool allow_tf32();
void set_allow_tf32(bool value);

/// True, as it is at first, if only algorithms may run on CUDA devices that give the same bits each time on one device
/// model with one set of libraries. set_deterministic(false) lets libraries choose others where they are faster;
/// lockstep's own kernels are always deterministic, and lockstep training needs it on.
bool deterministic();
void set_deterministic(bool value);

}  // namespace lockstep::cuda
