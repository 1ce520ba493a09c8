#pragma once

// Everything in lockstep::nn and lockstep::optim.

#include "nn/activation.h"
#include "nn/checkpoint.h"
#include "nn/container.h"
#include "nn/conv.h"
#include "nn/dropout.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/module.h"
#include "nn/norm.h"
#include "nn/optim/optim.h"
#include "nn/pooling.h"
#include "nn/safetensors.h"
#include "nn/weights_hash.h"
