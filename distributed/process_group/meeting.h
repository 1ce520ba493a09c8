#pragma once

#include <string_view>

#include "distributed/process_group/process_group.h"
#include "distributed/store/store.h"

namespace lockstep::distributed {

/// Counts the ranks in through `store`, which must be empty of keys of other groups. Blocks until all have come. Throws
/// Error, beginning with [`backend`], that names the ranks which did not come by the deadline, or a rank that came
/// twice.
void meet(Store& store, const ProcessGroupOptions& group, std::string_view backend);

}  // namespace lockstep::distributed
