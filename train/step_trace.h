#pragma once

// For .cpp files only.

#include <string>
#include <vector>

#include "lockstep/distributed/failure/flight_recorder.h"
#include "lockstep/distributed/parallel/reduction/reducer.h"
#include "lockstep/distributed/parallel/reduction/reducer_trace.h"

namespace lockstep::training {

/// Writes one step as a Chrome trace (chrome://tracing, Perfetto): backward's span, when each bucket was launched, and
/// every collective that ran between the step's first gradient and its end. Times in microseconds since the first
/// gradient. Throws Error if the file cannot be written.
void write_step_trace(const std::string& path, const distributed::ReducerTrace& trace,
                      const std::vector<distributed::OperationRecord>& records);

}  // namespace lockstep::training
