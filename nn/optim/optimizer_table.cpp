// What an optimizer writes into the memory of CUDA devices before a step.

#include <algorithm>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/computation.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/nn/optim/optimizer.h"
#include "lockstep/nn/optim/scaler_on_device.h"
#include "lockstep/nn/optim/step_table.h"

namespace lockstep::optim {

void Optimizer::prepare_step() {
  const NoGradGuard no_grad;
  check_all_options();
  settle_steps();
  make_state();
  check_members();
  for (Bucket& bucket : buckets_)
    if (bucket.device.is_cuda()) prepare(bucket);
}

void Optimizer::prepare_step(const std::shared_ptr<detail::ScalerOnDevice>& scaler) {
  const NoGradGuard no_grad;
  check_all_options();
  std::vector<std::size_t> counted = with_gradients();
  if (scaler_ != scaler || counted_ != counted) settle_steps();
  if (!scaler_) {
    scaler->read();
    scaler_ = scaler;
    skips_ = scaler->known_skips();
    counted_ = std::move(counted);
  }
  uncount(scaler->known_skips());
  make_state();
  check_members();
  for (Bucket& bucket : buckets_)
    if (bucket.device.is_cuda()) prepare(bucket);
}

std::vector<std::size_t> Optimizer::with_gradients() const {
  std::vector<std::size_t> with;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].grad().defined() && parameters_[i].numel() > 0) with.push_back(i);
  return with;
}

// So many steps have been left out by now.
void Optimizer::uncount(std::int64_t skips) {
  for (const std::size_t i : counted_) steps_[i] -= skips - skips_;
  skips_ = skips;
}

// Waits for the device, if it decides about steps: they are the host's to count again.
void Optimizer::settle_steps() {
  if (!scaler_) return;
  scaler_->read();
  uncount(scaler_->known_skips());
  scaler_.reset();
  counted_.clear();
}

void Optimizer::prepare(Bucket& bucket) {
  make_plan(bucket, true);
  if (!bucket.device.is_cuda()) return;
  const std::vector<Run>& runs = bucket.plan.runs;
  std::vector<std::uint64_t> words(static_cast<std::size_t>(step_table_words(runs.size())));
  auto* table = reinterpret_cast<StepTable*>(words.data());
  auto* rows = reinterpret_cast<StepTableRun*>(table + 1);
  const LibraryAccess access;
  auto* memory = static_cast<std::uint64_t*>(bucket.plan.table.raw_data());
  *table = {static_cast<std::int64_t>(runs.size()), 0, nullptr, 0.0, nullptr};
  for (std::size_t r = 0; r < runs.size(); ++r) {
    rows[r] = {runs[r], table->chunks};
    table->chunks += step_chunks(runs[r].numel);
  }
  if (scaler_) {
    std::uint64_t* later = memory + step_table_words(bucket.members.size());
    table->scaler = static_cast<const double*>(scaler_->words().raw_data());
    table->known_skips = static_cast<double>(skips_);
    table->later = reinterpret_cast<const double*>(later);
    std::vector<double> values(static_cast<std::size_t>(later_scalars_words(runs.size())));
    double* next = values.data();
    for (std::size_t r = 0; r < runs.size(); ++r)
      for (std::int64_t more = 1; more < kMostAhead; ++more, next += kStepScalars)
        scalars(bucket.group_of_runs[r], std::max<std::int64_t>(1, runs[r].step - more), next);
    if (!values.empty()) cuda::store(values.data(), later, values.size() * sizeof(double), bucket.device.index);
  }
  cuda::store(words.data(), memory, words.size() * 8, bucket.device.index);
}

}  // namespace lockstep::optim
