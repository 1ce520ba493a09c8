#include "lockstep/distributed/pipeline_parallel/mesh_model.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/parallel/rank0_file.h"
#include "lockstep/distributed/parallel/sharding/checkpoint_by_shares.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"

namespace lockstep::distributed {
namespace {

std::map<std::string, Tensor> by_name(const std::vector<nn::NamedTensor>& tensors) {
  std::map<std::string, Tensor> found;
  for (const nn::NamedTensor& each : tensors) found.emplace(each.name, each.tensor);
  return found;
}

/// The place of a parameter in an optimizer; -1: it has none.
std::int64_t place_in(const optim::Optimizer& optimizer, const Tensor& parameter) {
  const auto& all = optimizer.parameters();
  const auto found = std::ranges::find_if(all, [&](const Tensor& each) { return each.is_same(parameter); });
  return found == all.end() ? -1 : found - all.begin();
}

}  // namespace

MeshModel::MeshModel(nn::Module& module, const Mesh& mesh, const PipelineParallel* pipeline,
                     const TensorParallel* divided, ModuleFactory make_module, OptimizerFactory make_optimizer)
    : module_(module),
      mesh_(mesh),
      pipeline_(pipeline),
      divided_(divided),
      make_module_(std::move(make_module)),
      make_optimizer_(std::move(make_optimizer)) {
  const Whole whole = make_whole();
  LOCKSTEP_CHECK(whole.optimizer->is_elementwise(),
                 "[MeshModel] {} takes norms or products of whole parameters, which a mesh may divide; expected an "
                 "optimizer that updates each element by itself, such as AdamW",
                 whole.optimizer->name());
  for (std::size_t group = 0; group < whole.optimizer->num_param_groups(); ++group)
    for (std::string& name : whole.optimizer->state_names(group))
      if (std::ranges::find(state_names_, name) == state_names_.end()) state_names_.push_back(std::move(name));
}

std::unique_ptr<optim::Optimizer> MeshModel::make_optimizer() const {
  auto optimizer = make_optimizer_(pipeline_ ? pipeline_->parameters() : module_.parameters());
  if (pipeline_ || mesh_.sizes().tensor > 1)
    optimizer->set_agreement([mesh = &mesh_](bool finite) { return mesh->all(finite); });
  return optimizer;
}

std::vector<nn::NamedTensor> MeshModel::own_parameters() const {
  return pipeline_ ? pipeline_->named_parameters() : module_.named_parameters();
}

void MeshModel::gather(const std::function<Tensor(const Tensor& own)>& value_of,
                       const std::function<void(const std::string& name, const Tensor& value)>& take) const {
  if (pipeline_) return pipeline_->gather(value_of, take);
  const NoGradGuard values_only;
  for (const nn::NamedTensor& each : module_.state()) {
    const Tensor value = value_of(each.tensor);
    take(each.name, value.defined() ? copy_contiguous(value.detach()) : value);
  }
}

double MeshModel::clip_grad_norm(double max_norm, optim::Optimizer& optimizer) const {
  if (pipeline_) return pipeline_->clip_grad_norm(max_norm, divided_, &optimizer);
  if (divided_) return divided_->clip_grad_norm(max_norm, &optimizer);
  return optimizer.clip_grad_norm_(max_norm);
}

MeshModel::Whole MeshModel::make_whole() const {
  const RandomPositionGuard random(random_position());
  Whole whole;
  whole.module = make_module_();
  LOCKSTEP_CHECK(whole.module, "[MeshModel] the factory returned null");
  whole.module->to(module_.device());
  whole.optimizer = make_optimizer_(whole.module->parameters());
  return whole;
}

std::unique_ptr<nn::Module> MeshModel::whole(bool gradients) const {
  const WholeParameters values(module_);
  if (!saves()) return nullptr;
  Whole whole;
  if (is_root()) whole = make_whole();
  gather_values(whole, gradients);
  return std::move(whole.module);
}

void MeshModel::gather_values(const Whole& whole, bool gradients) const {
  const NoGradGuard values_only;
  std::map<std::string, Tensor> targets;
  if (is_root()) targets = by_name(whole.module->state());
  gather([&](const Tensor& own) { return divided_ ? divided_->whole_of(own, own) : own; },
         [&](const std::string& name, const Tensor& value) {
           if (is_root()) copy_values(value, targets.at(name).detach());
         });
  if (!gradients) return;
  gather([&](const Tensor& own) { return divided_ ? divided_->whole_of(own, own.grad()) : own.grad(); },
         [&](const std::string& name, const Tensor& value) {
           if (is_root()) targets.at(name).set_grad(value);
         });
}

void MeshModel::gather_state(const optim::Optimizer& own, const Whole& whole) const {
  const NoGradGuard values_only;
  const std::map<std::string, Tensor> local = by_name(own.state().tensors);
  const std::vector<std::int64_t> local_steps = local.at("steps").to_vector<std::int64_t>();
  optim::OptimizerState all;
  std::map<std::string, Tensor> parameters;
  std::vector<std::int64_t> steps;
  if (is_root()) {
    all = whole.optimizer->state();
    parameters = by_name(whole.module->named_parameters());
    steps.assign(whole.optimizer->parameters().size(), 0);
  }
  // Rank 0's place of the parameter, -1 for a buffer.
  const auto place_of = [&](const std::string& name) {
    const auto found = parameters.find(name);
    return found == parameters.end() ? -1 : place_in(*whole.optimizer, found->second);
  };
  gather(
      [&](const Tensor& parameter) {
        const std::int64_t k = place_in(own, parameter);
        return k < 0 ? Tensor() : tensor(std::vector{local_steps[static_cast<std::size_t>(k)]});
      },
      [&](const std::string& name, const Tensor& value) {
        if (!is_root() || !value.defined()) return;
        if (const std::int64_t k = place_of(name); k >= 0)
          steps[static_cast<std::size_t>(k)] = value.item<std::int64_t>();
      });
  for (const std::string& state : state_names_)
    gather(
        [&](const Tensor& parameter) {
          const auto found = local.find(fmt::format("{}.{}", state, place_in(own, parameter)));
          if (found == local.end()) return Tensor();
          return divided_ ? divided_->whole_of(parameter, found->second) : found->second;
        },
        [&](const std::string& name, const Tensor& value) {
          if (!is_root() || !value.defined()) return;
          const std::string key = fmt::format("{}.{}", state, place_of(name));
          for (nn::NamedTensor& each : all.tensors)
            if (each.name == key) each.tensor = value;
        });
  if (!is_root()) return;
  for (nn::NamedTensor& each : all.tensors)
    if (each.name == "steps") each.tensor = tensor(steps);
  all.scalars = own.state().scalars;
  whole.optimizer->load_state(all);
}

void MeshModel::save_checkpoint(const std::string& path, optim::Optimizer& optimizer, const nn::TrainingState& state,
                                AsyncCheckpoint* background) const {
  if (background) {
    const ProcessGroup &own = background->group(), &world = *mesh_.world();
    LOCKSTEP_CHECK(
        own.world_size() == world.world_size() && own.rank() == world.rank(),
        "[MeshModel] the checkpoint in the background is of a group in which this is rank {} of {}, expected "
        "one of all ranks of the mesh, where it is rank {} of {}",
        own.rank(), own.world_size(), world.rank(), world.world_size());
    background->wait();
  }
  const WholeParameters values(module_);
  if (auto* const sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) sharded->consolidate();
  Whole root;
  if (is_root()) root = make_whole();
  if (saves()) {
    gather_values(root, /*gradients=*/false);
    gather_state(optimizer, root);
  }
  if (!background)
    return on_rank0(*mesh_.world(), [&] { nn::save_checkpoint(path, *root.module, *root.optimizer, state); });
  // What was gathered is nobody else's, what the caller adds is his.
  background->save_content(
      path, state.step,
      [&] {
        nn::TrainingState kept = state;
        for (nn::NamedTensor& each : kept.tensors)
          if (each.tensor.defined()) each.tensor = copy_on_cpu(each.tensor);
        return nn::detail::checkpoint_content(*root.module, {root.optimizer->state()}, kept, {});
      },
      /*copies=*/false);
}

nn::TrainingState MeshModel::load_checkpoint(const std::string& path, optim::Optimizer& optimizer) const {
  const NoGradGuard values_only;
  const WholeParameters held(module_);
  const Whole whole = make_whole();
  nn::TrainingState state = nn::load_checkpoint(path, *whole.module, *whole.optimizer);
  module_.resume_at(state.step);
  const auto part_of = [&](const Tensor& own, const Tensor& value) {
    return divided_ ? divided_->part_of(own, value) : value;
  };
  const std::map<std::string, Tensor> values = by_name(whole.module->state());
  const std::map<std::string, Tensor> saved = by_name(whole.optimizer->state().tensors);
  const std::vector<std::int64_t> saved_steps = saved.at("steps").to_vector<std::int64_t>();
  // What is divided further takes its share of this.
  optim::OptimizerState own = make_optimizer()->state();
  std::vector<std::int64_t> steps(optimizer.parameters().size(), 0);
  const std::vector<nn::NamedTensor> mine = own_parameters();
  for (const auto& [name, parameter] : mine) {
    const Tensor& value = values.at(name);
    copy_values(part_of(parameter, value), parameter.detach());
    parameter.storage()->bump_version();
    const std::int64_t here = place_in(optimizer, parameter), there = place_in(*whole.optimizer, value);
    if (here < 0 || there < 0) continue;
    steps[static_cast<std::size_t>(here)] = saved_steps[static_cast<std::size_t>(there)];
    for (const std::string& each : state_names_) {
      const auto found = saved.find(fmt::format("{}.{}", each, there));
      if (found == saved.end()) continue;
      const std::string key = fmt::format("{}.{}", each, here);
      for (nn::NamedTensor& target : own.tensors)
        if (target.name == key) target.tensor = part_of(parameter, found->second);
    }
  }
  for (const auto& [name, buffer] : module_.named_buffers()) {
    copy_values(values.at(name), buffer);
    buffer.storage()->bump_version();
  }
  for (nn::NamedTensor& each : own.tensors)
    if (each.name == "steps") each.tensor = tensor(steps);
  own.scalars = whole.optimizer->state().scalars;
  optimizer.load_state(own);
  return state;
}

std::pair<std::string, std::string> MeshModel::sha256() const {
  const std::unique_ptr<nn::Module> module = whole();
  std::string hashes;
  if (is_root()) hashes = nn::weights_sha256(*module) + nn::state_sha256(*module);
  hashes = mesh_.world()->broadcast_object(hashes);
  return {hashes.substr(0, hashes.size() / 2), hashes.substr(hashes.size() / 2)};
}

}  // namespace lockstep::distributed
