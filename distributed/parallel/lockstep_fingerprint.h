#pragma once

#include <cstdint>
#include <string>

#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// What has to be equal for two lockstep runs to give the same bits: numeric_fingerprint(), V and the seed.
std::string lockstep_fingerprint(std::int64_t logical_shards);

/// Throws Error on every rank unless all ranks have the same fingerprint; the message names the ranks that differ from
/// rank 0 and shows both.
void check_fingerprint_agreement(const std::string& fingerprint, ProcessGroup& group);

}  // namespace lockstep::distributed
