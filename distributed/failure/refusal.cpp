#include "lockstep/distributed/failure/refusal.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/log.h"
#include "lockstep/distributed/store/prefix_store.h"

namespace lockstep::distributed {
namespace {

constexpr const char* kKey = "refusal";
constexpr Milliseconds kAnswerTime{250};

std::string prefix_of(std::string_view place) {
  return fmt::format("world/{}", place);
}

}  // namespace

StorePtr meeting_place(StorePtr store, std::string_view name) {
  LOCKSTEP_ASSERT(std::ranges::find(kMeetingPlaces, name) != kMeetingPlaces.end(), "no meeting place '{}'", name);
  return std::make_shared<PrefixStore>(prefix_of(name), std::move(store));
}

void refuse_meeting(Store& store, std::string_view why) noexcept {
  try {
    for (const std::string_view place : kMeetingPlaces)
      store.compare_set(fmt::format("{}/{}", prefix_of(place), kKey), "", why, kLeaveTaking);
  } catch (const std::exception& error) {
    logging::debug("cannot tell the others why the ranks cannot meet: {}", error.what());
  }
}

std::string refusal_of(Store& store) {
  try {
    if (store.check({kKey}, kAnswerTime)) return store.get(kKey, kAnswerTime);
  } catch (const TimeoutError&) {
  }
  return {};
}

}  // namespace lockstep::distributed
