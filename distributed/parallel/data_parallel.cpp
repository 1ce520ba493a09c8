#include "lockstep/distributed/parallel/data_parallel.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/data/partition.h"
#include "lockstep/distributed/parallel/lockstep_step.h"
#include "lockstep/distributed/parallel/share_runner.h"
#include "lockstep/distributed/parallel/workers/device_threads.h"

namespace lockstep::distributed {
namespace {

// Sum over replicas of each parameter's gradient, on `device`, in replica order. Takes them away.
std::vector<Tensor> collect_gradients(const std::vector<std::vector<Tensor>>& parameters, Device device) {
  std::vector<Tensor> sums(parameters.front().size());
  for (const std::vector<Tensor>& replica : parameters) {
    for (std::size_t p = 0; p < replica.size(); ++p) {
      const Tensor grad = replica[p].grad();
      if (!grad.defined()) continue;
      replica[p].set_grad({});
      const Tensor moved = move_values(grad, device);
      sums[p] = sums[p].defined() ? add_values(sums[p], moved) : moved;
    }
  }
  return sums;
}

// Rows from all devices as one tensor on `device`.
Tensor gather_rows(const std::vector<Tensor>& parts, Device device) {
  Shape sizes = parts.front().sizes();
  sizes[0] = 0;
  for (const Tensor& part : parts) sizes[0] += part.size(0);
  const Tensor out = empty(sizes, {.dtype = parts.front().dtype(), .device = device});
  std::int64_t row = 0;
  for (const Tensor& part : parts) {
    copy_values(part, rows(out, row, part.size(0)));
    row += part.size(0);
  }
  return out;
}

}  // namespace

/// Backward of the whole parallel forward. Each replica keeps a graph of its own, which this node runs on the replica's
/// thread; its inputs are the batch and the module's parameters.
struct DataParallelBackward final : Node {
  std::shared_ptr<DeviceThreads> threads;
  std::vector<std::vector<Tensor>> parameters;  // by replica
  std::size_t active = 0;                       // saved: as many parts of the batch, which are leaves, then outputs
  Device first;

  const char* name() const override { return "DataParallelBackward"; }

  TensorList apply(TensorList grads) override {
    const Tensor grad = as_contiguous(grads[0]);
    std::vector<Tensor> inputs, outputs;
    for (std::size_t i = 0; i < active; ++i) {
      inputs.push_back(saved(i));
      outputs.push_back(saved(active + i));
    }
    std::vector<std::int64_t> begin(outputs.size() + 1, 0);
    for (std::size_t i = 0; i < outputs.size(); ++i) begin[i + 1] = begin[i] + outputs[i].size(0);

    threads->run([&](int device) {
      const auto i = static_cast<std::size_t>(device);
      if (i >= outputs.size()) return;
      const Tensor seed = move_values(rows(grad, begin[i], begin[i + 1] - begin[i]), outputs[i].device());
      Engine::backward({&outputs[i], 1}, {&seed, 1});
    });
    const std::vector<Tensor> sums = collect_gradients(parameters, first);

    TensorList result(1 + sums.size());
    if (needs_grad(0)) {
      std::vector<Tensor> parts;
      for (const Tensor& input : inputs) parts.push_back(input.grad().defined() ? input.grad() : zeros_like(input));
      result[0] = gather_rows(parts, first);
    }
    for (std::size_t p = 0; p < sums.size(); ++p) result[p + 1] = sums[p];
    return result;
  }
};

DataParallel::~DataParallel() = default;
DataParallel::DataParallel(DataParallel&&) noexcept = default;

DataParallel::DataParallel(const Factory& factory, std::vector<Device> devices, DataParallelOptions options)
    : devices_(std::move(devices)), options_(options) {
  check_accumulate(options.accumulate, options.logical_shards, "DataParallel");
  LOCKSTEP_CHECK(!devices_.empty(), "[DataParallel] no devices were given");
  const auto make = [&](Device device) {
    auto module = factory();
    LOCKSTEP_CHECK(module, "[DataParallel] the factory returned null");
    module->to(device);
    return module;
  };
  module_ = make(devices_.front());
  // Only the module's own initialisation counts: the replicas' must not advance this thread's random key.
  const RandomKeyGuard guard(0, 0);
  for (const Device& device : devices_) {
    replicas_.push_back(make(device));
    parameters_.push_back(replicas_.back()->parameters());
  }
  threads_ = std::make_shared<DeviceThreads>(num_devices());
  update_replicas();
  if (options.logical_shards == 0) return;
  check_shards(options.logical_shards, num_devices(), "DataParallel");
  std::vector<nn::Module*> modules;
  for (const auto& replica : replicas_) modules.push_back(replica.get());
  lockstep_ = make_local_lockstep_step(*module_, std::move(modules), threads_, options.logical_shards);
}

// The step of the random keys: the caller's, if it set one, else our own count.
std::uint64_t DataParallel::next_random_step() {
  const std::uint64_t count = steps_++;
  return guarded_random_step().value_or(count);
}

void DataParallel::update_replicas() {
  const std::vector<nn::NamedTensor> state = module_->state();
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    nn::Module& replica = *replicas_[i];
    if (i == 0) {
      const std::vector<nn::NamedTensor> mine = replica.state();
      LOCKSTEP_CHECK(mine.size() == state.size(), "[DataParallel] the factory returned modules of different structure");
      for (std::size_t t = 0; t < state.size(); ++t)
        if (!(mine[t].tensor.storage() == state[t].tensor.storage()))
          nn::replace_value(mine[t].tensor, state[t].tensor);
    } else {
      nn::copy_parameters_and_buffers(*module_, replica);
    }
    const std::vector<Tensor> parameters = module_->parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p)
      if (parameters_[i][p].requires_grad() != parameters[p].requires_grad())
        parameters_[i][p].set_requires_grad(parameters[p].requires_grad());
    if (replica.is_training() != module_->is_training()) replica.train(module_->is_training());
  }
}

Tensor DataParallel::operator()(Tensor x) {
  LOCKSTEP_CHECK(x.defined() && x.dim() > 0 && x.size(0) > 0,
                 "[DataParallel] expected a batch with at least one sample along dimension 0");
  LOCKSTEP_CHECK(!lockstep_ || !GradMode::enabled() || !module_->is_training(),
                 "[DataParallel] in lockstep mode a graph can only be recorded by step(), which computes the logical "
                 "shards one by one");
  update_replicas();
  const auto active = static_cast<std::size_t>(std::min<std::int64_t>(num_devices(), x.size(0)));
  const bool recording = GradMode::enabled();
  const bool input_needs_grad = recording && x.requires_grad();
  const std::uint64_t step = next_random_step();
  std::vector<Tensor> inputs(active);
  std::vector<Tensor> outputs(active);
  const Tensor source = x.detach();
  threads_->run([&](int device) {
    const auto i = static_cast<std::size_t>(device);
    if (i >= active) return;
    const data::Range range = data::partition(source.size(0), static_cast<std::int64_t>(active), device);
    inputs[i] = move_values(rows(source, range.begin, range.size()), devices_[i]);
    if (input_needs_grad) inputs[i].set_requires_grad(true);
    GradModeGuard mode(recording);
    RandomKeyGuard key(step, static_cast<std::uint32_t>(device));
    outputs[i] = replicas_[i]->forward(inputs[i]);
    LOCKSTEP_CHECK(outputs[i].dim() > 0 && outputs[i].size(0) == range.size(),
                   "[DataParallel] the module's output has shape {}; dimension 0 must be the batch of {}",
                   to_string(outputs[i].sizes()), range.size());
  });
  const Tensor out = gather_rows(outputs, devices_.front());

  std::vector<const Tensor*> node_inputs{&x};
  const std::vector<Tensor> parameters = module_->parameters();
  for (const Tensor& parameter : parameters) node_inputs.push_back(&parameter);
  const Tensor* node_outputs[] = {&out};
  if (auto* node = record_many<DataParallelBackward>(node_outputs, node_inputs)) {
    node->threads = threads_;
    node->parameters = parameters_;
    node->active = active;
    for (const Tensor& input : inputs) node->save(input);
    for (const Tensor& output : outputs) node->save(output);
    node->first = x.device();
  }
  return out;
}

double DataParallel::step(const data::Batch& batch, const LossFunction& loss) {
  LOCKSTEP_CHECK(batch.size() > 0, "[DataParallel::step] the batch is empty");
  update_replicas();
  const auto active = static_cast<std::size_t>(std::min<std::int64_t>(num_devices(), batch.size()));
  const std::uint64_t step = next_random_step();
  if (lockstep_) return (*lockstep_)(batch, step, loss);

  std::vector<std::unique_ptr<SlicedLoss>> parts(active);
  threads_->run([&](int device) {
    const auto i = static_cast<std::size_t>(device);
    if (i >= active) return;
    // A step that was broken off may have left something.
    for (const Tensor& parameter : parameters_[i]) parameter.set_grad({});
    const data::Range range = data::partition(batch.size(), static_cast<std::int64_t>(active), device);
    data::Batch part;
    part.x = move_values(rows(batch.x, range.begin, range.size()), devices_[i]);
    part.y = move_values(rows(batch.y, range.begin, range.size()), devices_[i]);
    part.global_size = batch.size();
    RandomKeyGuard key(step, static_cast<std::uint32_t>(device));
    parts[i] = std::make_unique<SlicedLoss>(
        *replicas_[i], part, SlicedLoss::Options{.slices = options_.accumulate, .step = "DataParallel::step"});
    parts[i]->begin([&](const data::Batch& slice) { return loss(*replicas_[i], slice); });
  });
  double sum = 0.0;
  double count = 0.0;
  for (const auto& part : parts) {
    sum += part->sum();
    count += part->count();
  }
  threads_->run([&](int device) {
    const auto i = static_cast<std::size_t>(device);
    if (i >= active) return;
    parts[i]->finish(count);
    parts[i].reset();
  });
  const std::vector<Tensor> parameters = module_->parameters();
  const std::vector<Tensor> sums = collect_gradients(parameters_, devices_.front());
  for (std::size_t p = 0; p < sums.size(); ++p) parameters[p].set_grad(sums[p]);
  return sum / count;
}

}  // namespace lockstep::distributed
