#pragma once

#include "apps/mnist_train/options.h"

namespace lockstep::apps {

/// Trains, evaluates and saves as the options say; in ddp mode as one rank of its job. Throws Error.
void train(const TrainOptions& options);

}  // namespace lockstep::apps
