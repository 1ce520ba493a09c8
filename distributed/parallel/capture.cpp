#include "lockstep/distributed/parallel/capture.h"

#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/graph.h"
#include "lockstep/core/cuda/pinned.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/log.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"

namespace lockstep::distributed {
namespace {

constexpr std::size_t kMostGraphs = 4;
constexpr std::size_t kStages = 3;

std::string key_of(const data::Batch& batch) {
  std::string key;
  batch.for_each([&](const char* each, const Tensor& tensor) {
    key += fmt::format("{} {}{} ", each, name(tensor.dtype()), to_string(tensor.sizes()));
  });
  return key + fmt::format("of {}", batch.global_size);
}

/// What a recording has seen of the model: with another place or another set of trained parameters, or in another mode,
/// it would do something else than the step.
using Identity = std::vector<const void*>;

Identity identity_of(nn::Module& module) {
  const LibraryAccess access;
  Identity identity{module.is_training() ? &module : nullptr};
  for (const Tensor& parameter : module.parameters()) {
    identity.push_back(parameter.raw_data());
    identity.push_back(parameter.requires_grad() ? parameter.impl() : nullptr);
  }
  return identity;
}

/// What is put on `later` from now on waits for what is on `earlier`.
void follow(const cuda::Stream& later, const cuda::Stream& earlier) {
  cuda::Event event(earlier.device());
  event.record(earlier);
  later.wait(event);
}

}  // namespace

struct CapturedStep::Graphs {
  explicit Graphs(Device device)
      : device(device),
        stream(cuda::Stream::create(device.index)),
        random_step(zeros({1}, {.dtype = kInt64, .device = device})) {
    cuda::Stream::current(device.index).synchronize();
  }

  /// Of one size of batch.
  struct Recorded {
    int warm = 0;          // steps without a graph, so far
    bool refused = false;  // it cannot be captured
    data::Batch slots;
    Tensor loss;
    std::vector<Tensor> gradients;  // by parameter; undefined where there is none
    std::optional<cuda::Graph> graph;
    bool draws = false;  // random numbers
  };

  /// Pinned memory that a batch waits in until the device has fetched it.
  struct Stage {
    std::map<std::string, Tensor> pinned;  // by name
    std::optional<cuda::Event> fetched;
  };

  void fill(const data::Batch& batch, const data::Batch& slots);
  void record(Recorded& made, TrainingStep& step, optim::Optimizer& optimizer, const CapturedStepOptions& options,
              const data::Batch& batch, const LossFunction& loss);
  Tensor replay(Recorded& recorded, TrainingStep& step, optim::Optimizer& optimizer, optim::GradScaler* scaler,
                const data::Batch& batch, std::uint64_t number);

  Device device;
  cuda::Stream stream;
  Tensor random_step;
  Identity identity;
  std::map<std::string, Recorded> sizes;
  std::array<Stage, kStages> stages;
  std::size_t next_stage = 0;
};

// On `stream`, the current one.
void CapturedStep::Graphs::fill(const data::Batch& batch, const data::Batch& slots) {
  Stage& stage = stages[next_stage++ % kStages];
  if (stage.fetched) stage.fetched->synchronize();
  batch.for_each([&](const char* name, const Tensor& from) {
    if (from.device().is_cuda()) return copy_values(from, slots[name]);
    Tensor& pinned = stage.pinned[name];
    if (!pinned.defined() || pinned.sizes() != from.sizes() || pinned.dtype() != from.dtype())
      pinned = cuda::empty_pinned(from.sizes(), from.dtype());
    copy_values(from, pinned);
    cuda::copy_async(pinned, slots[name]);
  });
  if (!stage.fetched) stage.fetched.emplace(device.index);
  stage.fetched->record(stream);
}

void CapturedStep::Graphs::record(Recorded& made, TrainingStep& step, optim::Optimizer& optimizer,
                                  const CapturedStepOptions& options, const data::Batch& batch,
                                  const LossFunction& loss) {
  optim::GradScaler* const scaler = options.scaler;
  made.slots = batch.map(
      [&](const Tensor& tensor) { return empty(tensor.sizes(), {.dtype = tensor.dtype(), .device = device}); });
  made.loss = empty({}, {.dtype = kFloat64, .device = device});
  const DeviceRandomStep random(random_step);
  made.graph = cuda::Graph::capture(stream, [&] {
    Tensor value = step(made.slots, loss);
    if (scaler) value = scaler->unscaled(value);
    copy_values(value.detach().as_strided({}, {}, value.offset()), made.loss);
    if (scaler) return scaler->record_step(optimizer);
    if (options.max_grad_norm > 0.0) optimizer.clip_grad_norm_(options.max_grad_norm);
    optimizer.step();
  });
  made.draws = random.used();
  for (const Tensor& parameter : step.module().parameters()) made.gradients.push_back(parameter.grad());
}

Tensor CapturedStep::Graphs::replay(Recorded& recorded, TrainingStep& step, optim::Optimizer& optimizer,
                                    optim::GradScaler* scaler, const data::Batch& batch, std::uint64_t number) {
  const std::vector<Tensor> parameters = step.module().parameters();
  // A step without a graph, or with another one, may have left gradients of its own.
  for (std::size_t p = 0; p < parameters.size(); ++p)
    if (!parameters[p].grad().is_same(recorded.gradients[p])) parameters[p].set_grad(recorded.gradients[p]);
  fill(batch, recorded.slots);
  if (recorded.draws) fill_values(random_step, number);
  if (scaler)
    scaler->prepare_replay(optimizer);
  else
    optimizer.prepare_step();
  const auto launch = [&] { recorded.graph->launch(); };
  if (ProcessGroup* group = step.group())
    group->watch(fmt::format("step {}, a CUDA graph", number), launch);
  else
    launch();
  if (scaler) scaler->replayed();
  for (const Tensor& parameter : parameters) parameter.storage()->bump_version();
  return recorded.loss;
}

CapturedStep::CapturedStep(TrainingStep& step, optim::Optimizer& optimizer, CapturedStepOptions options)
    : step_(step), optimizer_(optimizer), options_(options) {
  const Device device = step.module().device();
  obstacle_ = !options.capture    ? "it was turned off"
              : !device.is_cuda() ? "the model is on the CPU"
                                  : step.capture_obstacle();
  if (obstacle_.empty() && dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer))
    obstacle_ = "the divided optimizer gathers its parameters under the host's control";
  if (obstacle_.empty() && !optimizer.is_elementwise())
    obstacle_ = fmt::format("{} asks the device for norms in each step", optimizer.name());
  if (obstacle_.empty() && options.scaler && optimizer.has_agreement())
    obstacle_ = "ranks agree on whether gradients overflowed, which the host does in each step";
  if (obstacle_.empty() && options.scaler && options.max_grad_norm > 0.0)
    obstacle_ = "gradients of a scaled loss are clipped, for which the host must know whether they overflowed";
  if (!obstacle_.empty()) return;
  graphs_ = std::make_unique<Graphs>(device);
  if (options.scaler) options.scaler->prepare_capture(device);
}

CapturedStep::~CapturedStep() {
  if (!graphs_) return;
  try {
    graphs_->stream.synchronize();  // the graphs' memory is in use until then
  } catch (const Error&) {
    // Of a failure on the device the caller has been told.
  }
}

// The random keys' step is the caller's, if it set one, else the count of steps here, replays or not.
Tensor CapturedStep::operator()(const data::Batch& batch, const LossFunction& loss) {
  if (const nn::detail::Resumption& resumed = step_.module().resumption(); resumed.loads != loads_seen_) {
    loads_seen_ = resumed.loads;
    steps_ = resumed.step;
  }
  const std::uint64_t count = steps_++;
  const std::uint64_t number = guarded_random_step().value_or(count);
  optim::GradScaler* scaler = options_.scaler;
  const LossFunction scaled = [&](nn::Module& module, const data::Batch& part) -> LossValue {
    const LossValue value = loss(module, part);
    const Tensor times = scaler->scale(value.value());
    return value.count() ? LossValue::sum(times, *value.count()) : LossValue(times);
  };
  const LossFunction& used = scaler ? scaled : loss;
  if (graphs_)
    if (Tensor value = replay(batch, used, number); value.defined()) return value;
  const RandomKeyGuard key(number, 0);
  Tensor value = step_(batch, used);
  if (scaler) value = scaler->unscaled(value);
  if (options_.max_grad_norm > 0.0) {
    if (scaler) scaler->unscale(optimizer_);
    optimizer_.clip_grad_norm_(options_.max_grad_norm);
  }
  if (!scaler) {
    optimizer_.step();
    return value;
  }
  scaler->step(optimizer_);
  scaler->update();
  return value;
}

// Of a graph that exists or is made now; undefined where the step is to be run without.
Tensor CapturedStep::replay(const data::Batch& batch, const LossFunction& loss, std::uint64_t number) {
  Graphs& graphs = *graphs_;
  const cuda::Stream caller = cuda::Stream::current(graphs.device.index);
  if (Identity now = identity_of(step_.module()); now != graphs.identity) {
    if (!graphs.sizes.empty()) graphs.stream.synchronize();
    graphs.sizes.clear();
    graphs.identity = std::move(now);
  }
  const std::string key = key_of(batch);
  if (!graphs.sizes.contains(key) && graphs.sizes.size() == kMostGraphs) return {};
  Graphs::Recorded& size = graphs.sizes[key];
  if (size.refused) return {};
  if (!size.graph) {
    // Each size brings kernels and algorithm choices of its own, which a capture must find made.
    if (size.warm++ < options_.warmup) return {};
    if (options_.scaler) optimizer_.state();  // makes it, where all steps of the warm-up were left out
    follow(graphs.stream, caller);
    const cuda::StreamGuard guard(graphs.stream);
    try {
      graphs.record(size, step_, optimizer_, options_, batch, loss);
    } catch (const Error& error) {
      size = Graphs::Recorded();
      size.refused = true;
      step_.abandon();
      if (nodes_ == 0) obstacle_ = error.what();  // else other sizes have graphs
      logging::info("steps on batches of {} are not captured as a CUDA graph: {}", key, error.what());
      return {};
    }
    nodes_ = size.graph->nodes();
    obstacle_.clear();
  }
  follow(graphs.stream, caller);
  Tensor value;
  {
    const cuda::StreamGuard guard(graphs.stream);
    value = graphs.replay(size, step_, optimizer_, options_.scaler, batch, number);
  }
  follow(caller, graphs.stream);
  ++replays_;
  return value;
}

}  // namespace lockstep::distributed
