#include "lockstep/distributed/parallel/step_runner.h"

#include "lockstep/core/check.h"

namespace lockstep::distributed {

void check_divisor(double count) {
  LOCKSTEP_CHECK(count > 0.0, "[TrainingStep] the losses of this batch count 0; expected more, to divide by");
}

}  // namespace lockstep::distributed
