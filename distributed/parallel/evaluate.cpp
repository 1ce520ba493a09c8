#include "lockstep/distributed/parallel/evaluate.h"

#include <algorithm>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/partition.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/process_group/coalesced.h"
#include "lockstep/nn/mode_guard.h"

namespace lockstep::distributed {

std::vector<double> evaluate(nn::Module& module, const std::shared_ptr<const data::Dataset>& dataset, std::size_t count,
                             const std::function<std::vector<double>(const data::Batch& batch)>& values,
                             const EvaluateOptions& options) {
  LOCKSTEP_CHECK(count > 0, "[evaluate] expected at least one value for each batch, found a count of 0");
  const std::shared_ptr<ParameterShards> shards = ParameterShards::of(module);
  LOCKSTEP_CHECK(
      options.group || !shards || shards->group().world_size() == 1,
      "[evaluate] the module's parameters are divided over ranks, which must come together; pass their group");
  const NoGradGuard no_grad;
  const WholeParameters whole(module);
  const nn::ModeGuard evaluating(module, /*training=*/false);
  data::DataLoaderOptions order;
  order.batch_size = options.batch_size;
  order.shuffle = false;
  const data::DataLoader loader(dataset, order);
  const std::int64_t batches = loader.steps_per_epoch();
  const int world = options.group ? options.group->world_size() : 1;
  const data::Range mine = data::partition(batches, world, options.group ? options.group->rank() : 0);
  const Device device = module.device();
  if (world > 1) broadcast_coalesced(module.buffers(), *options.group);

  // A row for each batch, zero but on the rank that computed it: adding them up over the ranks is exact.
  const auto columns = static_cast<std::int64_t>(count);
  const Tensor table = zeros({batches, columns}, {.dtype = kFloat64});
  if (mine.size() > 0) {
    auto epoch = loader.epoch(0, mine.begin);
    for (const data::Batch& batch : epoch) {
      const data::Batch here = batch.map([&](const Tensor& tensor) { return move_values(tensor, device); });
      const RandomKeyGuard key(static_cast<std::uint64_t>(epoch.step()), 0);
      const std::vector<double> row = values(here);
      LOCKSTEP_CHECK(row.size() == count, "[evaluate] expected {} values for each batch, found {}", count, row.size());
      std::copy(row.begin(), row.end(), table.data<double>() + columns * epoch.step());
      if (epoch.step() + 1 == mine.end) break;
    }
  }
  if (world > 1) {
    static const OperationLabel label("results of an evaluation");
    const LabelScope scope(label);
    const Tensor shared = move_values(table, device);
    options.group->all_reduce(shared)->wait();
    copy_values(shared, table);
  }
  std::vector<double> sums(count, 0.0);
  const double* row = table.data<double>();
  for (std::int64_t b = 0; b < batches; ++b)
    for (double& sum : sums) sum += *row++;
  return sums;
}

}  // namespace lockstep::distributed
