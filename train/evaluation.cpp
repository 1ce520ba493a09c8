#include "lockstep/autograd/ops.h"
#include "lockstep/distributed/parallel/evaluate.h"
#include "lockstep/train/run.h"

namespace lockstep::training {

Values Evaluation::measure(nn::Module& module, distributed::ProcessGroup* group) const {
  const std::vector<double> totals = distributed::evaluate(
      module, dataset, names.size(), [&](const data::Batch& batch) { return sums(module, batch); }, {.group = group});
  Values means;
  for (std::size_t i = 0; i < names.size(); ++i)
    means.emplace_back(names[i], totals[i] / static_cast<double>(dataset->size()));
  return means;
}

Evaluation classification(std::shared_ptr<const data::Dataset> dataset) {
  return {.dataset = std::move(dataset),
          .names = {"test accuracy", "test loss"},
          .sums = [](nn::Module& module, const data::Batch& batch) {
            const Tensor logits = module(batch.x);
            const double loss = cross_entropy(logits, batch.y).item<double>();
            return std::vector<double>{static_cast<double>(eq(logits.argmax(1), batch.y).sum().item<std::int64_t>()),
                                       loss * static_cast<double>(batch.size())};
          }};
}

}  // namespace lockstep::training
