#include "apps/mnist_train/loss_log.h"

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::apps {
namespace {

constexpr std::int64_t kMost = 64;

}  // namespace

void LossLog::add(std::int64_t step, std::int64_t epoch, const Tensor& loss, std::int64_t images) {
  if (loss.device().is_cpu()) return reporter_.step(step, epoch, loss.item<double>(), images);
  if (!losses_.defined()) losses_ = zeros({kMost}, {.dtype = kFloat64, .device = loss.device()});
  copy_values(loss.as_strided({1}, {1}, loss.offset()), rows(losses_, static_cast<std::int64_t>(entries_.size()), 1));
  entries_.push_back({step, epoch, images});
  if (static_cast<std::int64_t>(entries_.size()) == kMost) flush();
}

void LossLog::flush() {
  if (entries_.empty()) return;
  const std::vector<double> losses = losses_.to_vector<double>();
  for (std::size_t i = 0; i < entries_.size(); ++i)
    reporter_.step(entries_[i].step, entries_[i].epoch, losses[i], entries_[i].images);
  entries_.clear();
}

}  // namespace lockstep::apps
