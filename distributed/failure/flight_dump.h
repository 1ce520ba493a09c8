#pragma once

#include <string>
#include <string_view>

#include "lockstep/distributed/failure/flight_recorder.h"

namespace lockstep::distributed {

/// Note [Flight dumps]
/// What the flight recorders hold, as JSON lines: one that says who, when and why,
///   {"dump":"SIGSEGV","rank":2,"world_size":4,"pid":4711,"steady_ns":...,"wall_ns":...}
/// then one for each operation, oldest first,
///   {"rank":2,"id":17,"operation":"all_reduce","number":17,"reduce":"avg","peer":-1,"label":"bucket 2: fc1.weight",
///    "step":41,"dtype":"float32","input":[1024],"output":[1024],"state":"started","queued_ns":...,"started_ns":...,
///    "finished_ns":0}
/// Times are of the steady clock, 0 for "not yet"; several dumps of a process stand one after the other.
///
/// With LOCKSTEP_DUMP_DIR=DIR a process that has a process group writes DIR/rank<R>.<pid>.jsonl when an operation fails
/// or times out, on SIGUSR1, and on SIGSEGV, SIGABRT, SIGBUS, SIGFPE and SIGILL, whose own effect then follows. Without
/// it, SIGUSR1 and the fatal signals write one line to stderr: the rank, its step and its last operation. A program's
/// own handlers, set before, are left alone.
class FlightDumps {
 public:
  /// From now on the recorder is part of this process's dumps. Sets the handlers, the first time.
  static void add(const FlightRecorder& recorder);
  /// Sets the handlers in a process that trains without a group: SIGUSR1 does not end it, whoever sends it to each.
  static void answer_requests();
  static void remove(const FlightRecorder& recorder);
  /// Into LOCKSTEP_DUMP_DIR if it is set.
  static void write_after_failure(const FlightRecorder& recorder, std::string_view reason);
};

/// Adds a dump to a file. Throws Error if it cannot be written.
void write_flight_dump(const std::string& path, const FlightRecorder& recorder, std::string_view reason);

}  // namespace lockstep::distributed
