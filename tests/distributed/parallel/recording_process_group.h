#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/distributed/process_group/executor.h"

namespace lockstep::distributed::testing {

/// A group of `world` ranks without the others: notes what is launched and ends it at once, leaving tensors as they
/// are.
class RecordingProcessGroup final : public ProcessGroup {
 public:
  explicit RecordingProcessGroup(int world) : ProcessGroup({.rank = 0, .world_size = world}) {
    add(kCPU, std::make_unique<RecordingExecutor>(*this));
  }

  std::vector<Tensor> launched;
  std::function<void()> on_launch = [] {};

 private:
  class RecordingExecutor final : public Executor {
   public:
    explicit RecordingExecutor(RecordingProcessGroup& group) : Executor(group), notes_(group) {}

    std::string_view backend() const override { return "recording"; }
    void check(const Tensor&, OperationKind) const override {}
    WorkPtr launch(Operation operation, std::uint64_t record) override {
      notes_.launched.push_back(operation.input.defined() ? operation.input : operation.output);
      notes_.on_launch();
      group_.recorder().started(record);
      group_.recorder().finished(record, true);
      auto work = std::make_shared<Work>("recorded", Milliseconds(1000));
      work->complete();
      return work;
    }

    std::unique_ptr<Executor> split(const SplitGroup&) override { return nullptr; }

   private:
    RecordingProcessGroup& notes_;
  };
};

}  // namespace lockstep::distributed::testing
