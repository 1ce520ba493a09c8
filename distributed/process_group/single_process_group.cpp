#include "lockstep/core/copy.h"
#include "lockstep/distributed/collectives/tree_sum.h"
#include "lockstep/distributed/process_group/executor.h"

namespace lockstep::distributed {
namespace {

/// Nothing to talk to: reductions keep the value, everything else is a copy or nothing.
class SingleExecutor final : public Executor {
 public:
  using Executor::Executor;

  std::string_view backend() const override { return "self"; }
  void check(const Tensor&, OperationKind) const override {}

  std::unique_ptr<Executor> split(const SplitGroup& part) override {
    return std::make_unique<SingleExecutor>(part.group);
  }

  WorkPtr launch(Operation operation, std::uint64_t record) override {
    auto work = std::make_shared<Work>(describe(operation), group_.timeout());
    group_.recorder().started(record);
    if (operation.divisor.defined()) {
      const LibraryAccess access;
      const void* part = operation.input.raw_data();
      const TreeNode root;
      tree_sum(operation.output.dtype(), operation.output.raw_data(), {&part, 1}, {&root, 1}, operation.output.numel(),
               *operation.divisor.data<double>());
    } else if (operation.output.defined() && !operation.output.is_same(operation.input))
      copy_values(operation.input.as_strided({operation.input.numel()}, {1}, operation.input.offset()),
                  operation.output.as_strided({operation.output.numel()}, {1}, operation.output.offset()));
    group_.recorder().finished(record, true);
    work->complete();
    return work;
  }
};

}  // namespace

ProcessGroupPtr make_single_process_group(ProcessGroupOptions options, std::shared_ptr<ProcessGroup> parent) {
  options.rank = 0;
  options.world_size = 1;
  auto group = std::make_shared<ProcessGroup>(options, std::move(parent));
  group->add(kCPU, std::make_unique<SingleExecutor>(*group));
  return group;
}

}  // namespace lockstep::distributed
