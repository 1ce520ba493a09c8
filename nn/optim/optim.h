#pragma once

// Everything in lockstep::optim.

#include "lockstep/nn/optim/adam.h"
#include "lockstep/nn/optim/clip_grad.h"
#include "lockstep/nn/optim/grad_scaler.h"
#include "lockstep/nn/optim/optimizer.h"
#include "lockstep/nn/optim/rmsprop.h"
#include "lockstep/nn/optim/schedule.h"
#include "lockstep/nn/optim/sgd.h"
#include "lockstep/nn/optim/whole_tensors.h"
