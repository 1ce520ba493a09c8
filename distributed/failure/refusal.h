#pragma once

#include <array>
#include <string>
#include <string_view>

#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// Note [Why ranks cannot meet]
/// A rank that finds out that the job cannot begin says so in the stores in which the others count themselves in, and
/// they end with its word instead of waiting for it. Who holds the store stays until they have read that, for
/// kLeaveTaking at most.
inline constexpr Milliseconds kLeaveTaking{1'000};

/// Where in the job's store its ranks count themselves in: to learn who shares a machine, and for each backend.
inline constexpr std::array<std::string_view, 4> kMeetingPlaces{"machines", "shm", "gloo", "mpi"};
/// The store of one of these, "world/shm" in `store`, say.
StorePtr meeting_place(StorePtr store, std::string_view name);

/// In all of them. The first word stays.
void refuse_meeting(Store& store, std::string_view why) noexcept;
/// In one of those: what was said; empty if nothing was, or the store has no time to tell it now.
std::string refusal_of(Store& store);

}  // namespace lockstep::distributed
