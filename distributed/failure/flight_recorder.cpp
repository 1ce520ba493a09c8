#include "lockstep/distributed/failure/flight_recorder.h"

#include <algorithm>

namespace lockstep::distributed {

std::int64_t steady_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::string_view name(OperationRecord::State state) {
  switch (state) {
    case OperationRecord::State::queued:
      return "queued";
    case OperationRecord::State::started:
      return "started";
    case OperationRecord::State::finished:
      return "finished";
    case OperationRecord::State::failed:
      return "failed";
  }
  return "unknown";
}

FlightRecorder::FlightRecorder(std::size_t capacity, int rank, int world_size)
    : ring_(std::max<std::size_t>(capacity, 1)), rank_(rank), world_size_(world_size) {}

std::uint64_t FlightRecorder::queued(const Operation& operation) {
  OperationRecord record;
  record.operation = info_of(operation);
  if (operation.input.defined()) record.input_sizes = operation.input.sizes();
  if (operation.output.defined()) record.output_sizes = operation.output.sizes();
  record.queued_ns = steady_now_ns();
  const std::lock_guard lock(mutex_);
  record.id = next_++;
  ring_[record.id % ring_.size()] = record;
  return record.id;
}

void FlightRecorder::started(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  if (OperationRecord* record = find(id)) {
    record->state = OperationRecord::State::started;
    record->started_ns = steady_now_ns();
  }
}

void FlightRecorder::finished(std::uint64_t id, bool success) {
  const std::lock_guard lock(mutex_);
  if (OperationRecord* record = find(id)) {
    record->state = success ? OperationRecord::State::finished : OperationRecord::State::failed;
    record->finished_ns = steady_now_ns();
  }
}

std::vector<OperationRecord> FlightRecorder::records() const {
  const std::lock_guard lock(mutex_);
  std::vector<OperationRecord> result;
  const std::uint64_t count = std::min<std::uint64_t>(next_, ring_.size());
  result.reserve(count);
  for (std::uint64_t id = next_ - count; id < next_; ++id) result.push_back(ring_[id % ring_.size()]);
  return result;
}

OperationRecord* FlightRecorder::find(std::uint64_t id) {
  OperationRecord& record = ring_[id % ring_.size()];
  return id < next_ && record.id == id ? &record : nullptr;
}

}  // namespace lockstep::distributed
