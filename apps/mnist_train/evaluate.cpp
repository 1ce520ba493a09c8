#include "apps/mnist_train/evaluate.h"

#include "autograd/grad_mode.h"
#include "autograd/ops.h"
#include "core/copy.h"
#include "core/factories.h"
#include "data/data_loader.h"

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
  if (group) {
    options.rank = group->rank();
    options.world_size = group->world_size();
  }
  const data::DataLoader loader(dataset, options);
  const Device device = module.device();
  double loss = 0.0;
  std::int64_t correct = 0;
  std::int64_t count = 0;
  auto epoch = loader.epoch(0);
  for (const data::Batch& batch : epoch) {
    if (batch.size() == 0) continue;
    const Tensor logits = module.forward(move_values(batch.x, device));
    const Tensor y = move_values(batch.y, device);
    loss += cross_entropy(logits, y).item<double>() * static_cast<double>(batch.size());
    correct += eq(logits.argmax(1), y).sum().item<std::int64_t>();
    count += batch.size();
  }
  module.train();
  const Tensor totals = tensor({loss, static_cast<double>(correct), static_cast<double>(count)});
  if (group && group->world_size() > 1) group->all_reduce(totals)->wait();
  const auto sums = totals.to_vector<double>();
  return {.accuracy = sums[1] / sums[2], .loss = sums[0] / sums[2]};
}

}  // namespace lockstep::apps
