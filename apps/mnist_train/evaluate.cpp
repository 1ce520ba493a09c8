#include "apps/mnist_train/evaluate.h"

#include "autograd/grad_mode.h"
#include "autograd/ops.h"
#include "core/copy.h"
#include "core/factories.h"
#include "data/data_loader.h"
#include "data/partition.h"

namespace lockstep::apps {
namespace {
constexpr std::int64_t kEvaluationBatch = 500;
}

Evaluation evaluate(nn::Module& module, const std::shared_ptr<const data::Dataset>& dataset,
                    distributed::ProcessGroup* group) {
  const NoGradGuard no_grad;
  module.eval();
  data::DataLoaderOptions options;
  options.batch_size = kEvaluationBatch;
  options.shuffle = false;
  const data::DataLoader loader(dataset, options);
  const std::int64_t batches = loader.steps_per_epoch();
  const int world = group ? group->world_size() : 1;
  const data::Range mine = data::partition(batches, world, group ? group->rank() : 0);
  const Device device = module.device();

  // A row for each batch, zero but on the rank that computed it: adding them up over the ranks is exact.
  const Tensor table = zeros({batches, 2}, {.dtype = kFloat64});
  double* const rows = table.data<double>();
  if (mine.size() > 0) {
    auto epoch = loader.epoch(0, mine.begin);
    for (const data::Batch& batch : epoch) {
      const Tensor logits = module.forward(move_values(batch.x, device));
      const Tensor y = move_values(batch.y, device);
      double* const row = rows + 2 * epoch.step();
      row[0] = cross_entropy(logits, y).item<double>() * static_cast<double>(batch.size());
      row[1] = static_cast<double>(eq(logits.argmax(1), y).sum().item<std::int64_t>());
      if (epoch.step() + 1 == mine.end) break;
    }
  }
  module.train();
  if (world > 1) group->all_reduce(table)->wait();
  double loss = 0.0;
  double correct = 0.0;
  for (std::int64_t b = 0; b < batches; ++b) {
    loss += rows[2 * b];
    correct += rows[2 * b + 1];
  }
  const auto count = static_cast<double>(dataset->size());
  return {.accuracy = correct / count, .loss = loss / count};
}

}  // namespace lockstep::apps
