#include <algorithm>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/parallel/reduction/rank_reduction.h"

namespace lockstep::distributed {
namespace {

class TreeReduction final : public RankReduction {
 public:
  TreeReduction(ProcessGroupPtr group, Device device, ShardSums& sums)
      : group_(std::move(group)), device_(device), sums_(sums), units_(tree_units(sums.mine())) {
    const auto units = static_cast<std::int64_t>(units_.size());
    const auto columns = static_cast<std::int64_t>(sums_.layout().size());
    unit_totals_ = zeros({units, columns}, {.dtype = kFloat64});
    totals_ = zeros({columns}, {.dtype = kFloat64});
  }

  void clear_gradients(const std::vector<Bucket>&, const std::vector<nn::NamedTensor>&) override {  // sums_ does
    divisor_ = {};
    undivided_.clear();
  }
  double divisor(const StepRunner&, std::int64_t) override { return 1.0; }
  void allocate(Bucket& bucket, std::int64_t elements, const TensorOptions& like, std::int64_t) override {
    bucket.memory = zeros({static_cast<std::int64_t>(units_.size()), elements}, like);
    bucket.described.flat = units_.size() == 1 ? bucket.memory.as_strided({elements}, {1}, 0) : zeros({elements}, like);
  }

  void collect(Bucket& bucket, std::size_t i, const Tensor& parameter) override {
    const std::size_t p = bucket.slots[i];
    sums_.take(p);
    const ShardSums::Parts parts = sums_.parts(p);
    const std::int64_t row = bucket.described.flat.numel();
    for (std::size_t u = 0; u < units_.size(); ++u)
      sum_parts(
          bucket.memory.as_strided({parameter.numel()}, {1}, static_cast<std::int64_t>(u) * row + bucket.offsets[i]),
          parts_inside(parts, units_[u]));
    parameter.set_grad(bucket.described.gradients[i].tensor);
  }

  WorkPtr launch(Bucket& bucket, const std::vector<bool>& used) override {
    WorkPtr work = group_->all_reduce_tree(bucket.described.flat, bucket.memory, sums_.shards(), divisor_);
    if (!divisor_.defined()) undivided_.push_back(bucket.described.flat);
    if (bucket.is_last()) {  // behind it, so that it delays none
      use_ = tensor(std::vector<std::int32_t>(used.begin(), used.end()));
      static const OperationLabel label("which parameters were used");
      const LabelScope scope(label);
      use_work_ = group_->all_reduce(use_, ReduceOp::max);
    }
    return work;
  }

  void finish() override {
    check_rows();
    const NoGradGuard no_grad;
    for (const Tensor& sum : undivided_) sum.div_(total_count());
    undivided_.clear();
  }

  std::vector<bool> used_anywhere() override {
    std::exchange(use_work_, nullptr)->wait();
    std::vector<bool> used;
    for (const double each : use_.to_vector<double>()) used.push_back(each != 0.0);
    return used;
  }

  void sum_losses(const StepRunner&, std::int64_t) override {
    double* out = unit_totals_.data<double>();
    for (const std::vector<double>& row : sums_.totals()) out = std::copy(row.begin(), row.end(), out);
    static const OperationLabel label("loss and count of the step");
    const LabelScope scope(label);
    totals_work_ = group_->all_reduce_tree(totals_, unit_totals_, sums_.shards());
    divisor_ = totals_.as_strided({1}, {1}, StepTotals::kCountColumn);
    if (device_.is_cpu()) return;
    totals_work_->wait();  // the device cannot wait for the host's memory
    divisor_ = move_values(divisor_, device_);
  }

  double total_count() override {
    if (totals_work_) totals_work_->wait();
    return StepTotals::count(totals_.to_vector<double>());
  }

  Tensor mean_loss() override {
    sums_.clear();
    check_rows();
    totals_work_.reset();
    const std::vector<double> totals = totals_.to_vector<double>();
    const Tensor loss = StepTotals::mean_loss(totals);
    sums_.layout().track(totals);
    return loss;
  }

 private:
  void check_rows() {
    if (!totals_work_) return;
    totals_work_->wait();
    sums_.check_rows(totals_.to_vector<double>());
  }

  ProcessGroupPtr group_;
  Device device_;
  ShardSums& sums_;
  std::vector<TreeNode> units_;
  Tensor use_;  // [parameters]
  WorkPtr use_work_;
  Tensor unit_totals_;  // [units, columns]
  Tensor totals_;       // [columns]
  WorkPtr totals_work_;
  Tensor divisor_;                 // one element of totals_, or its copy on the device; undefined: not known yet
  std::vector<Tensor> undivided_;  // sums that were sent before
};

}  // namespace

std::unique_ptr<RankReduction> tree_reduction(ProcessGroupPtr group, Device device, ShardSums& sums) {
  return std::make_unique<TreeReduction>(std::move(group), device, sums);
}

}  // namespace lockstep::distributed
