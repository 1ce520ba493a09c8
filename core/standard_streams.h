#pragma once

namespace lockstep {

/// What becomes of what is printed to a stream that was closed.
enum class StandIn : unsigned char {
  takes,    ///< it is lost: a launcher without a terminal has its logs
  refuses,  ///< printing fails, as it would have: a program must not end well without having told its result
};

/// Opens /dev/null under each of the numbers 0, 1 and 2 that is closed, as in a program started with `>&-` or by a
/// supervisor that closes everything. Otherwise the next file, pipe or connection would get that number, and what is
/// printed would be written into it. For what opens descriptors of its own, before it does. Throws Error if /dev/null
/// cannot be opened.
void keep_standard_streams_open(StandIn stand_in = StandIn::takes);

}  // namespace lockstep
