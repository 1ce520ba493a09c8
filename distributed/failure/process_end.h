#pragma once

#include <exception>
#include <string>

namespace lockstep::distributed {

class PeerMonitor;

/// Tells a job's other ranks when this process ends without taking leave: by exit(), or by an exception that nobody
/// catches, with its message. The hooks are set with the first monitor; an earlier terminate handler still runs.
namespace process_end {

void add(PeerMonitor& monitor);
void remove(PeerMonitor& monitor);

}  // namespace process_end

/// While an exception unwinds the stack: the message of the lockstep::Error that this thread made last, on one line, if
/// that was a moment ago; of other types nothing is known here, as it says then.
std::string unwinding_message();
/// The same for the end of the process: "threw: ...".
std::string unwinding_reason();

}  // namespace lockstep::distributed
