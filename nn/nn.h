#pragma once

// Everything in lockstep::nn and lockstep::optim.

#include "lockstep/nn/activation.h"
#include "lockstep/nn/attention.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/container.h"
#include "lockstep/nn/conv.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/init.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/norm.h"
#include "lockstep/nn/optim/adam.h"
#include "lockstep/nn/optim/clip_grad.h"
#include "lockstep/nn/optim/grad_scaler.h"
#include "lockstep/nn/optim/optimizer.h"
#include "lockstep/nn/optim/schedule.h"
#include "lockstep/nn/optim/sgd.h"
#include "lockstep/nn/pooling.h"
#include "lockstep/nn/safetensors.h"
