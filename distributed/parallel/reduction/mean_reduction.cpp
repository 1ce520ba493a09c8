#include <algorithm>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/parallel/reduction/rank_reduction.h"
#include "lockstep/nn/optim/gradients.h"

namespace lockstep::distributed {

namespace {

class MeanReduction final : public RankReduction {
 public:
  MeanReduction(ProcessGroupPtr group, Device device, CommunicationHookPtr hook)
      : group_(std::move(group)), device_(device), hook_(std::move(hook)) {}

  void allocate(Bucket& bucket, std::int64_t elements, const TensorOptions& like, std::int64_t parameters) override {
    bucket.memory = zeros({bucket.is_last() ? elements + parameters : elements}, like);
    bucket.described.flat = bucket.memory.as_strided({elements}, {1}, 0);
    if (bucket.is_last()) use_ = bucket.memory.as_strided({parameters}, {1}, elements);
  }

  // A bucket at a time where the gradients lie in buckets.
  void clear_gradients(const std::vector<Bucket>& buckets, const std::vector<nn::NamedTensor>& parameters) override {
    for (const Bucket& bucket : buckets) {
      bool whole = true;
      for (std::size_t i = 0; i < bucket.slots.size() && whole; ++i) {
        const Tensor grad = parameters[bucket.slots[i]].tensor.grad();
        whole = grad.defined() && grad.is_same(bucket.described.gradients[i].tensor);
      }
      if (whole) {
        bucket.memory.storage()->bump_version();
        fill_values(bucket.memory, 0.0);
        continue;
      }
      for (const std::size_t slot : bucket.slots)
        optim::detail::zero_gradients({parameters[slot].tensor}, /*set_to_none=*/false);
    }
  }

  void collect(Bucket& bucket, std::size_t i, const Tensor& parameter) override {
    const Tensor& view = bucket.described.gradients[i].tensor;
    const Tensor grad = parameter.grad();
    if (!grad.defined())
      fill_values(view, 0.0);
    else if (!grad.is_same(view))
      copy_values(grad, view);
    else
      return;
    parameter.set_grad(view);
  }

  WorkPtr launch(Bucket& bucket, const std::vector<bool>& used) override {
    if (bucket.is_last()) {
      use_work_.reset();  // of a pass that was broken off
      // If this rank uses everything, nothing is asked of the host: a pass on a device can be captured in a graph.
      uses_all_ = std::ranges::all_of(used, [](bool each) { return each; });
      if (uses_all_)
        fill_values(use_, 1.0);
      else
        copy_values(tensor(std::vector<double>(used.begin(), used.end())), use_);
    }
    const bool several = group_->world_size() > 1;
    if (!hook_) return several ? group_->all_reduce(bucket.memory, ReduceOp::avg) : nullptr;
    WorkPtr work = hook_->reduce(bucket.described, *group_);
    LOCKSTEP_CHECK(
        work,
        "[DistributedDataParallel] the communication hook '{}' returned null for bucket {}; expected the work "
        "after which the bucket holds the average",
        hook_->name(), bucket.described.index);
    if (bucket.is_last() && several) use_work_ = group_->all_reduce(use_, ReduceOp::avg);
    return work;
  }

  std::vector<bool> used_anywhere() override {
    if (use_work_) std::exchange(use_work_, nullptr)->wait();
    std::vector<bool> used(static_cast<std::size_t>(use_.numel()), true);
    if (uses_all_) return used;  // what this rank has used, somebody has
    const std::vector<double> values = use_.to_vector<double>();
    for (std::size_t p = 0; p < used.size(); ++p) used[p] = values[p] != 0.0;
    return used;
  }

  void sum_losses(const StepRunner& runner, std::int64_t samples) override {
    samples_ = samples;
    if (device_.is_cpu()) {
      totals_ = tensor({runner.sum(), runner.count(), runner.counted() ? 1.0 : 0.0});
    } else {  // without waiting for the device
      totals_ = full({2}, runner.count(), {.dtype = kFloat64, .device = device_});
      const Tensor sum = totals_.select(0, 0);
      if (runner.device_sum().defined())
        copy_values(runner.device_sum(), sum);
      else
        fill_values(sum, 0.0);
    }
    if (group_->world_size() == 1) return;
    static const OperationLabel label("loss and count of the step");
    const LabelScope scope(label);
    totals_work_ = group_->all_reduce(totals_);
  }

  double divisor(const StepRunner& runner, std::int64_t samples) override {
    return runner.counted() ? total_count() : static_cast<double>(samples);
  }

  double total_count() override {
    if (totals_work_) totals_work_->wait();
    return totals_.to_vector<double>()[1];
  }

  Tensor mean_loss() override {
    if (totals_work_) std::exchange(totals_work_, nullptr)->wait();
    if (device_.is_cpu()) check_samples();
    const NoGradGuard no_grad;
    return totals_.select(0, 0) / totals_.select(0, 1);
  }

 private:
  // Where no loss has a count of its own, gradients have been divided by the batch's number of samples.
  void check_samples() const {
    const std::vector<double> totals = totals_.to_vector<double>();
    const auto computed = static_cast<std::int64_t>(totals[1]);
    LOCKSTEP_CHECK(
        totals[2] != 0.0 || computed == samples_,
        "[TrainingStep] the ranks have computed {} samples of a batch of {} (its global_size). A batch whose "
        "global_size is its own size is the global batch, of which each rank takes its part: pass it on every rank, or "
        "parts that are {} together. A rank that has all samples, where the others have none, hands them over by "
        "join()",
        computed, samples_, samples_);
  }

  ProcessGroupPtr group_;
  Device device_;
  CommunicationHookPtr hook_;
  bool uses_all_ = false;
  Tensor use_;  // [parameters], the end of the last bucket
  WorkPtr use_work_;
  Tensor totals_;  // sum of losses, count, and on the CPU how many ranks' losses count by themselves
  WorkPtr totals_work_;
  std::int64_t samples_ = 0;  // of the batch
};

}  // namespace

std::unique_ptr<RankReduction> mean_reduction(ProcessGroupPtr group, Device device, CommunicationHookPtr hook) {
  return std::make_unique<MeanReduction>(std::move(group), device, std::move(hook));
}

}  // namespace lockstep::distributed
