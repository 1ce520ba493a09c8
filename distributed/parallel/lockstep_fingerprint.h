#pragma once

#include <cstdint>
#include <string>

#include "lockstep/core/device.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// What has to be equal for two lockstep runs that train on `device` to give the same bits: numeric_fingerprint(), the
/// device, the result of a short calculation there (arithmetic_hash()), V and the seed.
std::string lockstep_fingerprint(std::int64_t logical_shards, Device device = {});

/// Throws Error on every rank unless all ranks have the same fingerprint; the message names the ranks that differ from
/// rank 0 and shows both, whole, whatever their lengths.
void check_fingerprint_agreement(const std::string& fingerprint, ProcessGroup& group);

}  // namespace lockstep::distributed
