#pragma once

// Everything in data/.

#include "lockstep/data/cifar.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/image.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/mnist.h"
#include "lockstep/data/partition.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/transforms.h"
