#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep {
class FileDescriptor;
}

namespace lockstep::distributed {

/// Note [What rank 0 does for all]
/// Some things one rank does for all: writing a checkpoint, reading a file that only its machine has. If it fails and
/// throws, the others must not go on, or wait for its next collective in vain. So its result travels: what it throws is
/// thrown on every rank, with the same message.

/// A collective: runs `body` on rank 0. Throws there what it throws, and on the other ranks an Error with the same
/// message. `body` may take longer than the group's timeout, up to an hour; the others hear that it is still at work.
void on_rank0(ProcessGroup& group, const std::function<void()>& body);

/// A file that rank 0 reads, on every rank: in memory on other machines, which need not see rank 0's disk, once on
/// each. The file is read once: what takes its name meanwhile does not matter.
class Rank0File {
 public:
  /// A collective. Rank 0's `path` counts. Throws Error on every rank if rank 0 cannot read it.
  Rank0File(const std::string& path, ProcessGroup& group);

  /// Calls body with a path under which this process can open the file. Errors name the file as rank 0 does.
  void read(const std::function<void(const std::string& path)>& body) const;

 private:
  std::string name_;
  std::shared_ptr<FileDescriptor> descriptor_;
};

}  // namespace lockstep::distributed
