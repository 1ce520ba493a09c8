#include "lockstep/distributed/parallel/sync_batch_norm.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/batch_norm/batch_norm_parts.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/norm.h"

namespace lockstep::distributed {
namespace {

using batch_norm_parts::GradientSums;

// Mean and biased variance of everybody's values: [count, mean..., var...] of each rank, combined in rank order.
ChannelStatistics combine(const ChannelStatistics& own, ProcessGroup& group) {
  if (group.world_size() == 1) return own;
  const auto channels = static_cast<std::size_t>(own.mean.numel());
  std::vector<double> row{static_cast<double>(own.count)};
  for (const Tensor* part : {&own.mean, &own.var}) {
    const std::vector<double> values = part->to_vector<double>();
    row.insert(row.end(), values.begin(), values.end());
  }
  const Device device = own.mean.device();
  const Tensor mine = tensor(row, device);
  const Tensor all = empty({mine.numel() * group.world_size()}, options_of(mine));
  static const OperationLabel label("statistics of a batch norm");
  const LabelScope scope(label);
  group.all_gather(all, mine)->wait();
  const std::vector<double> rows = all.to_vector<double>();

  double count = 0.0;
  std::vector<double> mean(channels, 0.0);
  std::vector<double> squares(channels, 0.0);  // of deviations from the mean
  for (std::size_t r = 0; r < static_cast<std::size_t>(group.world_size()); ++r) {
    const double* const other = rows.data() + r * row.size();
    if (other[0] == 0.0) continue;
    const double total = count + other[0];
    for (std::size_t c = 0; c < channels; ++c) {
      const double delta = other[1 + c] - mean[c];
      mean[c] += delta * (other[0] / total);
      squares[c] += other[1 + channels + c] * other[0] + delta * delta * (count * other[0] / total);
    }
    count = total;
  }
  for (double& square : squares) square /= std::max(count, 1.0);
  return {move_values(cast_values(tensor(mean), own.mean.dtype()), device),
          move_values(cast_values(tensor(squares), own.var.dtype()), device), static_cast<std::int64_t>(count)};
}

class SyncBatchNormBackward final : public Node {
 public:
  const char* name() const override { return "SyncBatchNormBackward"; }

  TensorList apply(TensorList grads) override {
    const Tensor& x = saved(0);
    const Tensor& factor = saved(1);
    const ChannelStatistics statistics{saved(2), saved(3), count};
    // An undefined gradient means zero here, but the other ranks wait for this one's sums.
    const Tensor grad = grads[0].defined() ? laid_out_like(as_contiguous(grads[0]), x) : zeros_like(x);
    const GradientSums own = batch_norm_parts::gradient_sums(grad, x, statistics, eps);
    TensorList result(3);
    if (needs_grad(1)) result[1] = cast_values(own.weight, factor.dtype());
    if (needs_grad(2)) result[2] = cast_values(own.bias, bias_dtype);
    if (!needs_grad(0)) return result;

    const std::int64_t channels = own.bias.numel();
    const Tensor both = empty({2, channels}, options_of(own.bias));
    copy_values(own.bias, rows(both, 0, 1).as_strided({channels}, {1}, 0));
    copy_values(own.weight, both.as_strided({channels}, {1}, channels));
    static const OperationLabel label("gradient sums of a batch norm");
    const LabelScope scope(label);
    group->all_reduce(both)->wait();
    const GradientSums sums{both.as_strided({channels}, {1}, 0), both.as_strided({channels}, {1}, channels)};
    result[0] = batch_norm_parts::input_gradient(grad, x, statistics, factor, sums, eps);
    return result;
  }

  std::int64_t count = 0;
  double eps = 0.0;
  DType bias_dtype = kFloat32;
  ProcessGroupPtr group;
};

void check_input(const Tensor& input, const BatchNormOptions& options) {
  LOCKSTEP_CHECK(options.training, "[sync_batch_norm] is for training; use batch_norm for evaluation");
  LOCKSTEP_CHECK(input.defined() && input.is_floating_point() && input.dim() >= 2,
                 "[sync_batch_norm] expected a floating-point input of shape [N, C] or [N, C, d1, ...], found {}",
                 input.defined() ? to_string(input.sizes()) : "an undefined tensor");
  for (const Tensor* each : {&options.weight, &options.bias})
    LOCKSTEP_CHECK(!each->defined() || (each->sizes() == Shape({input.size(1)}) && each->device() == input.device()),
                   "[sync_batch_norm] expected weight and bias of shape [{}] on {}, found {} on {}", input.size(1),
                   to_string(input.device()), to_string(each->sizes()), to_string(each->device()));
}

}  // namespace

Tensor sync_batch_norm(const Tensor& input, const Tensor& running_mean, const Tensor& running_var,
                       const BatchNormOptions& options, ProcessGroup& group) {
  if (autocast::is_active && !batch_norm_parts::stays_half(input)) [[unlikely]]
    return autocast::in_full(
        [&](const Tensor& x) { return sync_batch_norm(x, running_mean, running_var, options, group); }, input);
  check_input(input, options);
  const bool recording = should_record({&input, &options.weight, &options.bias});
  const Tensor x = as_contiguous(input);
  const ChannelStatistics statistics = combine(batch_norm_parts::channel_statistics(x), group);
  LOCKSTEP_CHECK(statistics.count != 1,
                 "[sync_batch_norm] training needs more than one value per channel over all ranks, found an input of "
                 "shape {} and nothing elsewhere; use a larger batch, or eval()",
                 to_string(input.sizes()));
  if (statistics.count > 1)
    batch_norm_parts::update_running_statistics({running_mean, running_var, options.momentum}, statistics);
  const Tensor output = batch_norm_parts::normalize(x, statistics, options.weight, options.bias, options.eps);
  if (recording) {
    auto* node = record<SyncBatchNormBackward>(output, {&input, &options.weight, &options.bias});
    node->save(x, options.weight, statistics.mean, statistics.var);
    node->count = statistics.count;
    node->eps = options.eps;
    node->group = group.weak_from_this().lock();
    if (!node->group) node->group = ProcessGroupPtr(ProcessGroupPtr(), &group);  // on somebody's stack
    if (options.bias.defined()) node->bias_dtype = options.bias.dtype();
  }
  if (options.statistics) *options.statistics = statistics;
  return output;
}

int convert_sync_batch_norm(nn::Module& module, ProcessGroupPtr group) {
  LOCKSTEP_CHECK(group, "[convert_sync_batch_norm] the process group is null");
  int layers = 0;
  for (nn::Module* each : module.modules())
    if (auto* layer = dynamic_cast<nn::BatchNorm*>(each)) {
      layer->set_training_function([group](const Tensor& input, const Tensor& running_mean, const Tensor& running_var,
                                           const BatchNormOptions& options) {
        return sync_batch_norm(input, running_mean, running_var, options, *group);
      });
      ++layers;
    }
  return layers;
}

void revert_sync_batch_norm(nn::Module& module) {
  for (nn::Module* each : module.modules())
    if (auto* layer = dynamic_cast<nn::BatchNorm*>(each)) layer->set_training_function(nullptr);
}

namespace {

std::string find_synchronised(nn::Module& module, const std::string& prefix) {
  if (const auto* layer = dynamic_cast<const nn::BatchNorm*>(&module); layer && layer->has_training_function())
    return prefix.empty() ? module.type_name() : prefix;
  for (const auto& [name, child] : module.named_children()) {
    std::string found = find_synchronised(*child, prefix.empty() ? name : prefix + "." + name);
    if (!found.empty()) return found;
  }
  return {};
}

}  // namespace

std::string first_sync_batch_norm(nn::Module& module) {
  return find_synchronised(module, {});
}

}  // namespace lockstep::distributed
