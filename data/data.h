#pragma once

// Everything in data/.

#include "data/data_loader.h"
#include "data/dataset.h"
#include "data/digit_image.h"
#include "data/idx.h"
#include "data/image.h"
#include "data/image_folder.h"
#include "data/mnist.h"
#include "data/partition.h"
#include "data/sampler.h"
#include "data/transforms.h"
