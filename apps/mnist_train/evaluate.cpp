#include "apps/mnist_train/evaluate.h"

#include "lockstep/autograd/ops.h"
#include "lockstep/distributed/parallel/evaluate.h"

namespace lockstep::apps {

Evaluation evaluate(nn::Module& module, const std::shared_ptr<const data::Dataset>& dataset,
                    distributed::ProcessGroup* group) {
  const std::vector<double> sums = distributed::evaluate(
      module, dataset, 2,
      [&](const data::Batch& batch) {
        const Tensor logits = module.forward(batch.x);
        return std::vector<double>{cross_entropy(logits, batch.y).item<double>() * static_cast<double>(batch.size()),
                                   static_cast<double>(eq(logits.argmax(1), batch.y).sum().item<std::int64_t>())};
      },
      {.group = group});
  const auto count = static_cast<double>(dataset->size());
  return {.accuracy = sums[1] / count, .loss = sums[0] / count};
}

}  // namespace lockstep::apps
