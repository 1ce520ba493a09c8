#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed::testing {

/// A group of `world` ranks without the others: notes what is launched and ends it at once, leaving tensors as they
/// are.
class RecordingProcessGroup final : public ProcessGroup {
 public:
  explicit RecordingProcessGroup(int world) : ProcessGroup({.rank = 0, .world_size = world}) {}

  std::string_view backend() const override { return "recording"; }
  void abort(std::string_view) override {}

  std::vector<Tensor> launched;
  std::function<void()> on_launch = [] {};

 protected:
  WorkPtr launch(Operation operation, std::uint64_t record) override {
    launched.push_back(operation.input.defined() ? operation.input : operation.output);
    on_launch();
    recorder().started(record);
    recorder().finished(record, true);
    auto work = std::make_shared<Work>("recorded", Milliseconds(1000));
    work->complete();
    return work;
  }
  void check_device(const Tensor&, OperationKind) const override {}
};

}  // namespace lockstep::distributed::testing
