#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/collectives/shard_tree.h"
#include "lockstep/distributed/parallel/loss_value.h"
#include "lockstep/distributed/parallel/reduction/step_totals.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Note [Shard runner]
/// Computes a worker's consecutive logical shards on one module, one after the other, and adds up what they leave along
/// the shard tree. A shard is computed alone: its samples in memory of their own, its own random key, its own batch
/// statistics. So nothing in it depends on where it runs or with which others.
///
/// The gradients of finished shards are added as a binary counter does, which keeps log2 of their number. In the last
/// shard's backward pass a parameter is reported as soon as its gradient is there, so that it can travel while the rest
/// is computed. Shards without samples, which a short batch leaves at the end, count as zeros.
///
/// Not thread-safe; distinct runners, of distinct modules, may run side by side.
class ShardRunner {
 public:
  using LossFunction = std::function<LossValue(nn::Module& module, const data::Batch& shard)>;

  /// What is known of a sum: addends and the nodes that they are, from left to right. They fill the worker's range.
  struct Parts {
    std::vector<Tensor> tensors;
    std::vector<TreeNode> nodes;
  };

  struct Observer {
    /// The totals of all shards here stand; the last backward pass follows.
    std::function<void()> totals_ready = [] {};
    /// parts(parameter) is complete. Comes once for each parameter.
    std::function<void(std::size_t parameter)> gradient_ready = [](std::size_t) {};
  };

  /// `mine` are the shards here, of `shards` in all. Takes note of the parameters that require gradients.
  ShardRunner(nn::Module& module, std::int64_t shards, ShardRange mine);
  ~ShardRunner();
  ShardRunner(const ShardRunner&) = delete;
  ShardRunner& operator=(const ShardRunner&) = delete;

  /// One step: `part` holds the samples of the shards here, out of part.global_size. `step` enters the random keys.
  /// Throws Error, with the gradients cleared, what the loss function throws, and for a buffer that forward() changed
  /// without batch norm's help, since its value would depend on the number of workers.
  void run(const data::Batch& part, std::uint64_t step, const LossFunction& loss, const Observer& observer);

  const std::vector<nn::NamedTensor>& parameters() const { return parameters_; }
  Parts parts(std::size_t parameter);
  /// By unit of the range (tree_units), a row of totals.
  const std::vector<std::vector<double>>& totals() const { return totals_; }
  const StepTotals& layout() const { return layout_; }
  /// By parameter: has a shard here given it a gradient in the last step?
  const std::vector<bool>& used() const { return used_; }
  /// Drops what the last step left.
  void clear();

 private:
  using Gradients = std::vector<Tensor>;  // by parameter

  void run_shard(const data::Batch& shard, std::uint64_t step, std::int64_t index, const LossFunction& loss);
  void backward_of_last(std::int64_t last);
  void report(std::size_t parameter);
  Gradients take_gradients();
  const Tensor& zeros_of(std::size_t parameter);
  void check_buffers(const std::vector<std::uint32_t>& before) const;
  std::vector<std::uint32_t> buffer_versions() const;

  nn::Module& module_;
  std::int64_t shards_;
  ShardRange mine_;
  StepTotals layout_;
  std::vector<nn::NamedTensor> parameters_;
  std::vector<std::uint64_t> hooks_;
  std::vector<nn::NamedTensor> buffers_;

  TreeStack<Gradients> sums_;
  TreeStack<std::vector<double>> total_sums_;
  std::vector<std::vector<double>> totals_;
  Tensor loss_;             // of the shard in hand
  double seed_ = 0.0;       // of its backward pass
  std::int64_t last_ = -1;  // the last shard with samples; -1: none
  Gradients last_gradients_;
  Gradients zeros_;
  std::vector<bool> reported_;
  std::vector<bool> used_;
  const Observer* observer_ = nullptr;  // while the last backward pass runs
};

/// `part` rows of the samples that `shards` (all of them: `count`) of a global batch of `size` samples hold.
data::Batch samples_of_shards(const data::Batch& global, std::int64_t shards, const ShardRange& mine);

}  // namespace lockstep::distributed
