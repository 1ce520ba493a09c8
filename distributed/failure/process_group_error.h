#pragma once

#include "lockstep/core/error.h"

namespace lockstep::distributed {

/// The group cannot work any more: a rank is gone, a deadline passed, or the ranks called different collectives. The
/// message names the operation, its number, the missing ranks and where each was last seen.
class ProcessGroupError : public Error {
 public:
  using Error::Error;
};

}  // namespace lockstep::distributed
