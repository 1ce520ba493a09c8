#include "lockstep/distributed/parallel/reduction/step_totals.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/norm.h"

namespace lockstep::distributed {

StepTotals::StepTotals(nn::Module& module) {
  for (nn::Module* each : module.modules()) {
    auto* layer = dynamic_cast<nn::BatchNorm*>(each);
    if (!layer || !layer->running_mean.defined()) continue;
    const auto channels = static_cast<std::size_t>(layer->running_mean.numel());
    layers_.push_back({layer, size_, channels});
    size_ += 1 + 2 * channels;
  }
  size_ += kKindColumns;
}

std::vector<double> StepTotals::row(double loss_sum, double count, const nn::DeferredStatistics& statistics) const {
  std::vector<double> row(size_, 0.0);
  row[0] = loss_sum;
  row[1] = count;
  for (const nn::DeferredStatistics::Entry& entry : statistics.entries()) {
    const auto found = std::ranges::find(layers_, entry.layer, &Layer::layer);
    LOCKSTEP_CHECK(
        found != layers_.end(),
        "[lockstep] a batch norm layer ran in training mode that is no part of the model that is trained; lockstep "
        "mode cannot combine its running statistics. Call eval() on it, or make both models members of one "
        "module with one step and an optimizer for each");
    const auto values = static_cast<double>(entry.statistics.count);
    const std::vector<double> mean = entry.statistics.mean.to_vector<double>();
    const std::vector<double> var = entry.statistics.var.to_vector<double>();
    const double unbiased = values > 1.0 ? values / (values - 1.0) : 1.0;
    double* out = row.data() + found->begin;
    *out++ += values;
    for (std::size_t c = 0; c < found->channels; ++c) out[c] += values * mean[c];
    out += found->channels;
    for (std::size_t c = 0; c < found->channels; ++c) out[c] += values * (var[c] * unbiased);
  }
  return row;
}

Tensor StepTotals::mean_loss(std::span<const double> totals) {
  LOCKSTEP_CHECK(count(totals) > 0.0,
                 "[TrainingStep] the losses of this batch count {}; expected more than 0 to divide by", count(totals));
  return full({}, totals[0] / count(totals), {.dtype = kFloat64});
}

void StepTotals::add_kind(std::vector<double>& row, std::int64_t shards, std::uint64_t hash, std::int64_t all) const {
  // So many bits that the sum of all squares has 52 at most.
  const int bits = (52 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(all)))) / 2;
  const auto kind = static_cast<double>(hash >> (64 - bits)), count = static_cast<double>(shards);
  double* out = row.data() + size_ - kKindColumns;
  out[0] += count;
  out[1] += count * kind;
  out[2] += count * kind * kind;
}

bool StepTotals::one_kind(std::span<const double> totals) const {
  const double* in = totals.data() + size_ - kKindColumns;
  if (in[0] == 0.0) return true;
  const double kind = std::trunc(in[1] / in[0]);
  return in[1] == in[0] * kind && in[2] == in[1] * kind;
}

void StepTotals::track(std::span<const double> totals) const {
  for (const Layer& layer : layers_) {
    const double* in = totals.data() + layer.begin;
    const double values = *in++;
    if (values == 0.0) continue;
    std::vector<double> mean(in, in + layer.channels);
    std::vector<double> var(in + layer.channels, in + 2 * layer.channels);
    for (double& m : mean) m /= values;
    for (double& v : var) v /= values;
    layer.layer->track(tensor(mean), tensor(var));
  }
}

}  // namespace lockstep::distributed
