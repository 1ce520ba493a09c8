#include "lockstep/core/copy.h"
#include "lockstep/distributed/collectives/tree_sum.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {
namespace {

/// Nothing to talk to: reductions keep the value, everything else is a copy or nothing.
class SingleProcessGroup final : public ProcessGroup {
 public:
  explicit SingleProcessGroup(ProcessGroupOptions options) : ProcessGroup(options) {}

  std::string_view backend() const override { return "self"; }

  void abort(std::string_view) override {}

 protected:
  WorkPtr launch(Operation operation, std::uint64_t record) override {
    auto work = std::make_shared<Work>(describe(operation), timeout());
    recorder().started(record);
    if (operation.divisor.defined()) {
      const void* part = operation.input.raw_data();
      const TreeNode root;
      tree_sum(operation.output.dtype(), operation.output.raw_data(), {&part, 1}, {&root, 1}, operation.output.numel(),
               *operation.divisor.data<double>());
    } else if (operation.output.defined() && !operation.output.is_same(operation.input))
      copy_values(operation.input.as_strided({operation.input.numel()}, {1}, operation.input.offset()),
                  operation.output.as_strided({operation.output.numel()}, {1}, operation.output.offset()));
    recorder().finished(record, true);
    work->complete();
    return work;
  }

  void check_device(const Tensor&, OperationKind) const override {}
};

}  // namespace

ProcessGroupPtr make_single_process_group(ProcessGroupOptions options) {
  options.rank = 0;
  options.world_size = 1;
  return std::make_shared<SingleProcessGroup>(options);
}

}  // namespace lockstep::distributed
