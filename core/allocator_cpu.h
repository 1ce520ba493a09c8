#pragma once

#include "lockstep/core/allocator.h"

namespace lockstep {

/// Keeps freed blocks by size class and hands them out again: returning large blocks to the system costs a page fault
/// for each 4 KiB when they come back. Blocks in use and kept together take at most twice what was ever in use at once,
/// and 64 MiB: beyond that, the blocks of the sizes that nobody has asked for the longest go back first. All logical
/// CPU devices share it. A thread of a parallel loop keeps up to 1 MiB for itself, see Note [Memory of loops]. Lives
/// until the process ends, and in the children it forks.
Allocator& cpu_allocator();

}  // namespace lockstep
