#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/partition.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/evaluate.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/parallel/sync_batch_norm.h"
#include "lockstep/distributed/process_group/coalesced.h"
#include "lockstep/nn/deferred_statistics.h"
#include "lockstep/nn/mode_guard.h"
#include "lockstep/nn/norm.h"

namespace lockstep::distributed {
namespace {

struct Layer {
  nn::BatchNorm* layer;
  std::int64_t channels;
  std::int64_t begin;  // of its columns: how often it was called, means, variances
};

// Sums of whole batches are added up in this many parts, in their order, whoever has computed them.
constexpr std::int64_t kParts = 64;

std::vector<Layer> layers_of(nn::Module& module) {
  std::vector<Layer> layers;
  std::int64_t begin = 0;
  for (nn::Module* each : module.modules()) {
    auto* layer = dynamic_cast<nn::BatchNorm*>(each);
    if (!layer || !layer->running_mean.defined()) continue;
    layers.push_back({layer, layer->running_mean.numel(), begin});
    begin += 1 + 2 * layers.back().channels;
  }
  return layers;
}

void add_statistics(const std::vector<Layer>& layers, const nn::DeferredStatistics& statistics, double* row) {
  for (const nn::DeferredStatistics::Entry& entry : statistics.entries()) {
    const auto found = std::ranges::find(layers, entry.layer, &Layer::layer);
    if (found == layers.end()) continue;  // of another model
    const auto values = static_cast<double>(entry.statistics.count);
    const double unbiased = values > 1.0 ? values / (values - 1.0) : 1.0;
    double* out = row + found->begin;
    *out++ += 1.0;
    for (const double mean : entry.statistics.mean.to_vector<double>()) *out++ += mean;
    for (const double var : entry.statistics.var.to_vector<double>()) *out++ += var * unbiased;
  }
}

}  // namespace

void update_bn(nn::Module& module, const std::shared_ptr<const data::Dataset>& dataset,
               const std::function<void(const data::Batch& batch)>& forward, const EvaluateOptions& options) {
  const std::vector<Layer> layers = layers_of(module);
  if (layers.empty()) return;
  LOCKSTEP_CHECK(dataset && forward, "[update_bn] expected a data set and a function, found null");
  LOCKSTEP_CHECK(dataset->size() > 0, "[update_bn] the data set has no samples to take statistics of");
  const std::string synchronised = first_sync_batch_norm(module);
  LOCKSTEP_CHECK(synchronised.empty(),
                 "[update_bn] layer '{}' is a synchronised batch norm, and each batch is computed by one rank alone; "
                 "call it on a model without convert_sync_batch_norm() that has the same weights",
                 synchronised);
  const NoGradGuard no_grad;
  const WholeParameters whole(module);
  const nn::ModeGuard training(module, /*training=*/true);
  const data::DataLoader loader(dataset, {.batch_size = options.batch_size, .shuffle = false});
  const std::int64_t batches = loader.steps_per_epoch();
  const int world = options.group ? options.group->world_size() : 1, rank = options.group ? options.group->rank() : 0;
  const Device device = module.device();
  if (world > 1) broadcast_coalesced(module.buffers(), *options.group);

  const std::int64_t columns = layers.back().begin + 1 + 2 * layers.back().channels;
  const Tensor table = zeros({kParts, columns}, {.dtype = kFloat64});
  data::Range mine;  // of the batches
  const data::Range parts = data::partition(kParts, world, rank);
  if (parts.size() > 0)
    mine = {data::partition(batches, kParts, parts.begin).begin, data::partition(batches, kParts, parts.end - 1).end};
  if (mine.size() > 0) {
    std::int64_t part = parts.begin;
    auto epoch = loader.epoch(0, mine.begin);
    for (const data::Batch& batch : epoch) {
      while (epoch.step() >= data::partition(batches, kParts, part).end) ++part;
      const RandomKeyGuard key(static_cast<std::uint64_t>(epoch.step()), 0);
      const nn::DeferredStatistics statistics;
      forward(batch.map([&](const Tensor& tensor) { return move_values(tensor, device); }));
      add_statistics(layers, statistics, table.data<double>() + columns * part);
      if (epoch.step() + 1 == mine.end) break;
    }
  }
  if (world > 1) {
    static const OperationLabel label("statistics of batch norm");
    const LabelScope scope(label);
    const Tensor shared = move_values(table, device);
    options.group->all_reduce(shared)->wait();
    copy_values(shared, table);
  }

  std::vector<double> sums(static_cast<std::size_t>(columns), 0.0);
  const double* value = table.data<double>();
  for (std::int64_t p = 0; p < kParts; ++p)
    for (double& sum : sums) sum += *value++;
  for (const Layer& each : layers)
    LOCKSTEP_CHECK(sums[static_cast<std::size_t>(each.begin)] > 0.0,
                   "[update_bn] no batch has reached a batch norm layer of {} channels in training mode; `forward` "
                   "must call the whole model, and not eval()",
                   each.channels);
  for (const Layer& each : layers) {
    const double* in = sums.data() + each.begin;
    const double calls = *in++;
    const auto take = [&](const Tensor& running) {
      std::vector<double> mean(in, in + each.channels);
      in += each.channels;
      for (double& m : mean) m /= calls;
      running.copy_(tensor(mean));
    };
    take(each.layer->running_mean);
    take(each.layer->running_var);
    each.layer->num_batches_tracked.fill_(static_cast<double>(batches));
  }
}

}  // namespace lockstep::distributed
