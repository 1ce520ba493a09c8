#include "apps/mnist_train/strategy.h"

#include <utility>

#include "autograd/ops.h"
#include "core/check.h"
#include "distributed/parallel/data_parallel.h"
#include "distributed/parallel/distributed_data_parallel.h"

namespace lockstep::apps {
namespace {

Tensor loss_of(nn::Module& module, const data::Batch& part) {
  return cross_entropy(module.forward(part.x), part.y);
}

class SingleStrategy final : public Strategy {
 public:
  explicit SingleStrategy(const Factory& factory) : module_(factory()) {}

  double step(const data::Batch& batch) override {
    module_->zero_grad(/*set_to_none=*/true);
    const Tensor loss = loss_of(*module_, batch);
    loss.backward();
    return loss.item<double>();
  }
  nn::Module& module() override { return *module_; }

 private:
  std::unique_ptr<nn::Module> module_;
};

class DataParallelStrategy final : public Strategy {
 public:
  DataParallelStrategy(const Factory& factory, std::vector<Device> devices) : parallel_(factory, std::move(devices)) {}

  double step(const data::Batch& batch) override { return parallel_.step(batch, loss_of); }
  nn::Module& module() override { return parallel_.module(); }

 private:
  distributed::DataParallel parallel_;
};

class DdpStrategy final : public Strategy {
 public:
  DdpStrategy(const Factory& factory, const distributed::Job& job) : module_(factory()), ddp_(*module_, job) {}

  double step(const data::Batch& batch) override {
    return ddp_.step(batch, [this](const data::Batch& part) { return loss_of(*module_, part); });
  }
  nn::Module& module() override { return *module_; }
  const distributed::ReducerTrace* trace() const override { return &ddp_.reducer().trace(); }

 private:
  std::unique_ptr<nn::Module> module_;
  distributed::DistributedDataParallel ddp_;
};

}  // namespace

std::unique_ptr<Strategy> make_strategy(const TrainOptions& options, const Strategy::Factory& factory,
                                        const distributed::Job* job) {
  switch (options.mode) {
    case Mode::single:
      return std::make_unique<SingleStrategy>(factory);
    case Mode::dp:
      return std::make_unique<DataParallelStrategy>(factory, options.devices);
    case Mode::ddp:
      LOCKSTEP_ASSERT(job, "ddp without a job");
      return std::make_unique<DdpStrategy>(factory, *job);
  }
  return nullptr;
}

}  // namespace lockstep::apps
