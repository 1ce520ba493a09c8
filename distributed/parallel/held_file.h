#pragma once

// For .cpp files only.

#include <array>
#include <cstdint>

#include "lockstep/core/posix.h"

namespace lockstep::distributed {

/// Note [A file of another process]
/// Ranks on one machine can open each other's files as /proc/<pid>/fd/<number>. Whether two ranks are on one machine is
/// found out by that, and two machines must never be taken for one: copies of one image have the same names, devices
/// and inodes, the processes of containers the same numbers, and where rank 2 opens what it takes for rank 1's file, it
/// may find its own. So each rank has a second file, in memory, that says its rank and a number drawn at random:
/// whoever reads the two there is on its machine.

/// A file that a rank holds and others on its machine may open, as long as this object lives.
class HeldFile {
 public:
  using Numbers = std::array<std::int64_t, 6>;

  /// `descriptor` of this process; -1, and whatever cannot be shown: nobody will be able to open it.
  HeldFile(int descriptor, int rank);

  /// What the other ranks are to know.
  const Numbers& numbers() const { return numbers_; }

  /// The file that `rank` holds, of which it has told `numbers`; empty unless it is on this machine.
  static FileDescriptor open(const Numbers& numbers, int rank);

 private:
  FileDescriptor sign_;
  Numbers numbers_{};
};

}  // namespace lockstep::distributed
