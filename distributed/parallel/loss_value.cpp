#include "lockstep/distributed/parallel/loss_value.h"

#include <cmath>

#include "lockstep/core/check.h"

namespace lockstep::distributed {

void check_loss(const LossValue& loss, const char* step) {
  LOCKSTEP_CHECK(loss.value().defined() && loss.value().numel() == 1,
                 "[{}] the loss function must return one element, the mean loss or a sum; found {}", step,
                 loss.value().defined() ? to_string(loss.value().sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(!loss.count() || (std::isfinite(*loss.count()) && *loss.count() >= 0.0),
                 "[{}] the loss function returned a count of {}; expected a finite number, at least 0", step,
                 loss.count().value_or(0.0));
}

}  // namespace lockstep::distributed
