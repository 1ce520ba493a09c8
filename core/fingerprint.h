#pragma once

#include <string>

namespace lockstep {

/// What the bits of results depend on beside the program's inputs, as text for people and for comparison: the build of
/// lockstep and settings from the environment that select kernels; with LOCKSTEP_KERNELS=libraries the processor's
/// model and the builds of the libraries that compute too (Note [What bits depend on]). Two processes with equal
/// fingerprints compute the same bits from the same inputs.
///
///   lockstep 5f2c01d8a9b3
///   cpu Intel(R) Xeon(R) Processor; lockstep 5f2c01d8a9b3; libdnnl.so.2 8b1d2e77; LOCKSTEP_KERNELS=libraries
///
/// Builds are told by the linker's build ids: those of lockstep's own libraries or, where it is linked statically, of
/// the program. `cuda` adds the libraries that compute on CUDA devices; they are opened at first use, and listed from
/// then on.
std::string numeric_fingerprint(bool cuda = false);

}  // namespace lockstep
