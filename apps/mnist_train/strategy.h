#pragma once

#include <functional>
#include <memory>

#include "apps/mnist_train/options.h"
#include "data/dataset.h"
#include "distributed/job/job.h"
#include "distributed/parallel/reducer.h"
#include "nn/module.h"

namespace lockstep::apps {

/// How one global batch becomes gradients: on one device, on several, or on several processes.
class Strategy {
 public:
  using Factory = std::function<std::unique_ptr<nn::Module>()>;
  virtual ~Strategy() = default;

  /// Leaves the gradients of the mean loss over the global batch in module()'s parameters and returns that loss.
  virtual double step(const data::Batch& batch) = 0;
  /// The module that is trained, evaluated and saved.
  virtual nn::Module& module() = 0;
  /// ddp: when gradients and all-reduces of the last step happened; else null.
  virtual const distributed::ReducerTrace* trace() const { return nullptr; }
};

/// `job` is used by Mode::ddp alone and must outlive the strategy.
std::unique_ptr<Strategy> make_strategy(const TrainOptions& options, const Strategy::Factory& factory,
                                        const distributed::Job* job);

}  // namespace lockstep::apps
