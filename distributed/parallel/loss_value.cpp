#include "lockstep/distributed/parallel/loss_value.h"

#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep::distributed {

void check_loss(const LossValue& loss) {
  LOCKSTEP_CHECK(loss.value().defined() && loss.value().numel() == 1,
                 "[TrainingStep] the loss function must return one element, the mean loss or a sum; found {}",
                 loss.value().defined() ? to_string(loss.value().sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(!loss.count() || (std::isfinite(*loss.count()) && *loss.count() >= 0.0),
                 "[TrainingStep] the loss function returned a count of {}; expected a finite number, at least 0",
                 loss.count().value_or(0.0));
}

}  // namespace lockstep::distributed
