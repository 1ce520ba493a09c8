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

/// What is said of an exception that is no lockstep::Error and of which only its unwinding is seen.
inline constexpr const char* kUnknownException = "what it says is not known here";
/// While an exception unwinds the stack: the message of the lockstep::Error that this thread made last, on one line, if
/// that was a moment ago; else kUnknownException.
std::string unwinding_message();
/// "threw: ...", also of kUnknownException.
std::string reason_of_end(const std::string& exception);
/// The same for what ends with it: "threw: ...". `remembered`: what is known to have been thrown before, if anything.
std::string unwinding_reason(const std::string& remembered);

}  // namespace lockstep::distributed
