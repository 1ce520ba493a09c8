// The stages' part in the training step.

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/log.h"
#include "lockstep/distributed/parallel/sharding/division.h"
#include "lockstep/distributed/parallel/shares.h"
#include "lockstep/distributed/pipeline_parallel/pipeline_state.h"
#include "lockstep/nn/deferred_statistics.h"

namespace lockstep::distributed {
namespace {

/// What the loss function is given for the model, on the last stage. A member of another module, as a call of one
/// without a parent would be searched for layers that it does not know.
struct LastOutput final : nn::Module {
  using Module::Module;
  Tensor forward(Tensor) override { return output; }
  Tensor output;
};

/// A checksum of a batch in host memory: of a large tensor some blocks, so that it takes no time to speak of. 0: it is
/// not there, or not all of it.
std::uint64_t mark_of(const data::Batch& batch) {
  constexpr std::size_t kPiece = 4096, kPieces = 64;
  static_assert(kPiece % Checksum::kBlock == 0);
  Checksum mark;
  bool is_here = true;
  batch.for_each([&](const std::string&, const Tensor& values) {
    is_here = is_here && !values.device().is_cuda();
    if (!is_here) return;
    const Tensor dense = as_contiguous(values.detach());
    const LibraryAccess access;
    const auto* const bytes = static_cast<const std::byte*>(dense.raw_data());
    const std::size_t pieces = (dense.nbytes() + kPiece - 1) / kPiece, taken = std::min(pieces, kPieces);
    Checksum of_tensor;
    for (std::size_t i = 0; i < taken; ++i) {
      const std::size_t piece = taken > 1 ? i * (pieces - 1) / (taken - 1) : 0;
      of_tensor.update(bytes + piece * kPiece, std::min(kPiece, dense.nbytes() - piece * kPiece));
    }
    const std::array<std::uint64_t, Checksum::kBlock / sizeof(std::uint64_t)> word{of_tensor.value()};
    mark.update(word.data(), sizeof word);
  });
  return is_here ? mark.value() : 0;
}

}  // namespace

class PipelineRunner final : public StepRunner {
 public:
  PipelineRunner(PipelineParallel::State& state, const TrainingStepOptions& options, ShardSums* sums)
      : state_(state), slices_(options.accumulate), worker_(options.ranks()->rank()), sums_(sums) {}

  void begin(const data::Batch& part, std::uint64_t step, const LossFunction& loss, double scale, bool) override;
  bool pending() const override { return true; }  // finish() holds for ranks without samples too
  void finish(double divisor) override;
  void divided_by(std::shared_ptr<Division> division) override { division_ = std::move(division); }
  void after_reduction() override;

 private:
  using Kind = StageKey::Kind;

  /// Between forward and backward of a micro-batch in a chunk.
  struct Held {
    Tensor input;  // a leaf, of all chunks but the first
    Tensor output;
    double factor = 1.0;  // of the last chunk's loss
    // When the input's gradient is computed, of the weights': what is left, from which output on.
    DeferredGradients deferred;
    std::vector<Tensor> roots, seeds;
  };

  void clear();
  void forward(const PipelineAction& action, const LossFunction& loss);
  static void add_root(Held& held, const Tensor& root, const Tensor& seed);
  Held& held_with_output(const PipelineAction& action);
  void backward_input(const PipelineAction& action);
  void backward(const PipelineAction& action);
  void send_input_gradient(const PipelineAction& action, const Tensor& gradient);
  LossValue loss_of(const Tensor& output, const data::Batch& samples, const PipelineAction& action,
                    const LossFunction& loss);
  data::Batch samples_of(std::size_t share) const;
  std::uint32_t key_of(const Share& share) const;
  void share_totals();
  bool travels(const PipelineParallel::State::Tied& tied, int from, int to, std::int64_t micro_batch) const {
    return tied.parameter.tensor.defined() &&
           state_.tied_travels(from, to, micro_batch, std::ssize(shares_), sums_ != nullptr);
  }

  PipelineParallel::State& state_;
  std::int64_t slices_;
  int worker_;
  ShardSums* sums_;
  std::shared_ptr<Division> division_;  // of gradients; null: they are whole
  data::Batch part_;
  std::uint64_t step_ = 0;
  double scale_ = 1.0;
  double assumed_ = 1.0, factor_ = 1.0;  // the divisor of the backward passes, and what makes it that of all losses
  std::vector<Share> shares_;
  std::map<std::pair<std::int64_t, int>, Held> held_;  // by micro-batch and chunk
  std::vector<double> losses_, counts_;                // by micro-batch
  std::vector<std::vector<double>> rows_;              // of totals, in lockstep mode
  bool warned_ = false;                                // that stages have different batches
};

std::unique_ptr<StepRunner> PipelineParallel::State::make_runner(const TrainingStepOptions& options, ShardSums* sums) {
  return std::make_unique<PipelineRunner>(*this, options, sums);
}

void PipelineRunner::clear() {
  held_.clear();
  sum_ = {};
  count_ = 0.0;
  counted_ = false;
  const std::size_t n = shares_.size();
  losses_.assign(n, 0.0);
  counts_.assign(n, 0.0);
  rows_.clear();
  if (sums_)
    for (std::size_t i = 0; i < n; ++i) rows_.emplace_back(sums_->layout().size(), 0.0);
  for (const auto& tied : state_.tied) tied.parameter.tensor.set_grad({});
}

data::Batch PipelineRunner::samples_of(std::size_t share) const {
  const Device device = state_.module.device();
  const data::Batch samples = rows_of(part_, shares_[share].samples);
  // Of a logical shard in memory of their own, as in ShareRunner.
  return samples.map([&](const Tensor& tensor) {
    return sums_ && device == tensor.device() ? copy_contiguous(tensor) : move_values(tensor, device);
  });
}

std::uint32_t PipelineRunner::key_of(const Share& share) const {
  return static_cast<std::uint32_t>(sums_ ? share.index : worker_ * slices_ + share.index);
}

void PipelineRunner::begin(const data::Batch& part, std::uint64_t step, const LossFunction& loss, double scale, bool) {
  part_ = part;
  step_ = step;
  scale_ = scale;
  factor_ = 1.0;
  assumed_ = sums_ ? 1.0 : static_cast<double>(part.global_size);
  shares_ = sums_ ? shards_of_part(part.global_size, sums_->shards(), sums_->mine())
                  : slices_of_part(part.size(), slices_, false);
  if (state_.stages() > 1) state_.group->set_step(static_cast<std::int64_t>(step));
  clear();
  if (sums_) sums_->begin();
  const std::int64_t micro_batches = std::ssize(shares_);
  state_.links->begin(state_.incoming(micro_batches, sums_ != nullptr), {micro_batches, part.size()});
  for (const PipelineAction& action :
       state_.lists(micro_batches, sums_ != nullptr)[static_cast<std::size_t>(state_.group->rank())]) {
    if (action.pass == PipelineAction::Pass::forward)
      forward(action, loss);
    else if (action.pass == PipelineAction::Pass::input)
      backward_input(action);
    else
      backward(action);
  }
  if (when_final_ && shares_.empty())  // as on the ranks that have samples
    for (auto list = static_cast<std::size_t>(state_.options.chunks); list-- > 0;) when_final_(list);
  share_totals();
  part_ = {};
}

void PipelineRunner::forward(const PipelineAction& action, const LossFunction& loss) {
  const int chunk = action.chunk;
  const auto share = static_cast<std::size_t>(action.micro_batch);
  Held& held = held_[{action.micro_batch, chunk}];
  StageValue value;
  const data::Batch samples = chunk == 0 || chunk == state_.last_chunk() ? samples_of(share) : data::Batch();
  if (chunk == 0) {
    value.tensor = samples.x;
    value.random = {.step = step_, .shard = key_of(shares_[share])};
  } else {
    value = state_.links->take({Kind::activation, action.micro_batch, chunk, 0});
    held.input = value.tensor = value.tensor.detach();
    if (held.input.is_floating_point()) held.input.set_requires_grad(true);
  }
  {
    const RandomPositionGuard position(value.random);
    std::optional<nn::DeferredStatistics> statistics;
    if (sums_) statistics.emplace();
    held.output = state_.run_chunk(chunk, value.tensor, action.micro_batch);
    if (chunk == state_.last_chunk()) {
      const LossValue result = loss_of(held.output, samples, action, loss);
      held.output = result.value();
      held.factor = result.sum_factor(samples.size());
      losses_[share] = held.factor == 0.0 ? 0.0 : result.value().item<double>() * held.factor;
      counts_[share] = result.count_of(samples.size());
      counted_ = counted_ || result.count().has_value();
    }
    if (sums_) add_rows(rows_[share], sums_->layout().row(0.0, 0.0, *statistics));
    value.random = random_position();
  }
  if (chunk == state_.last_chunk()) return;
  state_.links->send(state_.stage_of(chunk + 1), {Kind::activation, action.micro_batch, chunk + 1, 0},
                     {as_contiguous(held.output.detach()), value.random});
}

LossValue PipelineRunner::loss_of(const Tensor& output, const data::Batch& samples, const PipelineAction& action,
                                  const LossFunction& loss) {
  std::optional<LossValue> result;
  state_.guarded(action.chunk, action.micro_batch, "the loss behind forward", [&] {
    nn::Module owner;
    LastOutput front{&owner, "model"};
    front.output = output;
    front.train(state_.module.is_training());
    result = loss(front, samples);
    check_loss(*result);
  });
  return *result;
}

void PipelineRunner::add_root(Held& held, const Tensor& root, const Tensor& seed) {
  if (!seed.defined() || !root.requires_grad()) return;
  held.roots.push_back(root);
  held.seeds.push_back(seed);
}

// Where backward begins.
PipelineRunner::Held& PipelineRunner::held_with_output(const PipelineAction& action) {
  const auto [share, chunk] = std::pair(action.micro_batch, action.chunk);
  Held& held = held_.find({share, chunk})->second;
  if (chunk == state_.last_chunk())
    state_.guarded(chunk, share, "backward", [&] {
      LOCKSTEP_CHECK(held.output.requires_grad() || held.factor == 0.0,
                     "the loss does not depend on what the layers have given, or it was detached from that: nothing "
                     "would be trained");
    });
  if (chunk == state_.last_chunk())
    add_root(held, held.output, full(held.output.sizes(), held.factor / assumed_ * scale_, options_of(held.output)));
  else
    add_root(held, held.output, state_.links->take({Kind::gradient, share, chunk, 0}).tensor);
  held.output = {};
  return held;
}

void PipelineRunner::backward_input(const PipelineAction& action) {
  Held& held = held_with_output(action);
  Tensor gradient;
  if (!held.roots.empty() && held.input.defined() && held.input.requires_grad()) {
    state_.guarded(action.chunk, action.micro_batch, "backward",
                   [&] { gradient = Engine::backward_to(held.input, held.roots, held.seeds, held.deferred); });
    held.roots.clear();
    held.seeds.clear();
  }
  held.input = {};
  send_input_gradient(action, gradient);
}

// Of the weights alone where the input has its gradient.
void PipelineRunner::backward(const PipelineAction& action) {
  const bool whole = action.pass == PipelineAction::Pass::backward;
  const int chunk = action.chunk;
  const std::int64_t m = action.micro_batch;
  Held& held = whole ? held_with_output(action) : held_.find({m, chunk})->second;
  const auto run = [&] {
    if (held.deferred.empty() && held.roots.empty()) return;
    state_.guarded(chunk, m, "backward", [&] {
      Engine::backward_deferred(std::exchange(held.deferred, {}), std::exchange(held.roots, {}),
                                std::exchange(held.seeds, {}));
    });
  };
  // In lockstep mode, what later chunks have found for the parameters that they have in common with this one comes
  // first, as it does in one backward pass through all layers. Otherwise nothing here waits for it.
  if (!sums_) run();
  for (std::size_t t = 0; t < state_.tied.size(); ++t) {
    const auto& tied = state_.tied[t];
    const auto here = std::ranges::find(tied.chunks, chunk);
    if (here == tied.chunks.end() || here + 1 == tied.chunks.end() || !travels(tied, *(here + 1), chunk, m)) continue;
    add_root(held, tied.parameter.tensor, state_.links->take({Kind::tied, m, chunk, static_cast<int>(t)}).tensor);
  }
  run();
  if (whole)
    send_input_gradient(action, held.input.defined() && held.input.requires_grad() ? held.input.grad() : Tensor());
  held_.erase({m, chunk});
  for (std::size_t t = 0; t < state_.tied.size(); ++t) {
    const auto& tied = state_.tied[t];
    const auto here = std::ranges::find(tied.chunks, chunk);
    if (here == tied.chunks.end() || here == tied.chunks.begin() || !travels(tied, chunk, *(here - 1), m)) continue;
    const Tensor grad = tied.parameter.tensor.grad();
    tied.parameter.tensor.set_grad({});
    state_.links->send(state_.stage_of(*(here - 1)), {Kind::tied, m, *(here - 1), static_cast<int>(t)},
                       {grad.defined() ? as_contiguous(grad) : grad});
  }
  if (sums_) sums_->keep(shares_[static_cast<std::size_t>(m)].index, state_.place_of(chunk));
  if (when_final_ && m + 1 == std::ssize(shares_)) when_final_(state_.place_of(chunk));
}

void PipelineRunner::send_input_gradient(const PipelineAction& action, const Tensor& gradient) {
  if (action.chunk == 0) return;
  state_.links->send(state_.stage_of(action.chunk - 1), {Kind::gradient, action.micro_batch, action.chunk - 1, 0},
                     {gradient.defined() ? as_contiguous(gradient) : gradient});
}

// Of the last stage, which alone knows the losses, to the others.
void PipelineRunner::share_totals() {
  const std::size_t n = shares_.size();
  if (state_.stages() > 1) {
    const std::uint64_t mark = mark_of(part_);
    constexpr std::size_t kMore = 4;  // whether losses counted, samples, the mark in two halves
    std::vector<double> all(2 * n + kMore);
    std::ranges::copy(losses_, all.begin());
    std::ranges::copy(counts_, all.begin() + static_cast<std::ptrdiff_t>(n));
    all[2 * n] = counted_ ? 1.0 : 0.0;
    all[2 * n + 1] = static_cast<double>(part_.size());
    all[2 * n + 2] = static_cast<double>(mark >> 32);
    all[2 * n + 3] = static_cast<double>(mark & 0xffffffffu);
    const Tensor totals = move_values(tensor(all), state_.module.device());
    static const OperationLabel label("losses of the micro-batches, from the last stage");
    const LabelScope scope(label);
    state_.group->broadcast(totals, state_.stage_of(state_.last_chunk()))->wait();
    all = totals.to_vector<double>();
    std::copy_n(all.begin(), n, losses_.begin());
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(n), n, counts_.begin());
    counted_ = all[2 * n] != 0.0;
    const auto theirs = static_cast<std::int64_t>(all[2 * n + 1]);
    const std::uint64_t their_mark =
        static_cast<std::uint64_t>(all[2 * n + 2]) << 32 | static_cast<std::uint64_t>(all[2 * n + 3]);
    if (theirs != part_.size()) {
      const std::string message = fmt::format(
          "[pipeline] stage {} of {} was given {} sample(s), the last stage {}; give all stages the same batch",
          state_.group->rank(), state_.stages(), part_.size(), theirs);
      state_.group->abort(message);
      throw Error(message);
    }
    if (state_.is_mine(0) && mark != their_mark && mark != 0 && their_mark != 0 && !std::exchange(warned_, true))
      logging::warn(
          "[pipeline] at step {} the first of {} stages was given another batch of {} samples than the last one, which "
          "takes the targets from its own: give all stages the same batch, from loaders of the same seed that have "
          "gone equally far, whose world size is the number of pipelines",
          step_, state_.stages(), part_.size());
  }
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += losses_[i];
    count_ += counts_[i];
    if (!sums_) continue;
    rows_[i][0] = losses_[i];
    rows_[i][1] = counts_[i];
    sums_->add_totals(shares_[i].index, std::move(rows_[i]));
  }
  if (sums_) sums_->close(-1);
  if (n > 0) sum_ = full({1}, sum, {.dtype = kFloat64, .device = state_.module.device()});
}

// Gradients may be on their way to other ranks now.
void PipelineRunner::finish(double divisor) {
  LOCKSTEP_CHECK(divisor > 0.0, "[TrainingStep] the losses of this batch count 0; expected more, to divide by");
  factor_ = sums_ ? 1.0 : assumed_ / divisor;
}

void PipelineRunner::after_reduction() {
  if (factor_ != 1.0) {
    const NoGradGuard no_grad;
    for (const auto& group : state_.trained())
      for (const nn::NamedTensor& each : group)
        if (const Tensor grad = each.tensor.grad(); grad.defined()) grad.mul_(factor_);
    for (std::size_t f = 0; division_ && f < division_->reduced_flats; ++f)
      if (const Tensor& grad = division_->flats[f].gradient; grad.defined()) grad.mul_(factor_);
  }
  for (std::size_t t = 0; t < state_.tied.size(); ++t) {
    const auto& [parameter, chunks] = state_.tied[t];
    const StageKey key{Kind::result, 0, 0, static_cast<int>(t)};
    if (!state_.is_mine(chunks.front())) {
      if (std::ranges::none_of(chunks, [&](int chunk) { return state_.is_mine(chunk); })) continue;
      const Tensor grad = state_.links->take(key).tensor;
      if (division_)
        division_->set_shared_gradient(parameter.tensor, grad);
      else
        parameter.tensor.set_grad(grad);
      continue;
    }
    const bool travels = std::ranges::any_of(chunks, [&](int chunk) { return !state_.is_mine(chunk); });
    const Tensor grad = !travels    ? Tensor()
                        : division_ ? division_->shared_gradient(parameter.tensor)
                                    : parameter.tensor.grad();
    // The optimizer, or who clips, may write to the gradient while it travels.
    const Tensor copy = grad.defined() ? copy_contiguous(grad) : grad;
    for (int stage = 0; stage < state_.stages(); ++stage)
      if (stage != state_.group->rank() &&
          std::ranges::any_of(chunks, [&](int chunk) { return state_.stage_of(chunk) == stage; }))
        state_.links->send(stage, key, {copy});
  }
  state_.links->finish();
}

}  // namespace lockstep::distributed
