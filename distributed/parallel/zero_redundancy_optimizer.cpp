#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "lockstep/distributed/process_group/disagreement.h"

namespace lockstep::distributed {
namespace {

constexpr const char* kName = "ZeroRedundancyOptimizer";
constexpr std::int64_t kChunks = 16, kSmallestChunk = std::int64_t{1} << 14;  // elements
constexpr const char* kGroups = optim::OptimizerState::kGroups;

Tensor groups_of(const optim::Optimizer& optimizer) {
  const std::vector<std::size_t>& groups = optimizer.group_of_parameters();
  return tensor(std::vector<std::int64_t>(groups.begin(), groups.end()));
}

void check_same_sizes(const std::vector<Tensor>& parameters, ProcessGroup& group) {
  std::int64_t elements = 0;
  for (const Tensor& parameter : parameters) elements += parameter.numel();
  if (const auto found =
          find_disagreement(fmt::format("{} parameters with {} elements", parameters.size(), elements), group))
    throw Error(fmt::format("[{}] rank {} has {}, rank 0 {}; pass the same on every rank", kName, found->other,
                            found->of_other, found->of_rank0));
}

}  // namespace

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(std::unique_ptr<optim::Optimizer> whole, ProcessGroupPtr group,
                                                 std::size_t chunk_bytes)
    : group_(std::move(group)), local_(std::move(whole)) {
  set_up(chunk_bytes);
}

void ZeroRedundancyOptimizer::set_up(std::size_t chunk_bytes) {
  LOCKSTEP_CHECK(local_, "[{}] the optimizer to divide is null", kName);
  LOCKSTEP_CHECK(group_, "[{}] the process group is null", kName);
  LOCKSTEP_CHECK(local_->is_elementwise(),
                 "[{}] {} takes norms or products of whole parameters, of which a rank would have a part; expected an "
                 "optimizer that updates each element by itself, such as AdamW, or use {} undivided, with zero = 0",
                 kName, local_->name(), local_->name());
  take_groups_of(*local_);
  check_same_sizes(parameters(), *group_);
  if (division_)
    divide_by_flats();
  else
    divide(chunk_bytes);
  std::vector<std::size_t> group_of;
  for (const Piece& piece : own_) {
    shares_.push_back(elements_of(parameters()[piece.parameter], piece.begin, piece.size));
    group_of.push_back(group_of_parameters()[piece.parameter]);
  }
  if (shares_.empty()) {
    shares_.push_back(empty({0}, options_of(parameters().front())));
    group_of.push_back(0);
  }
  local_->replace_parameters(shares_, group_of);
}

void ZeroRedundancyOptimizer::divide(std::size_t chunk_bytes) {
  for (std::size_t i = 0; i < parameters().size(); ++i) {
    const Tensor& p = parameters()[i];
    LOCKSTEP_CHECK(p.is_contiguous(), "[{}] parameter {} of shape {} is not contiguous", kName, i,
                   to_string(p.sizes()));
    Group* own = nullptr;
    for (Group& each : groups_)
      if (each.dtype == p.dtype() && each.device == p.device()) own = &each;
    if (!own) own = &groups_.emplace_back(Group{p.dtype(), p.device(), {}, {0}, {}, 0});
    own->members.push_back(i);
    own->offsets.push_back(own->offsets.back() + p.numel());
  }
  const std::int64_t world = group_->world_size();
  for (Group& each : groups_) {
    // A small part of a small model: what is gathered at once counts beside what a rank keeps.
    const auto most = std::max<std::int64_t>(1, static_cast<std::int64_t>(chunk_bytes / element_size(each.dtype)));
    const std::int64_t limit = std::min(most, std::max(kSmallestChunk, each.offsets.back() / kChunks));
    for (std::int64_t begin = 0; begin < each.offsets.back(); begin += limit) {
      const std::int64_t size = std::min(limit, each.offsets.back() - begin);
      each.chunks.push_back({begin, size, (size + world - 1) / world});
      const auto [first, last] = own_range(each.chunks.back());
      const std::vector<Piece> mine = pieces_in(each, first, last);
      own_.insert(own_.end(), mine.begin(), mine.end());
    }
  }
}

std::pair<std::int64_t, std::int64_t> ZeroRedundancyOptimizer::own_range(const Chunk& chunk) const {
  const std::int64_t end = chunk.begin + chunk.size;
  const std::int64_t first = std::min(chunk.begin + group_->rank() * chunk.block, end);
  return {first, std::min(first + chunk.block, end)};
}

std::vector<ZeroRedundancyOptimizer::Piece> ZeroRedundancyOptimizer::pieces_in(const Group& group, std::int64_t begin,
                                                                               std::int64_t end) {
  std::vector<Piece> pieces;
  const auto after = std::upper_bound(group.offsets.begin(), group.offsets.end(), begin);
  for (auto m = static_cast<std::size_t>(after - group.offsets.begin()) - 1;
       m < group.members.size() && group.offsets[m] < end; ++m) {
    const std::int64_t from = std::max(begin, group.offsets[m]);
    const std::int64_t to = std::min(end, group.offsets[m + 1]);
    if (from < to && group.members[m] != kNone)
      pieces.push_back({group.members[m], from - group.offsets[m], to - from, from, group.flat});
  }
  return pieces;
}

// Lets the shares be the memory of parameters and gradients, wherever these are now.
void ZeroRedundancyOptimizer::lend() {
  for (const Group& each : groups_)
    for (const std::size_t i : each.members) {
      if (i == kNone) continue;
      const Tensor& p = parameters()[i];
      LOCKSTEP_CHECK(p.dtype() == each.dtype && p.device() == each.device && p.is_contiguous(),
                     "[{}] parameter {} was {} on {} when the optimizer was made and is {} on {} now; move or cast the "
                     "model first, then construct the optimizer",
                     kName, i, lockstep::name(each.dtype), to_string(each.device), lockstep::name(p.dtype()),
                     to_string(p.device()));
    }
  if (division_) return lend_flats();
  for (std::size_t k = 0; k < own_.size(); ++k) {
    const Piece& piece = own_[k];
    const Tensor& p = parameters()[piece.parameter];
    nn::replace_value(shares_[k], elements_of(p, piece.begin, piece.size));
    const Tensor grad = p.grad();
    shares_[k].set_grad(grad.defined() ? elements_of(as_contiguous(grad), piece.begin, piece.size) : Tensor());
  }
}

void ZeroRedundancyOptimizer::prepare_step() {
  const NoGradGuard no_grad;
  lend();
  local_->prepare_step();
  for (const Tensor& share : shares_) share.set_grad({});
}

void ZeroRedundancyOptimizer::step() {
  const NoGradGuard no_grad;
  whole_.reset();
  lend();
  local_->step();
  for (const Tensor& share : shares_) share.set_grad({});
  if (division_) {
    division_->clear_gradients_of(parameters(), /*set_to_none=*/true);  // another optimizer may have others
    ++division_->updates;
  }
  if (division_ && division_->values_too) {
    if (const auto shards = division_->shards.lock()) shards->on_update();
    return;
  }
  if (group_->world_size() == 1) return;
  static const OperationLabel label("parameters after a sharded optimizer's step");
  const LabelScope scope(label);
  for (const Group& each : groups_) gather(each);
}

// Every rank's new values to all ranks.
void ZeroRedundancyOptimizer::gather(const Group& group) {
  for (const Chunk& chunk : group.chunks) {
    const TensorOptions options{.dtype = group.dtype, .device = group.device};
    const Tensor mine = zeros({chunk.block}, options);
    const auto [first, last] = own_range(chunk);
    for (const Piece& piece : pieces_in(group, first, last))
      copy_values(elements_of(parameters()[piece.parameter], piece.begin, piece.size),
                  elements_of(mine, piece.at - first, piece.size));
    const Tensor all = empty({chunk.block * group_->world_size()}, options);
    group_->all_gather(all, mine)->wait();
    const std::int64_t end = chunk.begin + chunk.size;
    for (const auto& [begin, stop] : {std::pair{chunk.begin, first}, std::pair{last, end}})
      for (const Piece& piece : pieces_in(group, begin, stop)) {
        const Tensor& p = parameters()[piece.parameter];
        copy_values(elements_of(all, piece.at - chunk.begin, piece.size), elements_of(p, piece.begin, piece.size));
        p.storage()->bump_version();
      }
  }
}

// Whether the optimizer has a state tensor of this name for a parameter.
bool ZeroRedundancyOptimizer::keeps(std::size_t parameter, const std::string& state) const {
  const std::vector<std::string> names = local_->state_names(group_of_parameters()[parameter]);
  return std::find(names.begin(), names.end(), state) != names.end();
}

// Of the state of any of its parameters, the same on every rank.
std::vector<std::string> ZeroRedundancyOptimizer::names_in(const Group& group) const {
  std::vector<std::string> names;
  for (const std::size_t i : group.members)
    if (i != kNone)
      for (std::string& name : local_->state_names(group_of_parameters()[i]))
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  return names;
}

// By parameter, on the CPU.
Tensor ZeroRedundancyOptimizer::steps_of_all(const optim::OptimizerState& local) const {
  std::vector<std::int64_t> steps(parameters().size(), 0), own;
  for (const nn::NamedTensor& each : local.tensors)
    if (each.name == "steps") own = each.tensor.to_vector<std::int64_t>();
  for (std::size_t k = 0; k < own_.size(); ++k) steps[own_[k].parameter] = own[k];
  const Tensor all = tensor(steps, parameters().front().device());
  group_->all_reduce(all, ReduceOp::max)->wait();
  return move_values(all, Device(kCPU));
}

optim::OptimizerState ZeroRedundancyOptimizer::outline() const {
  const NoGradGuard no_grad;
  const optim::OptimizerState local = local_->state();
  optim::OptimizerState whole;
  whole.type = name();
  whole.parameters = parameters();
  whole.tensors.push_back({"steps", steps_of_all(local)});
  if (num_param_groups() > 1) whole.tensors.push_back({kGroups, groups_of(*this)});
  for (const Group& each : groups_)
    for (const std::size_t i : each.members) {
      if (i == kNone) continue;
      const Shape& sizes = parameters()[i].sizes();
      for (const std::string& name : local_->state_names(group_of_parameters()[i]))
        whole.tensors.push_back(
            {fmt::format("{}.{}", name, i),
             zeros({1}, {.dtype = state_dtype(each.dtype)}).as_strided(sizes, Shape::filled(sizes.dim(), 0), 0)});
    }
  add_left_out(whole, [](const Shape& sizes, const TensorOptions& options) {
    return zeros({1}, options).as_strided(sizes, Shape::filled(sizes.dim(), 0), 0);
  });
  whole.scalars = local.scalars;
  return whole;
}

// What an undivided optimizer keeps of parameters that the division does not have, being frozen: nothing but zeros.
void ZeroRedundancyOptimizer::add_left_out(
    optim::OptimizerState& whole,
    const std::function<Tensor(const Shape& sizes, const TensorOptions& options)>& make) const {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i] != kNone) continue;
    const Tensor& parameter = parameters()[i];
    for (const std::string& name : local_->state_names(group_of_parameters()[i]))
      whole.tensors.push_back(
          {fmt::format("{}.{}", name, i),
           make(parameter.sizes(), {.dtype = state_dtype(parameter.dtype()), .device = parameter.device()})});
  }
}

void ZeroRedundancyOptimizer::visit_state(
    const std::function<void(const std::string& name, std::int64_t begin, const Tensor& values)>& take) const {
  std::map<std::string, Tensor> local;
  for (const nn::NamedTensor& each : local_->state().tensors) local.emplace(each.name, each.tensor);
  for (std::size_t k = 0; k < own_.size(); ++k)
    for (const std::string& name : local_->state_names(group_of_parameters()[own_[k].parameter]))
      take(fmt::format("{}.{}", name, own_[k].parameter), own_[k].begin, local.at(fmt::format("{}.{}", name, k)));
}

void ZeroRedundancyOptimizer::consolidate() {
  const NoGradGuard no_grad;
  static const OperationLabel label("state of a sharded optimizer");
  const LabelScope scope(label);
  std::map<std::string, Tensor> local;
  for (const nn::NamedTensor& each : local_->state().tensors) local.emplace(each.name, each.tensor);

  const Tensor all_steps = steps_of_all(local_->state());
  const bool root = group_->rank() == 0;
  optim::OptimizerState whole;
  whole.type = name();
  whole.parameters = parameters();
  whole.tensors.push_back({"steps", all_steps});
  if (num_param_groups() > 1) whole.tensors.push_back({kGroups, groups_of(*this)});
  std::size_t first_own = 0;  // own_ is in the order of groups and chunks
  for (const Group& each : groups_) {
    const TensorOptions options{.dtype = state_dtype(each.dtype), .device = each.device};
    for (const std::string& name : names_in(each)) {
      std::map<std::size_t, Tensor> whole_of;  // by parameter
      if (root)
        for (const std::size_t i : each.members)
          if (i != kNone && keeps(i, name)) {
            whole_of.emplace(i, empty(parameters()[i].sizes(), options));
            whole.tensors.push_back({fmt::format("{}.{}", name, i), whole_of.at(i)});
          }
      std::size_t next_own = first_own;
      for (const Chunk& chunk : each.chunks) {
        const Tensor mine = zeros({chunk.block}, options);
        const auto [first, last] = own_range(chunk);
        for (const Piece& piece : pieces_in(each, first, last)) {
          const std::string key = fmt::format("{}.{}", name, next_own++);
          if (keeps(piece.parameter, name)) copy_values(local.at(key), elements_of(mine, piece.at - first, piece.size));
        }
        const Tensor all = root ? empty({chunk.block * group_->world_size()}, options) : Tensor();
        group_->gather(all, mine, 0)->wait();
        if (!root) continue;
        for (const Piece& piece : pieces_in(each, chunk.begin, chunk.begin + chunk.size))
          if (const auto found = whole_of.find(piece.parameter); found != whole_of.end())
            copy_values(elements_of(all, piece.at - chunk.begin, piece.size),
                        elements_of(found->second, piece.begin, piece.size));
      }
    }
    for (const Chunk& chunk : each.chunks) {
      const auto [first, last] = own_range(chunk);
      first_own += pieces_in(each, first, last).size();
    }
  }
  if (!root) return;
  add_left_out(whole, [](const Shape& sizes, const TensorOptions& options) { return zeros(sizes, options); });
  std::vector<std::string> order;  // an undivided optimizer's: by dtype, name and number
  for (const Group& each : groups_)
    for (const std::string& name : names_in(each))
      if (std::ranges::find(order, name) == order.end()) order.push_back(name);
  const auto place = [&](const nn::NamedTensor& each) {
    const std::size_t dot = each.name.rfind('.');
    if (dot == std::string::npos) return std::tuple(-1, std::ptrdiff_t{0}, 0UL);
    const std::size_t parameter = std::stoul(each.name.substr(dot + 1));
    return std::tuple(static_cast<int>(parameters()[parameter].dtype()),
                      std::ranges::find(order, each.name.substr(0, dot)) - order.begin(), parameter);
  };
  if (division_) std::ranges::stable_sort(whole.tensors, {}, place);
  whole_ = std::move(whole);
}

optim::OptimizerState ZeroRedundancyOptimizer::state() const {
  LOCKSTEP_CHECK(whole_,
                 "[{}] the state is spread over {} ranks; call consolidate() on all of them after the last step, then "
                 "state() on rank 0 (this is rank {})",
                 kName, group_->world_size(), group_->rank());
  optim::OptimizerState state = *whole_;
  state.scalars = local_->state().scalars;
  return state;
}

std::function<void()> ZeroRedundancyOptimizer::prepare_load(const optim::OptimizerStateReader& state) {
  const NoGradGuard no_grad;
  LOCKSTEP_CHECK(state.type == name(), "[{}] the state to load is that of {}; construct the same optimizer", name(),
                 state.type.empty() ? "no optimizer" : state.type);
  const auto& given = state.tensors;
  std::map<std::string, optim::OptimizerStateReader::Entry> expected;
  expected["steps"] = {Shape({static_cast<std::int64_t>(parameters().size())}), kInt64};
  if (num_param_groups() > 1) expected[kGroups] = expected["steps"];
  for (std::size_t i = 0; i < parameters().size(); ++i)
    for (const std::string& name : local_->state_names(group_of_parameters()[i]))
      expected[fmt::format("{}.{}", name, i)] = {parameters()[i].sizes(), state_dtype(parameters()[i].dtype())};
  std::string problems;
  const auto complain = [&](const std::string& text) { problems += (problems.empty() ? "" : "; ") + text; };
  for (const auto& [key, what] : expected) {
    const auto found = given.find(key);
    if (found == given.end())
      complain("missing " + key);
    else if (found->second.sizes != what.sizes || found->second.dtype != what.dtype)
      complain(fmt::format("{} is {} {}, expected {} {}", key, lockstep::name(found->second.dtype),
                           to_string(found->second.sizes), lockstep::name(what.dtype), to_string(what.sizes)));
  }
  for (const auto& [key, value] : given)
    if (!expected.contains(key)) complain("unexpected " + key);
  if (problems.empty() && num_param_groups() > 1 &&
      state.read_all(kGroups).to_vector<std::int64_t>() != groups_of(*this).to_vector<std::int64_t>())
    complain("its parameters are in other groups than this optimizer's");
  LOCKSTEP_CHECK(problems.empty(), "[{}] the state to load does not fit: {}", name(), problems);

  optim::OptimizerState share = local_->state();
  const std::vector<std::int64_t> steps = state.read_all("steps").to_vector<std::int64_t>();
  for (nn::NamedTensor& each : share.tensors) {
    if (each.name == kGroups) continue;  // those of the pieces
    const std::size_t dot = each.name.rfind('.');
    if (dot == std::string::npos) {
      std::vector<std::int64_t> own(shares_.size(), 0);
      for (std::size_t k = 0; k < own_.size(); ++k) own[k] = steps[own_[k].parameter];
      each.tensor = tensor(own);
      continue;
    }
    if (own_.empty()) continue;
    const Piece& piece = own_[std::stoul(each.name.substr(dot + 1))];
    each.tensor = state.read(fmt::format("{}.{}", each.name.substr(0, dot), piece.parameter), piece.begin, piece.size);
  }
  share.scalars = state.scalars;
  return [this, load = local_->prepare_load(optim::reader_of(share))] {
    load();
    whole_.reset();
  };
}

}  // namespace lockstep::distributed
