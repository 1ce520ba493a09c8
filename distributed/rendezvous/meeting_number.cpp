#include "lockstep/distributed/rendezvous/meeting_number.h"

#include <utility>

#include "lockstep/core/log.h"
#include "lockstep/distributed/failure/process_identity.h"
#include "lockstep/distributed/failure/refusal.h"
#include "lockstep/distributed/store/prefix_store.h"

namespace lockstep::distributed {

MeetingNumber::MeetingNumber(StorePtr store, int rank)
    : store_(std::move(store)),
      counter_(fmt::format("meetings/{} {}", rank, encode(own_identity()))),
      before_(store_->add(counter_, 0)) {}

MeetingNumber::~MeetingNumber() {
  try {
    store_->add(counter_, 1, kLeaveTaking);
  } catch (const std::exception& error) {
    logging::debug("cannot count this meeting: {}", error.what());
  }
}

StorePtr MeetingNumber::keys() const {
  if (before_ == 0) return store_;
  return std::make_shared<PrefixStore>(fmt::format("meeting-{}", before_), store_);
}

}  // namespace lockstep::distributed
