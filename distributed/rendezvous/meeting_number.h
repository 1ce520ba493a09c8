#pragma once

#include <cstdint>
#include <string>

#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// Note [Meetings in one store]
/// A store may outlive the job that met in it, a launcher's or a program's, or the attempt of a job that could not
/// begin, and still holds what the ranks have left there. So each meeting has keys of its own. Ranks agree on which one
/// it is without a word, since each has come to the same number of them: the store keeps for each process and rank how
/// many are over.
class MeetingNumber {
 public:
  /// This process is about to meet the others as `rank`. Throws StoreError or TimeoutError.
  MeetingNumber(StorePtr store, int rank);
  /// The meeting is over, whatever came of it. Never throws; without the store nothing is counted.
  ~MeetingNumber();
  MeetingNumber(const MeetingNumber&) = delete;
  MeetingNumber& operator=(const MeetingNumber&) = delete;

  /// For the keys of this meeting.
  StorePtr keys() const;

 private:
  StorePtr store_;
  std::string counter_;
  std::int64_t before_;
};

}  // namespace lockstep::distributed
