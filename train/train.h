#pragma once

// Everything in train/.

#include "lockstep/train/evaluation.h"
#include "lockstep/train/program.h"
#include "lockstep/train/run.h"
#include "lockstep/train/sink.h"
#include "lockstep/train/workers.h"
