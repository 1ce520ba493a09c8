// PyTorch's idiom of DataParallel: one forward over several devices, and its backward.

#include <algorithm>
#include <utility>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/data/partition.h"
#include "lockstep/distributed/parallel/workers/devices.h"

namespace lockstep::distributed {
namespace {

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

// Device i draws as shard i of `step`; inside of a RandomKeyGuard of its step, after what was drawn there.
RandomPosition start_of(int device, std::uint64_t step) {
  RandomPosition start = random_position();
  if (!start.guarded) start = {.step = step, .guarded = true};
  start.shard = static_cast<std::uint32_t>(device);
  return start;
}

// Inside of a RandomKeyGuard the next draws come after those of all devices.
void go_on_behind(const std::vector<RandomPosition>& ends) {
  RandomPosition here = random_position();
  if (!here.guarded) return;
  for (const RandomPosition& end : ends)
    for (int stream = 0; stream < RandomPosition::kStreams; ++stream)
      here.calls[stream] = std::max(here.calls[stream], end.calls[stream]);
  set_random_position(here);
}

}  // namespace

/// Backward of the whole parallel forward. Each replica keeps a graph of its own, which this node runs on the replica's
/// thread; its inputs are the batch and the module's parameters.
struct DevicesBackward final : Node {
  std::shared_ptr<DeviceThreads> threads;
  std::vector<std::vector<Tensor>> parameters;  // by replica
  std::size_t active = 0;                       // saved: as many parts of the batch, which are leaves, then outputs
  Device of_parameters, of_input;               // where their gradients are wanted

  const char* name() const override { return "DevicesBackward"; }

  TensorList apply(TensorList grads) override {
    const DeviceThreads::Turn turn(*threads, "DataParallel");
    const Tensor grad = as_contiguous(grads[0]);
    std::vector<Tensor> inputs, outputs;
    for (std::size_t i = 0; i < active; ++i) {
      inputs.push_back(saved(i));
      outputs.push_back(saved(active + i));
    }
    std::vector<std::int64_t> begin(outputs.size() + 1, 0);
    for (std::size_t i = 0; i < outputs.size(); ++i) begin[i + 1] = begin[i] + outputs[i].size(0);

    const bool retain_graph = Engine::retains_graph();
    threads->run([&](int device) {
      const auto i = static_cast<std::size_t>(device);
      // A pass that was broken off may have left something, and one over a retained graph the gradients of its inputs.
      for (const Tensor& parameter : parameters[i]) parameter.set_grad({});
      if (i >= outputs.size() || !outputs[i].requires_grad()) return;
      if (inputs[i].requires_grad()) inputs[i].set_grad({});
      const Tensor seed = move_values(rows(grad, begin[i], begin[i + 1] - begin[i]), outputs[i].device());
      Engine::backward({&outputs[i], 1}, {&seed, 1}, retain_graph);
    });
    const std::vector<Tensor> sums = Devices::collect_gradients(parameters, of_parameters);

    TensorList result(1 + sums.size());
    if (needs_grad(0)) {
      std::vector<Tensor> parts;
      for (const Tensor& input : inputs) parts.push_back(input.grad().defined() ? input.grad() : zeros_like(input));
      result[0] = gather_rows(parts, of_input);
    }
    for (std::size_t p = 0; p < sums.size(); ++p) result[p + 1] = sums[p];
    return result;
  }
};

Tensor Devices::forward(const Tensor& x, std::uint64_t step) {
  LOCKSTEP_CHECK(x.defined() && x.dim() > 0 && x.size(0) > 0,
                 "[DataParallel] expected a batch with at least one sample along dimension 0");
  const bool recording = GradMode::enabled();
  check_not_lockstep(is_lockstep() && recording && module_.is_training(), "the module's operator()");
  if (!several()) {
    RandomPosition end;
    Tensor out;
    {
      const RandomPositionGuard key(start_of(0, step));
      out = module_(x.to(module_.device()));
      end = random_position();
    }
    go_on_behind({end});
    return out;
  }
  const DeviceThreads::Turn turn(*threads_, "DataParallel");
  update_replicas();
  const auto active = static_cast<std::size_t>(std::min<std::int64_t>(count(), x.size(0)));
  const bool input_needs_grad = recording && x.requires_grad();
  std::vector<Tensor> inputs(active);
  std::vector<Tensor> outputs(active);
  std::vector<RandomPosition> positions(active);
  for (std::size_t i = 0; i < active; ++i) positions[i] = start_of(static_cast<int>(i), step);
  const Tensor source = x.detach();
  threads_->run([&](int device) {
    const auto i = static_cast<std::size_t>(device);
    if (i >= active) return;
    const data::Range range = data::partition(source.size(0), static_cast<std::int64_t>(active), device);
    inputs[i] = move_values(rows(source, range.begin, range.size()), options_.devices[i]);
    if (input_needs_grad) inputs[i].set_requires_grad(true);
    GradModeGuard mode(recording);
    const RandomPositionGuard key(positions[i]);
    outputs[i] = (*replicas_[i])(inputs[i]);
    positions[i] = random_position();
    LOCKSTEP_CHECK(outputs[i].dim() > 0 && outputs[i].size(0) == range.size(),
                   "[DataParallel] the module's output has shape {}; dimension 0 must be the batch of {}",
                   to_string(outputs[i].sizes()), range.size());
  });
  go_on_behind(positions);
  const Tensor out = gather_rows(outputs, options_.devices.front());
  if (std::ranges::none_of(outputs, &Tensor::requires_grad)) return out;

  std::vector<const Tensor*> node_inputs{&x};
  const std::vector<Tensor> parameters = module_.parameters();
  for (const Tensor& parameter : parameters) node_inputs.push_back(&parameter);
  const Tensor* node_outputs[] = {&out};
  if (auto* node = record_many<DevicesBackward>(node_outputs, node_inputs)) {
    node->threads = threads_;
    node->parameters = parameters_;
    node->active = active;
    for (const Tensor& input : inputs) node->save(input);
    for (const Tensor& output : outputs) node->save(output);
    node->of_parameters = options_.devices.front();
    node->of_input = x.device();
  }
  return out;
}

}  // namespace lockstep::distributed
