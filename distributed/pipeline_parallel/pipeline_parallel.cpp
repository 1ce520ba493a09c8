#include "lockstep/distributed/pipeline_parallel/pipeline_parallel.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/distributed/pipeline_parallel/pipeline_state.h"
#include "lockstep/distributed/tensor_parallel/tensor_parallel.h"
#include "lockstep/nn/optim/gradients.h"

namespace lockstep::distributed {

PipelineParallel::PipelineParallel(nn::Module& module, std::vector<PipelineLayer> layers,
                                   const PipelineParallelOptions& options)
    : state_(std::make_unique<State>(module, std::move(layers), options)) {}

PipelineParallel::~PipelineParallel() = default;

ModelPart* PipelineParallel::part() const {
  return state_.get();
}

std::vector<nn::NamedTensor> PipelineParallel::named_parameters() const {
  std::vector<nn::NamedTensor> mine;
  for (const State::Member& member : state_->members)
    if (member.is_parameter && state_->holds(member)) mine.push_back(member.named);
  return mine;
}

std::vector<Tensor> PipelineParallel::parameters() const {
  std::vector<Tensor> mine;
  for (const nn::NamedTensor& each : named_parameters()) mine.push_back(each.tensor);
  if (std::ranges::none_of(mine, &Tensor::requires_grad)) mine.push_back(state_->nothing);
  return mine;
}

const std::vector<std::int64_t>& PipelineParallel::layers_of_chunks() const {
  return state_->counts;
}

int PipelineParallel::stage() const {
  return state_->group->rank();
}

std::int64_t PipelineParallel::bytes_sent() const {
  return state_->links->bytes_sent();
}

std::vector<double> PipelineParallel::evaluate(
    const Tensor& x, const std::function<std::vector<double>(const Tensor& output)>& values) const {
  State& state = *state_;
  const NoGradGuard values_only;
  const bool several = state.stages() > 1;
  // Each chunk's input comes from the stage before, so that a rank needs nothing of the schedules here.
  std::vector<std::deque<StageKey>> incoming(static_cast<std::size_t>(state.stages()));
  for (int chunk = 1; chunk <= state.last_chunk(); ++chunk)
    if (const int from = state.stage_of(chunk - 1); state.is_mine(chunk) && from != state.group->rank())
      incoming[static_cast<std::size_t>(from)].push_back({StageKey::Kind::activation, 0, chunk, 0});
  state.links->begin(std::move(incoming), {1, x.dim() > 0 ? x.size(0) : 1});
  std::vector<double> result;
  for (int chunk = 0; chunk <= state.last_chunk(); ++chunk) {
    if (!state.is_mine(chunk)) continue;
    const Tensor input = chunk == 0 ? move_values(x, state.module.device())
                                    : state.links->take({StageKey::Kind::activation, 0, chunk, 0}).tensor;
    const Tensor output = state.run_chunk(chunk, input, 0);
    if (chunk == state.last_chunk())
      state.guarded(chunk, 0, "what is measured behind forward", [&] { result = values(output); });
    else
      state.links->send(state.stage_of(chunk + 1), {StageKey::Kind::activation, 0, chunk + 1, 0},
                        {as_contiguous(output)});
  }
  if (!several) return result;
  static const OperationLabel label("what the last stage has measured");
  const LabelScope scope(label);
  const std::string_view own(reinterpret_cast<const char*>(result.data()), result.size() * sizeof(double));
  const std::string bytes = state.group->broadcast_object(own, state.stage_of(state.last_chunk()));
  result.resize(bytes.size() / sizeof(double));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  state.links->finish();
  return result;
}

double PipelineParallel::clip_grad_norm(double max_norm, const TensorParallel* divided,
                                        optim::Optimizer* optimizer) const {
  LOCKSTEP_CHECK(max_norm >= 0.0, "[PipelineParallel] expected max_norm >= 0, found {}", max_norm);
  const NoGradGuard values_only;
  std::vector<Tensor> parameters;
  for (const State::Member& member : state_->members)
    if (member.is_parameter) parameters.push_back(member.named.tensor);
  // A plain optimizer has nothing to add: the gradients are with the parameters, those of other optimizers too.
  const bool elsewhere = optim::detail::has_gradients_of(parameters, optim::detail::GradientsInParts::Kind::elsewhere);
  auto* const sharded = elsewhere ? dynamic_cast<ZeroRedundancyOptimizer*>(optimizer) : nullptr;
  LOCKSTEP_CHECK(!elsewhere || sharded,
                 "[PipelineParallel] a step has divided the gradients (zero = 2 or 3), so that parameters have none; "
                 "call clip_grad_norm(max_norm, divided, &optimizer) with the step's optimizer");
  std::vector<double> squares;
  if (divided && sharded) {
    squares = divided->gradient_squares(parameters, [&](const auto& take) { sharded->visit_gradients(take); });
  } else if (divided) {
    squares = divided->gradient_squares(parameters);
  } else if (sharded) {
    for (const State::Member& member : state_->members)
      LOCKSTEP_CHECK(
          !member.is_parameter || !member.trained || !state_->owns(member) ||
              std::ranges::any_of(sharded->parameters(),
                                  [&](const Tensor& each) { return each.is_same(member.named.tensor); }),
          "[PipelineParallel] the optimizer does not have '{}', whose gradient a step has divided; clip with "
          "one that has all parameters of this rank",
          member.named.name);
    squares = sharded->gradient_squares(parameters);
  } else {
    squares = optim::detail::gradient_squares(parameters);
  }
  std::size_t p = 0;
  for (const State::Member& member : state_->members)
    if (member.is_parameter && !state_->owns(member))
      squares[p++] = 0.0;
    else if (member.is_parameter)
      ++p;
  if (state_->stages() > 1) {
    // One stage has each of them, so the sum is exact.
    const Tensor all = move_values(tensor(squares), state_->module.device());
    static const OperationLabel label("squares of the gradients of all stages");
    const LabelScope scope(label);
    state_->group->all_reduce(all)->wait();
    squares = all.to_vector<double>();
  }
  double square = 0.0;
  if (divided) {
    square = divided->sum_of_squares(parameters, squares);
  } else {
    for (const double each : squares) square += each;
  }
  const double norm = std::sqrt(square), factor = max_norm / (norm + 1e-6);
  if (factor >= 1.0) return norm;
  if (sharded) {
    sharded->multiply_gradients(factor);
    return norm;
  }
  for (const Tensor& parameter : parameters)
    if (const Tensor grad = parameter.grad(); grad.defined()) grad.mul_(factor);
  return norm;
}

void PipelineParallel::gather(const std::function<Tensor(const Tensor& own)>& value_of,
                              const std::function<void(const std::string& name, const Tensor& value)>& take) const {
  const State& state = *state_;
  const NoGradGuard values_only;
  static const OperationLabel label("whole state of the model, from its stages");
  const LabelScope scope(label);
  const Device device = state.module.device();
  for (const State::Member& member : state.members) {
    const int owner = state.stage_of(member.chunks.front());
    Tensor value;
    if (state.owns(member)) value = value_of(member.named.tensor);
    if (value.defined()) value = copy_contiguous(value.detach());
    if (state.stages() > 1) {
      std::vector<std::int64_t> sizes(10, 0);
      sizes[0] = value.defined() ? 1 + static_cast<std::int64_t>(value.dtype()) : 0;
      sizes[1] = value.defined() ? value.dim() : 0;
      for (int d = 0; value.defined() && d < value.dim(); ++d) sizes[static_cast<std::size_t>(2 + d)] = value.size(d);
      const Tensor header = move_values(tensor(sizes), device);
      state.group->broadcast(header, owner)->wait();
      sizes = header.to_vector<std::int64_t>();
      if (sizes[0] != 0 && !value.defined())
        value = empty(Shape(std::span<const std::int64_t>(sizes).subspan(2, static_cast<std::size_t>(sizes[1]))),
                      {.dtype = static_cast<DType>(sizes[0] - 1), .device = device});
      if (sizes[0] != 0) state.group->broadcast(value, owner)->wait();
    }
    take(member.named.name, value);
  }
}

std::vector<nn::NamedTensor> PipelineParallel::full_state(const TensorParallel* divided) const {
  std::vector<nn::NamedTensor> all;
  gather([&](const Tensor& own) { return divided ? divided->whole_of(own, own) : own; },
         [&](const std::string& name, const Tensor& value) {
           all.push_back({name, value});
         });
  return all;
}

std::vector<double> measure_layers(const std::vector<PipelineLayer>& layers, const Tensor& x,
                                   const ProcessGroupPtr& group, int repeats) {
  std::vector<double> seconds(layers.size(), 0.0);
  using Clock = std::chrono::steady_clock;
  if (!group || group->rank() == 0) {
    const RandomPositionGuard random(random_position());
    std::vector<std::pair<Tensor, Tensor>> buffers;  // and their values
    for (const PipelineLayer& layer : layers)
      for (const nn::Module* each : layer.modules)
        for (const Tensor& buffer : each->buffers()) buffers.emplace_back(buffer, copy_contiguous(buffer));
    Tensor input = x;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const PipelineLayer& layer = layers[i];
      Tensor output;
      for (int r = 0; r < std::max(repeats, 1); ++r) {
        const Tensor leaf = input.detach();
        if (leaf.is_floating_point()) leaf.set_requires_grad(true);
        const auto start = Clock::now();
        output = layer.forward ? layer.forward(leaf) : (*layer.modules.front())(leaf);
        if (output.requires_grad()) output.sum().backward();
        const double took = std::chrono::duration<double>(Clock::now() - start).count();
        seconds[i] = r == 0 ? took : std::min(seconds[i], took);
      }
      input = output.detach();
    }
    for (const PipelineLayer& layer : layers)
      for (nn::Module* each : layer.modules) each->zero_grad(/*set_to_none=*/true);
    const NoGradGuard values_only;
    for (const auto& [buffer, values] : buffers) buffer.copy_(values);
  }
  if (!group || group->world_size() == 1) return seconds;
  const Tensor all = move_values(tensor(seconds), x.device());
  static const OperationLabel label("seconds that each layer takes");
  const LabelScope scope(label);
  group->broadcast(all)->wait();
  return all.to_vector<double>();
}

}  // namespace lockstep::distributed
