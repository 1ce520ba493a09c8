#pragma once

namespace lockstep {

/// Opens /dev/null under each of the numbers 0, 1 and 2 that is closed, as in a program started with `>&-` or by a
/// supervisor that closes everything. Otherwise the next file, pipe or connection would get that number, and what is
/// printed would be written into it. For what opens descriptors of its own, before it does. Throws Error if /dev/null
/// cannot be opened.
void keep_standard_streams_open();

}  // namespace lockstep
