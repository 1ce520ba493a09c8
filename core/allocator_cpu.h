#pragma once

#include "lockstep/core/allocator.h"

namespace lockstep {

/// Keeps freed blocks by size class and hands them out again: returning large blocks to the system costs a page fault
/// for each 4 KiB when they come back. All logical CPU devices share it. Lives until the process ends.
Allocator& cpu_allocator();

}  // namespace lockstep
