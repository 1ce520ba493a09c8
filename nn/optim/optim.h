#pragma once

// Everything in lockstep::optim.

#include "nn/optim/adam.h"
#include "nn/optim/clip_grad.h"
#include "nn/optim/grad_scaler.h"
#include "nn/optim/optimizer.h"
#include "nn/optim/schedule.h"
#include "nn/optim/sgd.h"
