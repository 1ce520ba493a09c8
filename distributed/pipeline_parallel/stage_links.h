#pragma once

// For .cpp files only.

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/random.h"
#include "lockstep/core/tensor.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// What a message between stages is.
struct StageKey {
  enum class Kind : std::uint8_t {
    activation,  ///< what chunk `chunk` reads
    gradient,    ///< of what chunk `chunk` has given
    tied,        ///< of parameter `tied`, of all chunks behind `chunk` that use it
    result,      ///< of parameter `tied`, of the step
  };
  Kind kind = Kind::activation;
  std::int64_t micro_batch = 0;
  int chunk = 0;  ///< that it is for
  int tied = 0;

  friend auto operator<=>(const StageKey&, const StageKey&) = default;
};

/// A message: a tensor, perhaps undefined (no gradient), and where the micro-batch's random numbers stand.
struct StageValue {
  Tensor tensor;
  RandomPosition random = {};
};

/// How a stage cuts a batch: all stages into as many micro-batches.
struct StageCut {
  std::int64_t micro_batches = 1;
  std::int64_t samples = 0;  ///< of the ranks' part of the batch, for messages
};

/// Note [Stage links]
/// What the stages of a pipeline send each other, each message a header (shape, dtype, position of the random numbers,
/// how the sender cuts the batch), then the values, so that nothing about shapes has to be known before. Sends are
/// asynchronous and wait for nobody. The n-th message from a rank meets the n-th receive, so a rank takes another's
/// messages in the order in which that one's schedule sends them, whatever it needs first: all before the one that it
/// waits for have been sent before it.
///
/// Every wait has the group's deadline, and every message a label with stages and micro-batch, which errors show. A
/// receive begins when its message is needed, so that its deadline tells who is late; a stage may wait for as long as
/// others compute, so the deadline must be longer than a step takes.
class StageLinks {
 public:
  /// `device`: where values are that do not come from the CPU. `describe` makes the label of a message.
  StageLinks(ProcessGroupPtr group, Device device, std::function<std::string(const StageKey&)> describe);

  /// Begins a step: what each rank sends this one, in order, and how the batch is cut here. Receiving from a rank that
  /// cuts it into another number of micro-batches ends the group and throws Error.
  void begin(std::vector<std::deque<StageKey>> incoming, const StageCut& cut);
  /// Sends a value, to this rank itself too. What is sent must not be written to afterwards.
  void send(int to, const StageKey& key, const StageValue& value);
  /// Waits for a message.
  StageValue take(const StageKey& key);
  /// Waits until what this rank has sent has been received. Ends a step.
  void finish();
  /// Of values sent to other ranks, without headers, since the object was made.
  std::int64_t bytes_sent() const { return bytes_sent_; }

 private:
  void receive(int from);
  OperationLabel label_of(const StageKey& key);

  ProcessGroupPtr group_;
  Device device_;
  std::function<std::string(const StageKey&)> describe_;
  std::vector<std::deque<StageKey>> expected_;  // by rank
  StageCut cut_;
  std::map<StageKey, StageValue> arrived_;
  std::map<StageKey, OperationLabel> labels_;
  std::vector<WorkPtr> sends_;
  std::int64_t bytes_sent_ = 0;
};

}  // namespace lockstep::distributed
