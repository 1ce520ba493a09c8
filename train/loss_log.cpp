#include "lockstep/train/loss_log.h"

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::training {
namespace {

constexpr std::int64_t kMost = 64;

}  // namespace

void LossLog::add(StepReport report, const Tensor& loss) {
  if (loss.device().is_cpu()) {
    report.loss = loss.item<double>();
    return report_(report);
  }
  if (!losses_.defined()) losses_ = zeros({kMost}, {.dtype = kFloat64, .device = loss.device()});
  copy_values(loss.as_strided({1}, {1}, loss.offset()), rows(losses_, static_cast<std::int64_t>(waiting_.size()), 1));
  waiting_.push_back(report);
  if (static_cast<std::int64_t>(waiting_.size()) == kMost) flush();
}

void LossLog::flush() {
  if (waiting_.empty()) return;
  const std::vector<double> losses = losses_.to_vector<double>();
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    waiting_[i].loss = losses[i];
    report_(waiting_[i]);
  }
  waiting_.clear();
}

}  // namespace lockstep::training
