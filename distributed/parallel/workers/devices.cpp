#include "lockstep/distributed/parallel/workers/devices.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "lockstep/autograd/accumulate_grad.h"
#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/own_process.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/reduction/unused_warning.h"
#include "lockstep/distributed/parallel/shares.h"
#include "lockstep/distributed/parallel/workers/move_together.h"

namespace lockstep::distributed {
namespace {

// Whether `to` has the values of `from` already. A copy would make the graphs of earlier forward passes unusable.
bool has_values_of(const Tensor& from, const Tensor& to, const Devices::Copied& last) {
  // On CPUs they are compared: a program may have written through an address, of which no version tells.
  if (from.device().is_cpu() && to.device().is_cpu()) {
    const Tensor a = as_contiguous(from), b = as_contiguous(to);
    return a.nbytes() == 0 || std::memcmp(a.raw_data(), b.raw_data(), a.nbytes()) == 0;
  }
  return last.storage == from.storage().get() && last.version == from.storage()->version() &&
         last.own_version == to.storage()->version();
}

// nn::copy_parameters_and_buffers(), as one transfer for each dtype, of what has changed.
void copy_state(const std::vector<nn::NamedTensor>& state, const nn::Module& from, nn::Module& to, Device device,
                std::vector<Devices::Copied>& copied) {
  const std::vector<nn::NamedTensor> targets = to.state();
  const auto match = [](const nn::NamedTensor& a, const nn::NamedTensor& b) {
    return a.name == b.name && a.tensor.sizes() == b.tensor.sizes();
  };
  if (!std::ranges::equal(state, targets, match))
    return nn::copy_parameters_and_buffers(from, to);  // says what differs
  copied.resize(state.size());
  for (std::size_t t = 0; t < state.size(); ++t)  // to() has cast the module since
    if (const DType dtype = state[t].tensor.dtype(); targets[t].tensor.dtype() != dtype)
      nn::replace_value(targets[t].tensor, cast_values(targets[t].tensor, dtype));
  std::vector<Tensor> values;
  std::vector<std::size_t> changed;
  for (std::size_t t = 0; t < state.size(); ++t) {
    if (has_values_of(state[t].tensor, targets[t].tensor, copied[t])) continue;
    values.push_back(state[t].tensor);
    changed.push_back(t);
  }
  if (changed.empty()) return;
  values = move_together(values, device);
  for (std::size_t v = 0; v < changed.size(); ++v) {
    const Tensor &source = state[changed[v]].tensor, &target = targets[changed[v]].tensor;
    copy_values(values[v], target);
    target.storage()->bump_version();
    copied[changed[v]] = {source.storage().get(), source.storage()->version(), target.storage()->version()};
  }
}

}  // namespace

Devices::Devices(nn::Module& module, const Factory& factory, const TrainingStepOptions& options)
    : module_(module), options_(options), layout_(module), trained_(trained_parameters(module)), frozen_(module) {
  const int workers = std::max(static_cast<int>(options.devices.size()), 1);
  if (workers > 1) {
    // Only the module's own initialisation counts: the replicas' must not advance this thread's random key.
    const RandomKeyGuard guard(0, 0);
    for (const Device& device : options.devices) {
      replicas_.push_back(factory());
      LOCKSTEP_CHECK(replicas_.back(), "[TrainingStep] the factory returned null");
      replicas_.back()->to(device);
      parameters_.push_back(replicas_.back()->parameters());
      followers_.emplace_back(module, *replicas_.back());
    }
    // A forked child keeps them: Note [Another process's objects].
    threads_ =
        std::shared_ptr<DeviceThreads>(new DeviceThreads(workers), [here = OwnProcess()](DeviceThreads* threads) {
          if (here.is_here()) delete threads;
        });
    update_replicas();
  }
  for (int w = 0; w < workers; ++w) {
    nn::Module& worker = several() ? *replicas_[static_cast<std::size_t>(w)] : module_;
    if (!is_lockstep()) {
      runners_.emplace_back(worker, options.accumulate);
      continue;
    }
    const std::int64_t shards = options.logical_shards;
    sums_.push_back(std::make_unique<ShardSums>(worker, shards, shards_of_worker(shards, workers, w)));
    runners_.emplace_back(worker, *sums_.back());
  }
  runners_.front().look_for_unregistered();
}

void Devices::for_each(const std::function<void(int)>& body) {
  if (threads_)
    threads_->run(body);
  else
    body(0);
}

void Devices::update_replicas() {
  const std::vector<nn::NamedTensor> state = module_.state();
  const std::vector<Tensor> parameters = module_.parameters();
  const Device first = options_.devices.front();
  LOCKSTEP_CHECK(parameters.empty() || parameters.front().device() == first,
                 "[TrainingStep] the module is on {} now, and its replicas were made for devices of which {} is the "
                 "first; leave it there, or make another step of it for other devices",
                 to_string(parameters.front().device()), to_string(first));
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    nn::Module& replica = *replicas_[i];
    if (i == 0) {
      const std::vector<nn::NamedTensor> mine = replica.state();
      LOCKSTEP_CHECK(mine.size() == state.size(), "[TrainingStep] the factory returned modules of different structure");
      for (std::size_t t = 0; t < state.size(); ++t)
        if (!(mine[t].tensor.storage() == state[t].tensor.storage()))
          nn::replace_value(mine[t].tensor, state[t].tensor);
    } else {
      copied_.resize(replicas_.size());
      copy_state(state, module_, replica, options_.devices[i], copied_[i]);
    }
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (parameters_[i][p].requires_grad() != parameters[p].requires_grad())
        parameters_[i][p].set_requires_grad(parameters[p].requires_grad());
    followers_[i].update();
  }
}

Tensor Devices::step(const data::Batch& batch, std::uint64_t step, const LossFunction& loss) {
  LOCKSTEP_CHECK(batch.size() > 0, "[TrainingStep] the batch is empty: it has no samples");
  if (is_lockstep()) frozen_.check();
  std::optional<DeviceThreads::Turn> turn;
  if (several()) turn.emplace(*threads_, "TrainingStep");
  if (several())
    update_replicas();
  else
    module_.zero_grad(/*set_to_none=*/true);
  data::Batch whole = batch;
  whole.global_size = batch.size();
  // Device i draws as shard i of the step.
  const RandomKeyGuard key(step, 0);
  // A slice's gradients, or a shard's, are not yet those that hooks are for.
  std::optional<detail::HeldHooks> held;
  if (several() || is_lockstep() || options_.accumulate > 1) held.emplace(module_.parameters());
  for_each([&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    std::optional<RandomKeyGuard> own;
    if (w > 0) own.emplace(step, static_cast<std::uint32_t>(w));
    // A step that was broken off may have left something.
    if (several())
      for (const Tensor& parameter : parameters_[w]) parameter.set_grad({});
    const data::Range mine = samples_of_worker(batch.size(), options_.logical_shards, count(), worker);
    runners_[w].begin(rows_of(whole, mine), step, loss);
    if (!is_lockstep()) return;
    if (runners_[w].pending()) runners_[w].finish(1.0);
    sums_[w]->take_all();
  });
  Tensor mean = is_lockstep() ? finish_shards(step) : finish_slices();
  if (held) {
    const std::vector<Tensor> parameters = module_.parameters();
    for (std::size_t p = parameters.size(); p-- > 0;)
      if (parameters[p].grad().defined()) held->run(p);
  }
  return mean;
}

Tensor Devices::finish_slices() {
  double count = 0.0;
  for (const ShareRunner& runner : runners_) count += runner.count();
  for_each([&](int worker) {
    ShareRunner& runner = runners_[static_cast<std::size_t>(worker)];
    if (runner.pending()) runner.finish(count);
  });
  const NoGradGuard no_grad;
  if (!several()) return runners_.front().device_sum() / count;
  const std::vector<Tensor> sums = collect_gradients(parameters_, module_.device());
  const std::vector<Tensor> parameters = module_.parameters();
  for (std::size_t p = 0; p < sums.size(); ++p) parameters[p].set_grad(sums[p]);
  double sum = 0.0;
  for (const ShareRunner& runner : runners_) sum += runner.sum();
  return full({}, sum / count, {.dtype = kFloat64});
}

Tensor Devices::finish_shards(std::uint64_t step) {
  const std::vector<double> totals = sum_totals();
  const Tensor loss = StepTotals::mean_loss(totals);
  std::vector<std::string> unused;
  for (std::size_t p = 0; p < trained_.size(); ++p) {
    const Tensor& parameter = trained_[p].tensor;
    if (std::ranges::none_of(sums_, [p](const auto& sums) { return sums->used()[p]; })) {
      parameter.set_grad({});
      unused.push_back(trained_[p].name);
      continue;
    }
    ShardSums::Parts parts;
    for (const auto& sums : sums_) {
      ShardSums::Parts more = sums->parts(p);
      for (const Tensor& tensor : more.tensors) parts.tensors.push_back(move_values(tensor, parameter.device()));
      parts.nodes.insert(parts.nodes.end(), more.nodes.begin(), more.nodes.end());
    }
    const Tensor grad = empty(parameter.sizes(), options_of(parameter));
    sum_parts(grad, parts, StepTotals::count(totals));
    parameter.set_grad(grad);
  }
  if (!unused.empty() && !std::exchange(warned_, true)) warn_of_unused_parameters(unused, trained_, step);
  for (const auto& sums : sums_) sums->clear();
  layout_.track(totals);
  return loss;
}

std::vector<Tensor> Devices::collect_gradients(const std::vector<std::vector<Tensor>>& parameters, Device device) {
  std::vector<Tensor> sums(parameters.front().size());
  for (const std::vector<Tensor>& replica : parameters) {
    std::vector<Tensor> grads;
    for (const Tensor& parameter : replica) {
      grads.push_back(parameter.grad());
      parameter.set_grad({});
    }
    grads = move_together(grads, device);
    for (std::size_t p = 0; p < grads.size(); ++p)
      if (grads[p].defined()) sums[p] = sums[p].defined() ? add_values(sums[p], grads[p]) : grads[p];
  }
  return sums;
}

std::vector<double> Devices::sum_totals() const {
  TreeStack<std::vector<double>> all;
  for (const auto& sums : sums_) {
    const std::vector<TreeNode> units = tree_units(sums->mine());
    for (std::size_t u = 0; u < units.size(); ++u) all.push(units[u], sums->totals()[u], add_rows);
  }
  return all.entries().front().value;
}

std::string Devices::capture_obstacle() const {
  if (is_lockstep()) return "lockstep mode adds up on the host what the shards count";
  if (several()) return "several devices are driven by threads that wait for each other";
  return {};
}

}  // namespace lockstep::distributed
