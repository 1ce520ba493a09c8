#include "lockstep/distributed/failure/refusal.h"

#include "lockstep/core/log.h"

namespace lockstep::distributed {
namespace {

constexpr const char* kKey = "refusal";
constexpr Milliseconds kAnswerTime{250};

}  // namespace

void refuse_meeting(Store& store, std::string_view why) noexcept {
  try {
    for (const char* part : {"machines", "shm", "gloo", "mpi"})
      store.compare_set(fmt::format("world/{}/{}", part, kKey), "", why, kLeaveTaking);
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
