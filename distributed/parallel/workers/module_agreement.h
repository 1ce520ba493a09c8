#pragma once

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Throws Error on every rank unless all ranks hold a module with the same names, shapes and dtypes in the same order.
/// The message names the ranks that differ from rank 0 and, on those, the first difference.
void check_module_agreement(const nn::Module& module, ProcessGroup& group);

}  // namespace lockstep::distributed
