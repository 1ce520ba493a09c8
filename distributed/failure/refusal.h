#pragma once

#include <string>
#include <string_view>

#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// Note [Why ranks cannot meet]
/// A rank that finds out that the job cannot begin says so in the stores in which the others count themselves in, and
/// they end with its word instead of waiting for it. Who holds the store stays until they have read that, for
/// kLeaveTaking at most.
inline constexpr Milliseconds kLeaveTaking{1'000};

/// In the stores that the groups of the job are made from: "world/shm" in `store`, say. The first word stays.
void refuse_meeting(Store& store, std::string_view why) noexcept;
/// In one of those: what was said; empty if nothing was, or the store has no time to tell it now.
std::string refusal_of(Store& store);

}  // namespace lockstep::distributed
