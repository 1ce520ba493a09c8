#pragma once

#include <string>

namespace lockstep {

/// What the bits of results depend on beside the program's inputs, as text for people and for comparison: the
/// processor's model, the build of lockstep, the builds of the libraries that compute for it, and settings from the
/// environment that select kernels. Two processes with equal fingerprints compute the same bits from the same inputs.
///
///   cpu Intel(R) Xeon(R) Processor; lockstep 5f2c01d8a9b3; libdnnl.so.2 8b1d2e77; libm.so.6 1f3a9c0d
///
/// Builds are told by the linker's build ids: those of lockstep's own libraries or, where it is linked statically, of
/// the program. `cuda` adds the libraries that compute on CUDA devices; they are opened at first use, and listed from
/// then on.
std::string numeric_fingerprint(bool cuda = false);

}  // namespace lockstep
