#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/dataset.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::apps {

struct Evaluation {
  double accuracy = 0.0;
  double loss = 0.0;
};

/// Accuracy and mean loss over the whole set. With a group, the ranks share the batches, each sample is counted exactly
/// once, and all get the result: the same bits on any number of ranks.
Evaluation evaluate(nn::Module& module, const std::shared_ptr<const data::Dataset>& dataset,
                    distributed::ProcessGroup* group);

}  // namespace lockstep::apps
