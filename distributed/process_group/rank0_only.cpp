#include "lockstep/core/check.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {
namespace {

thread_local const Rank0Only* innermost = nullptr;

}  // namespace

Rank0Only::Rank0Only(std::string_view what) : outer_(innermost), what_(what) {
  innermost = this;
}

Rank0Only::~Rank0Only() {
  innermost = outer_;
}

void Rank0Only::check_outside(const Operation& operation, int rank) {
  LOCKSTEP_CHECK(
      !innermost,
      "[{}] was called on rank {} inside rank0_only(\"{}\"){}: the other ranks would never join it; move the "
      "call out of the scope, where every rank makes it",
      name(operation.kind), rank, innermost->what_,
      operation.label.empty() ? "" : fmt::format(" ({})", operation.label.text()));
}

}  // namespace lockstep::distributed
