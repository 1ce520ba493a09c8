#pragma once

// Everything a program needs: #include <lockstep/lockstep.h>

#include "autograd/grad_mode.h"
#include "autograd/ops.h"
#include "core/device.h"
#include "core/error.h"
#include "core/factories.h"
#include "core/random.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "data/data.h"
#include "distributed/job/job.h"
#include "distributed/launcher/spawn.h"
#include "distributed/parallel/communication_hook.h"
#include "distributed/parallel/data_parallel.h"
#include "distributed/parallel/distributed_data_parallel.h"
#include "distributed/parallel/power_sgd.h"
#include "distributed/parallel/sync_batch_norm.h"
#include "distributed/parallel/training_step.h"
#include "distributed/parallel/zero_redundancy_optimizer.h"
#include "nn/nn.h"
#include "nn/optim/optim.h"
