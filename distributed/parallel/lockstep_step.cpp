#include "lockstep/distributed/parallel/lockstep_step.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/parallel/reduction/unused_warning.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"

namespace lockstep::distributed {
namespace {

void check_batch(const data::Batch& batch) {
  LOCKSTEP_CHECK(batch.global_size > 0 || batch.size() > 0, "[lockstep] the batch has no samples");
}

double mean_loss(std::span<const double> totals) {
  LOCKSTEP_CHECK(StepTotals::count(totals) > 0.0,
                 "[lockstep] the losses of this batch count {}; expected more than 0 to divide by",
                 StepTotals::count(totals));
  return StepTotals::loss_sum(totals) / StepTotals::count(totals);
}

class LocalLockstepStep final : public LockstepStep {
 public:
  LocalLockstepStep(nn::Module& module, std::vector<nn::Module*> replicas, std::shared_ptr<DeviceThreads> threads,
                    std::int64_t shards)
      : layout_(module), threads_(std::move(threads)), shards_(shards) {
    const auto workers = static_cast<int>(replicas.size());
    check_shards(shards, workers, "lockstep");
    for (int w = 0; w < workers; ++w) {
      const ShardRange mine = shards_of_worker(shards, workers, w);
      ranges_.push_back(mine);
      runners_.push_back(std::make_unique<ShardRunner>(*replicas[static_cast<std::size_t>(w)], shards, mine));
    }
    for (const nn::NamedTensor& parameter : module.named_parameters())
      if (parameter.tensor.requires_grad()) named_.push_back(parameter);
    for (const nn::NamedTensor& parameter : named_) parameters_.push_back(parameter.tensor);
  }

  double operator()(const data::Batch& batch, std::uint64_t step, const LossFunction& loss) override {
    check_batch(batch);
    const auto run = [&](int worker) {
      const auto w = static_cast<std::size_t>(worker);
      runners_[w]->run(samples_of_shards(batch, shards_, ranges_[w]), step, loss, {});
    };
    if (threads_)
      threads_->run(run);
    else
      run(0);

    const std::vector<double> totals = sum_totals();
    const double value = mean_loss(totals);
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      ShardRunner::Parts parts;
      for (const auto& runner : runners_) {
        ShardRunner::Parts more = runner->parts(p);
        for (const Tensor& tensor : more.tensors) parts.tensors.push_back(move_values(tensor, parameters_[p].device()));
        parts.nodes.insert(parts.nodes.end(), more.nodes.begin(), more.nodes.end());
      }
      const Tensor grad = empty(parameters_[p].sizes(), options_of(parameters_[p]));
      sum_parts(grad, parts, StepTotals::count(totals));
      parameters_[p].set_grad(grad);
    }
    std::vector<bool> used(parameters_.size(), false);
    for (const auto& runner : runners_)
      for (std::size_t p = 0; p < used.size(); ++p) used[p] = used[p] || runner->used()[p];
    drop_unused(named_, used, step, 0);
    for (const auto& runner : runners_) runner->clear();
    layout_.track(totals);
    return value;
  }

 private:
  std::vector<double> sum_totals() const {
    TreeStack<std::vector<double>> sums;
    for (std::size_t w = 0; w < runners_.size(); ++w) {
      const std::vector<TreeNode> units = tree_units(ranges_[w]);
      for (std::size_t u = 0; u < units.size(); ++u)
        sums.push(units[u], runners_[w]->totals()[u], [](std::vector<double>& left, const std::vector<double>& right) {
          for (std::size_t i = 0; i < left.size(); ++i) left[i] += right[i];
        });
    }
    return sums.entries().front().value;
  }

  StepTotals layout_;
  std::shared_ptr<DeviceThreads> threads_;
  std::int64_t shards_;
  std::vector<ShardRange> ranges_;  // by worker
  std::vector<std::unique_ptr<ShardRunner>> runners_;
  std::vector<nn::NamedTensor> named_;
  std::vector<Tensor> parameters_;  // the same
};

class GroupLockstepStep final : public LockstepStep {
 public:
  GroupLockstepStep(nn::Module& module, ProcessGroupPtr group, std::int64_t shards, const ReducerOptions& options)
      : group_(std::move(group)),
        shards_(shards),
        mine_(shards_of_worker(shards, group_->world_size(), group_->rank())),
        device_(module.device()),
        runner_(module, shards, mine_),
        reducer_(runner_.parameters(), group_, shards, options) {
    const auto units = static_cast<std::int64_t>(tree_units(mine_).size());
    const auto columns = static_cast<std::int64_t>(runner_.layout().size());
    unit_totals_ = zeros({units, columns}, {.dtype = kFloat64});
    totals_ = zeros({columns}, {.dtype = kFloat64});
    divisor_ = totals_.as_strided({1}, {1}, StepTotals::kCountColumn);
  }

  double operator()(const data::Batch& batch, std::uint64_t step, const LossFunction& loss) override {
    check_batch(batch);
    data::Batch part = batch;
    if (part.global_size == 0 || part.global_size == batch.size()) part = samples_of_shards(batch, shards_, mine_);
    WorkPtr summed;
    ShardRunner::Observer observer;
    observer.totals_ready = [&] {
      double* out = unit_totals_.data<double>();
      for (const std::vector<double>& row : runner_.totals()) out = std::copy(row.begin(), row.end(), out);
      static const OperationLabel label("loss and count of the step");
      const LabelScope scope(label);
      summed = group_->all_reduce_tree(totals_, unit_totals_, shards_);
      if (device_.is_cpu()) return reducer_.begin(divisor_);
      summed->wait();  // the device cannot wait for the host's memory
      reducer_.begin(move_values(divisor_, device_));
    };
    observer.gradient_ready = [&](std::size_t parameter) { reducer_.add(parameter, runner_.parts(parameter)); };
    runner_.run(part, step, loss, observer);
    const WorkPtr spread = spread_use();
    reducer_.finish();
    spread->wait();
    const std::vector<double> use = use_.to_vector<double>();
    std::vector<bool> used;
    for (const double each : use) used.push_back(each != 0.0);
    drop_unused(runner_.parameters(), used, step, group_->rank());
    runner_.clear();
    summed->wait();
    const std::vector<double> totals = totals_.to_vector<double>();
    const double value = mean_loss(totals);
    runner_.layout().track(totals);
    return value;
  }

  const ReducerTrace* trace() const override { return &reducer_.trace(); }

 private:
  // Behind the last bucket, so that it delays none.
  WorkPtr spread_use() {
    std::vector<std::int32_t> use;
    for (const bool used : runner_.used()) use.push_back(used ? 1 : 0);
    use_ = tensor(use);
    static const OperationLabel label("which parameters were used");
    const LabelScope scope(label);
    return group_->all_reduce(use_, ReduceOp::max);
  }

  ProcessGroupPtr group_;
  std::int64_t shards_;
  ShardRange mine_;
  Device device_;
  ShardRunner runner_;
  TreeReducer reducer_;
  Tensor unit_totals_;  // [units, columns]
  Tensor totals_;
  Tensor use_;      // [parameters]
  Tensor divisor_;  // a view of totals_
};

void check_layers(nn::Module& module) {
  const std::string found = first_sync_batch_norm(module);
  LOCKSTEP_CHECK(found.empty(),
                 "[lockstep] layer '{}' is a synchronised batch norm: statistics of the whole batch are another model "
                 "than those of logical shards; leave out convert_sync_batch_norm() or logical_shards",
                 found);
}

}  // namespace

void LockstepStep::drop_unused(const std::vector<nn::NamedTensor>& parameters, const std::vector<bool>& used,
                               std::uint64_t step, int rank) {
  unused_.clear();
  for (std::size_t p = 0; p < parameters.size(); ++p)
    if (!used[p]) {
      parameters[p].tensor.set_grad({});
      unused_.push_back(parameters[p].name);
    }
  if (unused_.empty() || std::exchange(warned_, true) || rank != 0) return;
  warn_of_unused_parameters("lockstep", unused_, parameters.size(), step);
}

std::unique_ptr<LockstepStep> make_local_lockstep_step(nn::Module& module, std::vector<nn::Module*> replicas,
                                                       std::shared_ptr<DeviceThreads> threads, std::int64_t shards) {
  check_layers(module);
  return std::make_unique<LocalLockstepStep>(module, std::move(replicas), std::move(threads), shards);
}

std::unique_ptr<LockstepStep> make_group_lockstep_step(nn::Module& module, ProcessGroupPtr group, std::int64_t shards,
                                                       const ReducerOptions& options) {
  LOCKSTEP_CHECK(group, "[lockstep] the process group is null");
  check_shards(shards, group->world_size(), "lockstep");
  check_layers(module);
  return std::make_unique<GroupLockstepStep>(module, std::move(group), shards, options);
}

}  // namespace lockstep::distributed
