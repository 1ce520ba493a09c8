#pragma once

#include <string>

namespace lockstep::cuda {

// What a build with CUDA needs of a machine, in words. Versions are CUDA's: 12040 is 12.4.

/// Why a driver that serves up to CUDA `driver` (0: there is none) cannot serve a runtime of version `runtime`, as part
/// of a sentence.
std::string explain_driver(int driver, int runtime);

/// Why a GPU of compute capability major.minor cannot run what was compiled for `architectures`, a list as CMake takes
/// it, with commas or semicolons: "90", "80-real,90-virtual"; as part of a sentence. Empty if it can, and for words
/// such as "native". Machine code runs on the same major and at least that minor number, PTX on everything from its own
/// on, and neither elsewhere if it was compiled for features of one GPU (90a).
std::string explain_architecture(const std::string& architectures, int major, int minor);

}  // namespace lockstep::cuda
