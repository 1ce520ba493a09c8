#include "lockstep/distributed/pipeline_parallel/pipeline_state.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/process_group/coalesced.h"
#include "lockstep/distributed/process_group/disagreement.h"
#include "lockstep/distributed/tensor_parallel/tensor_parallel.h"
#include "lockstep/nn/container.h"
#include "lockstep/nn/optim/gradients_in_parts.h"

namespace lockstep::distributed {
namespace {

/// The parameters of a layer as those of one module.
struct LayerParameters : nn::Module {
  explicit LayerParameters(const PipelineLayer& layer) {
    for (nn::Module* each : layer.modules) modules.push_back(std::make_unique<Held>(*this, modules.size(), *each));
  }
  struct Held : nn::Module {
    Held(nn::Module& owner, std::size_t number, const nn::Module& layer) : nn::Module(&owner, std::to_string(number)) {
      for (const Tensor& p : layer.parameters()) {
        const bool trained = p.requires_grad();
        held.push_back(std::make_unique<nn::Parameter>(this, std::to_string(held.size()), p));
        p.set_requires_grad(trained);  // a frozen one stays so
      }
    }
    std::vector<std::unique_ptr<nn::Parameter>> held;
  };
  std::vector<std::unique_ptr<Held>> modules;
};

bool has(const std::vector<Tensor>& tensors, const Tensor& tensor) {
  return std::ranges::any_of(tensors, [&](const Tensor& each) { return each.is_same(tensor); });
}

std::vector<Tensor> tensors_of(const PipelineLayer& layer) {
  std::vector<Tensor> all;
  for (const nn::Module* each : layer.modules)
    for (const nn::NamedTensor& named : each->state())
      if (!has(all, named.tensor)) all.push_back(named.tensor);
  return all;
}

}  // namespace

PipelineParallel::State::State(nn::Module& module_, std::vector<PipelineLayer> layers_,
                               const PipelineParallelOptions& options_)
    : module(module_),
      options(options_),
      group(options.group ? options.group : make_single_process_group()),
      layers(std::move(layers_)) {
  check_layers();
  cut();
  find_members();
  agree();
  drop_others();
  for (const PipelineLayer& layer : layers)
    parameters_of_.push_back(options.recompute ? std::make_unique<LayerParameters>(layer) : nullptr);
  nothing = empty({0}, {.device = module.device()});
  nothing.set_requires_grad(true);
  links = std::make_unique<StageLinks>(group, module.device(), [this](const StageKey& key) { return describe(key); });
  if (stages() > 1)
    gradients_in_parts = std::make_unique<optim::detail::GradientsInParts>(
        module.parameters(), optim::detail::GradientsInParts::Kind::part,
        fmt::format("is one of a model that is spread over {} stages, and the others have the rest of the gradients; "
                    "call clip_grad_norm() of the PipelineParallel, or of the MeshModel",
                    stages()));
}

void PipelineParallel::State::check_layers() const {
  LOCKSTEP_CHECK(!layers.empty(), "[PipelineParallel] the plan has no layers");
  for (const PipelineLayer& layer : layers) {
    LOCKSTEP_CHECK(std::ranges::none_of(layer.modules, [](const nn::Module* each) { return each == nullptr; }),
                   "[PipelineParallel] layer '{}' has a module that is null", layer.name);
    LOCKSTEP_CHECK(layer.forward || layer.modules.size() == 1,
                   "[PipelineParallel] layer '{}' has {} modules and no forward; say what it computes", layer.name,
                   layer.modules.size());
  }
  LOCKSTEP_CHECK(options.chunks >= (options.schedule == PipelineSchedule::interleaved ? 2 : 1) &&
                     (options.chunks == 1 || may_interleave(options.schedule)),
                 "[PipelineParallel] {} chunk(s) a stage with the schedule {}; expected 2 or more with interleaved, 1 "
                 "or more with zero-bubble, 1 with the others",
                 options.chunks, to_string(options.schedule));
  LOCKSTEP_CHECK(options.autocast == kFloat32 || options.autocast == kBFloat16 || options.autocast == kFloat16,
                 "[PipelineParallel] autocast is {}; expected bfloat16 or float16, or float32 for none",
                 name(options.autocast));
}

void PipelineParallel::State::cut() {
  const auto parts = static_cast<std::size_t>(stages()) * static_cast<std::size_t>(options.chunks);
  LOCKSTEP_CHECK(
      layers.size() >= parts,
      "[PipelineParallel] the model has {} layers, fewer than the {} that {} stage(s) of {} chunk(s) need; use "
      "fewer stages",
      layers.size(), parts, stages(), options.chunks);
  LOCKSTEP_CHECK(options.costs.empty() || options.costs.size() == layers.size(),
                 "[PipelineParallel] {} costs were given for {} layers", options.costs.size(), layers.size());
  for (const double cost : options.costs)
    LOCKSTEP_CHECK(cost >= 0.0 && std::isfinite(cost), "[PipelineParallel] a layer's cost is {}; expected 0 or more",
                   cost);
  std::vector<std::size_t> cuts;
  if (!options.layers_of_chunks.empty()) {
    std::int64_t sum = 0;
    for (const std::int64_t count : options.layers_of_chunks) {
      cuts.push_back(static_cast<std::size_t>(sum));
      sum += std::max<std::int64_t>(count, 0);
    }
    LOCKSTEP_CHECK(
        cuts.size() == parts && sum == std::ssize(layers) && std::ranges::min(options.layers_of_chunks) > 0,
        "[PipelineParallel] layers_of_chunks has {} numbers, of {} layers together; expected {} numbers above "
        "0, and {} layers",
        cuts.size(), sum, parts, layers.size());
  } else if (!options.costs.empty()) {
    cuts = balanced_cuts(options.costs, parts);
  } else {
    std::vector<double> costs;
    for (const PipelineLayer& layer : layers) {
      costs.push_back(1.0);  // layers without parameters are not free
      for (const Tensor& each : tensors_of(layer)) costs.back() += TensorParallel::average_numel(each);
    }
    cuts = balanced_cuts(costs, parts);
  }
  for (std::size_t c = 0; c < parts; ++c) {
    chunks.push_back({cuts[c], c + 1 < parts ? cuts[c + 1] : layers.size()});
    counts.push_back(static_cast<std::int64_t>(chunks[c].end - chunks[c].first));
  }
}

void PipelineParallel::State::find_members() {
  std::vector<std::vector<Tensor>> of_chunks(chunks.size());
  for (std::size_t c = 0; c < chunks.size(); ++c)
    for (std::size_t i = chunks[c].first; i < chunks[c].end; ++i)
      for (const Tensor& each : tensors_of(layers[i]))
        if (!has(of_chunks[c], each)) of_chunks[c].push_back(each);
  const std::vector<Tensor> parameters = module.parameters();
  for (const nn::NamedTensor& named : module.state()) {
    Member member{named, has(parameters, named.tensor), named.tensor.requires_grad(), {}};
    for (std::size_t c = 0; c < chunks.size(); ++c)
      if (has(of_chunks[c], named.tensor)) member.chunks.push_back(static_cast<int>(c));
    LOCKSTEP_CHECK(!member.chunks.empty(), "[PipelineParallel] '{}' belongs to no layer of the plan", named.name);
    if (member.trained && member.chunks.size() > 1) tied.push_back({named, member.chunks});
    members.push_back(std::move(member));
  }
  for (const auto& tensors : of_chunks)
    for (const Tensor& each : tensors)
      LOCKSTEP_CHECK(
          std::ranges::any_of(members, [&](const Member& member) { return member.named.tensor.is_same(each); }),
          "[PipelineParallel] a layer of the plan has a tensor {} that the module does not have",
          to_string(each.sizes()));
}

// Rank 0's values, on ranks that have the same plan.
void PipelineParallel::State::agree() {
  if (stages() == 1) return;
  std::string plan = fmt::format("{} {}", to_string(options.schedule), options.chunks);
  for (const PipelineLayer& layer : layers) plan += " " + layer.name;
  for (const Chunk& chunk : chunks) plan += fmt::format(" {}", chunk.first);
  static const OperationLabel label("plan of the pipeline, and rank 0's weights");
  const LabelScope scope(label);
  const auto found = find_disagreement(plan, *group);
  LOCKSTEP_CHECK(!found, "[PipelineParallel] the ranks were given different plans: '{}' and '{}'; give all the same",
                 found->of_rank0, found->of_other);
  std::vector<Tensor> tensors;
  for (const Member& member : members) tensors.push_back(member.named.tensor);
  broadcast_coalesced(tensors, *group);
}

bool PipelineParallel::State::holds(const Member& member) const {
  return std::ranges::any_of(member.chunks, [&](int chunk) { return is_mine(chunk); });
}

void PipelineParallel::State::drop_others() {
  for (const Member& member : members) {
    if (!member.is_parameter || holds(member)) continue;
    const Tensor& parameter = member.named.tensor;
    parameter.set_grad({});
    if (member.trained) parameter.set_requires_grad(false);
    nn::replace_value(parameter, empty({0}, options_of(parameter)));
  }
}

std::vector<std::vector<nn::NamedTensor>> PipelineParallel::State::trained() const {
  std::vector<std::vector<nn::NamedTensor>> groups(static_cast<std::size_t>(options.chunks));
  for (const Member& member : members)
    if (member.trained && owns(member)) groups[place_of(member.chunks.front())].push_back(member.named);
  return groups;
}

std::vector<Tensor> PipelineParallel::State::shared() const {
  std::vector<Tensor> shared;
  for (const Tied& each : tied) {
    const bool mine = std::ranges::any_of(each.chunks, [&](int chunk) { return is_mine(chunk); });
    const bool others = std::ranges::any_of(each.chunks, [&](int chunk) { return !is_mine(chunk); });
    if (mine && others) shared.push_back(each.parameter.tensor);
  }
  return shared;
}

std::string PipelineParallel::State::layers_in(int chunk) const {
  const Chunk& range = chunks[static_cast<std::size_t>(chunk)];
  const std::string &first = layers[range.first].name, &last = layers[range.end - 1].name;
  return range.end - range.first == 1 ? fmt::format("layer '{}'", first)
                                      : fmt::format("layers '{}' to '{}'", first, last);
}

std::string PipelineParallel::State::describe(const StageKey& key) const {
  const auto place = [&](int chunk) { return fmt::format("stage {}, {}", stage_of(chunk), layers_in(chunk)); };
  switch (key.kind) {
    case StageKey::Kind::activation:
      return fmt::format("micro-batch {}: activations from {} to {}", key.micro_batch, place(key.chunk - 1),
                         place(key.chunk));
    case StageKey::Kind::gradient:
      return fmt::format("micro-batch {}: gradients from {} to {}", key.micro_batch, place(key.chunk + 1),
                         place(key.chunk));
    case StageKey::Kind::tied:
      return fmt::format("micro-batch {}: gradient of '{}' for {}", key.micro_batch,
                         tied[static_cast<std::size_t>(key.tied)].parameter.name, place(key.chunk));
    case StageKey::Kind::result:
      break;
  }
  return fmt::format("gradient of '{}' for the other stages that have it",
                     tied[static_cast<std::size_t>(key.tied)].parameter.name);
}

void PipelineParallel::State::guarded(int chunk, std::int64_t micro_batch, const char* pass,
                                      const std::function<void()>& body) {
  try {
    in_layer_ = false;
    body();
  } catch (const ProcessGroupError&) {
    throw;  // says itself what it was
  } catch (const std::exception& error) {
    const std::string where = in_layer_ ? fmt::format("layer '{}'", layers[at_layer_].name) : layers_in(chunk);
    const std::string message = fmt::format("[pipeline] stage {} of {}, micro-batch {}, {} of {}: {}", stage_of(chunk),
                                            stages(), micro_batch, pass, where, error.what());
    // The neighbours wait for what does not come now.
    if (stages() > 1) group->abort(message);
    throw Error(message);
  } catch (...) {
    if (stages() > 1)
      group->abort(fmt::format("[pipeline] stage {} of {}, micro-batch {}, {}: an exception that is no std::exception",
                               stage_of(chunk), stages(), micro_batch, pass));
    throw;
  }
}

Tensor PipelineParallel::State::run_chunk(int chunk, Tensor x, std::int64_t micro_batch) {
  const Chunk& range = chunks[static_cast<std::size_t>(chunk)];
  guarded(chunk, micro_batch, "forward", [&] {
    std::optional<AutocastGuard> autocast;
    // An evaluation is the same on every mesh: in the types of the weights.
    if (options.autocast != kFloat32 && GradMode::enabled()) autocast.emplace(options.autocast, module.device().type);
    for (std::size_t i = range.first; i < range.end; ++i) {
      at_layer_ = i;
      in_layer_ = true;
      const PipelineLayer& layer = layers[i];
      const auto forward = [&layer](const Tensor& input) {
        return layer.forward ? layer.forward(input) : (*layer.modules.front())(input);
      };
      x = options.recompute && x.is_floating_point() ? nn::recompute(*parameters_of_[i], x, forward) : forward(x);
      LOCKSTEP_CHECK(x.defined(), "it returned an undefined tensor");
    }
  });
  in_layer_ = false;
  return x;
}

std::vector<int> PipelineParallel::State::chunks_tied_to() const {
  std::vector<int> to(chunks.size(), -1);
  for (const Tied& each : tied)
    for (std::size_t i = 0; i + 1 < each.chunks.size(); ++i) {
      int& latest = to[static_cast<std::size_t>(each.chunks[i])];
      latest = std::max(latest, each.chunks[i + 1]);
    }
  return to;
}

const std::vector<std::vector<PipelineAction>>& PipelineParallel::State::lists(std::int64_t micro_batches,
                                                                               bool by_shard) {
  std::vector<std::vector<PipelineAction>>& lists = lists_[{micro_batches, by_shard}];
  if (lists.empty())
    for (int stage = 0; stage < stages(); ++stage)
      lists.push_back(pipeline_actions(options.schedule, micro_batches, stages(), options.chunks, stage,
                                       by_shard ? chunks_tied_to() : std::vector<int>()));
  return lists;
}

bool PipelineParallel::State::tied_travels(int from, int to, std::int64_t micro_batch, std::int64_t micro_batches,
                                           bool by_shard) const {
  return by_shard || (stage_of(from) != stage_of(to) && micro_batch + 1 == micro_batches);
}

std::vector<std::deque<StageKey>> PipelineParallel::State::incoming(std::int64_t micro_batches, bool by_shard) {
  std::vector<std::deque<StageKey>> from(static_cast<std::size_t>(stages()));
  const int me = group->rank();
  for (int sender = 0; sender < stages(); ++sender) {
    if (sender == me) continue;
    auto& messages = from[static_cast<std::size_t>(sender)];
    for (const PipelineAction& action : lists(micro_batches, by_shard)[static_cast<std::size_t>(sender)]) {
      const std::int64_t m = action.micro_batch;
      if (action.pass == PipelineAction::Pass::forward) {
        if (action.chunk < last_chunk() && is_mine(action.chunk + 1))
          messages.push_back({StageKey::Kind::activation, m, action.chunk + 1, 0});
        continue;
      }
      if (action.pass != PipelineAction::Pass::weights && action.chunk > 0 && is_mine(action.chunk - 1))
        messages.push_back({StageKey::Kind::gradient, m, action.chunk - 1, 0});
      if (action.pass == PipelineAction::Pass::input) continue;
      for (std::size_t t = 0; t < tied.size(); ++t) {
        const std::vector<int>& users = tied[t].chunks;
        const auto here = std::ranges::find(users, action.chunk);
        if (here == users.begin() || here == users.end()) continue;
        const int before = *(here - 1);
        if (is_mine(before) && tied_travels(action.chunk, before, m, micro_batches, by_shard))
          messages.push_back({StageKey::Kind::tied, m, before, static_cast<int>(t)});
      }
    }
    for (std::size_t t = 0; t < tied.size(); ++t) {
      const std::vector<int>& users = tied[t].chunks;
      const bool uses = std::ranges::any_of(users, [&](int chunk) { return is_mine(chunk); });
      if (uses && stage_of(users.front()) == sender)
        messages.push_back({StageKey::Kind::result, 0, 0, static_cast<int>(t)});
    }
  }
  return from;
}

}  // namespace lockstep::distributed
