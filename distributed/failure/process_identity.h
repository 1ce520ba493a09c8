#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace lockstep::distributed {

/// Names one process among all machines, so that others can tell what became of it.
struct ProcessIdentity {
  std::string host;   ///< for people
  std::string space;  ///< equal for processes that see each other under /proc
  pid_t pid = -1;
  std::uint64_t start = 0;  ///< tells it from a later process with the same number
};

/// Of this process.
ProcessIdentity own_identity();
/// As one line of text, and back; an unknown process for other text.
std::string encode(const ProcessIdentity& process);
ProcessIdentity decode_identity(const std::string& text);

enum class ProcessFate {
  unknown,  ///< on another machine, or /proc does not say
  running,
  stopped,  ///< by a signal or a debugger
  gone,
};

/// What has become of a process, as far as this machine can see.
ProcessFate fate_of(const ProcessIdentity& process);

}  // namespace lockstep::distributed
