#include "lockstep/distributed/parallel/sharding/parameter_shards.h"

#include <algorithm>
#include <utility>

#include "lockstep/autograd/accumulate_grad.h"
#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/computation.h"
#include "lockstep/core/copy.h"
#include "lockstep/distributed/parallel/step.h"

namespace lockstep::distributed {
/// The values of a unit's parameters, which are elsewhere.
class AbsentValues final : public Computation {
 public:
  AbsentValues(std::weak_ptr<ParameterShards> owner, std::size_t unit, std::string name)
      : Computation({}), owner_(std::move(owner)), unit_(unit), name_(std::move(name)) {}
  bool is_elsewhere() const override { return true; }

 protected:
  void compute() override {
    const std::shared_ptr<ParameterShards> owner = owner_.lock();
    LOCKSTEP_CHECK(owner,
                   "[TrainingStep] the values of '{}' were divided over ranks by a step that is gone; hold its "
                   "whole_parameters() on all ranks while it ends, or make the model anew and load a checkpoint",
                   name_);
    const std::vector<Tensor> values = owner->values_of(unit_);
    for (std::size_t i = 0; i < values.size(); ++i) deliver(i, values[i]);
  }

 private:
  std::weak_ptr<ParameterShards> owner_;
  std::size_t unit_;
  std::string name_;
};

std::shared_ptr<ParameterShards> ParameterShards::make(nn::Module& module, std::shared_ptr<Division> division,
                                                       ProcessGroup& group) {
  std::shared_ptr<ParameterShards> made(new ParameterShards(module, std::move(division), group));
  const NoGradGuard no_grad;
  made->whole_ = 1;  // the parameters have their values now
  for (State& state : made->states_) state.whole = true;
  // One block of memory of each kind, of which the allocator's rounding counts once.
  std::vector<Flat>& flats = made->division_->flats;
  for (Flat& first : flats) {
    if (first.shard.defined()) continue;
    const auto is_like = [&](const Flat& flat) {
      return flat.options.dtype == first.options.dtype && flat.options.device == first.options.device;
    };
    std::int64_t elements = 0;
    for (const Flat& flat : flats) elements += is_like(flat) ? flat.block : 0;
    const Tensor memory = zeros({elements}, first.options);
    std::int64_t at = 0;
    for (Flat& flat : flats)
      if (is_like(flat)) flat.shard = elements_of(memory, std::exchange(at, at + flat.block), flat.block);
  }
  made->divide();
  made->division_->shards = made;
  for (std::size_t u = 0; u < made->states_.size(); ++u) {
    nn::Module* const unit = made->division_->units[u].module;
    if (!unit) continue;
    for (nn::Module* each : unit->modules())
      each->set_call_hook([u, weak = std::weak_ptr(made)] {
        if (const auto shards = weak.lock()) shards->on_call(u);
      });
  }
  return made;
}

ParameterShards::ParameterShards(nn::Module& module, std::shared_ptr<Division> division, ProcessGroup& group)
    : model_(module.type_name()), division_(std::move(division)), group_(group.split(0, group.rank())) {
  if (const int within = division_->within; within < group.world_size()) {
    near_ = group.split(group.rank() / within, group.rank());
    far_ = group.split(group.rank() % within, group.rank());
    blocks_far_.resize(division_->flats.size());
  }
  states_.resize(division_->units.size());
  for (std::size_t u = 0; u < states_.size(); ++u) {
    const Unit& unit = division_->units[u];
    states_[u].label = OperationLabel(unit.name.empty() ? "parameters outside of the units that are named"
                                                        : "parameters of " + unit.name);
    if (u > 0 && !division_->of_part) lists_[0].push_back(u);
  }
  if (!lists_[0].empty()) lists_[1].assign(lists_[0].rbegin() + 1, lists_[0].rend());  // the last is there already
  if (division_->of_part) return;
  hooks_.resize(division_->trained);
  for (std::size_t u = 0; u < states_.size(); ++u)
    for (const std::size_t f : division_->units[u].flats) {
      if (f >= division_->trained_flats) {
        states_[u].frozen = true;
        continue;
      }
      for (const std::size_t p : division_->flats[f].members) {
        ++states_[u].members;
        hooks_[p] =
            detail::register_own_hook(division_->parameters[p].tensor, [this, u](const Tensor&) { on_gradient(u); });
      }
    }
  for (State& state : states_) state.missing = state.members;
}

ParameterShards::~ParameterShards() {
  for (std::size_t p = 0; p < hooks_.size(); ++p) division_->parameters[p].tensor.remove_hook(hooks_[p]);
}

std::shared_ptr<ParameterShards> ParameterShards::of(const nn::Module& module) {
  const std::shared_ptr<Division> division = Division::of(module);
  if (!division) return nullptr;
  for (const Tensor& parameter : module.parameters())
    if (parameter.numel() > 0 && !division->has(parameter)) return nullptr;
  return division->shards.lock();
}

const std::string& ParameterShards::name_of(std::size_t unit) const {
  const std::string& name = division_->units[unit].name;
  return name.empty() ? model_ : name;
}

// --- one unit
// ---------------------------------------------------------------------------------------------------------

void ParameterShards::start(std::size_t unit) {
  if (in_pass() && unit > 0) {
    made_[is_backward()].push_back(unit);
    if (leads()) agree_on(static_cast<std::int64_t>(unit));
  }
  const bool near = near_ && whole_ == 0;
  if (near) exchange_blocks();  // what an optimizer has changed since the forward that lets the user read
  State& state = states_[unit];
  const LabelScope label(state.label);
  for (const std::size_t f : division_->units[unit].flats) {
    const Flat& flat = division_->flats[f];
    const Tensor own = near               ? blocks_far_[f]
                       : is_rounded(flat) ? cast_values(flat.shard, division_->gather_dtype)
                                          : flat.shard;
    ProcessGroup& ranks = near ? *near_ : *group_;
    if (ranks.world_size() == 1) {
      state.gathered.push_back(own);
      continue;
    }
    state.gathered.push_back(empty({own.numel() * ranks.world_size()}, options_of(own)));
    if (flat.block > 0) state.works.push_back(ranks.all_gather(state.gathered.back(), own));
  }
}

bool ParameterShards::is_rounded(const Flat& flat) const {
  return whole_ == 0 && flat.options.dtype == kFloat32 && division_->gather_dtype != kFloat32;
}

void ParameterShards::exchange_blocks() {
  if (!far_ || whole_ > 0 || !std::exchange(blocks_changed_, false)) return;
  static const OperationLabel label("blocks of parameters for the other groups of ranks that gather together");
  const LabelScope scope(label);
  std::vector<Tensor> own;  // until they have travelled
  std::vector<WorkPtr> works;
  for (std::size_t f = 0; f < blocks_far_.size(); ++f) {
    const Flat& flat = division_->flats[f];
    own.push_back(is_rounded(flat) ? cast_values(flat.shard, division_->gather_dtype) : flat.shard);
    if (!blocks_far_[f].defined()) blocks_far_[f] = empty({flat.block * far_->world_size()}, options_of(own.back()));
    if (flat.block > 0) works.push_back(far_->all_gather(blocks_far_[f], own.back()));
  }
  for (const WorkPtr& work : works) work->wait();
}

// Near ranks have given theirs one after the other, each the blocks of all ranks with its place.
Tensor ParameterShards::in_order_of_ranks(const Tensor& gathered, const Flat& flat) const {
  if (!near_ || whole_ > 0 || near_->world_size() == 1) return gathered;
  const std::int64_t near = near_->world_size(), far = far_->world_size();
  return copy_contiguous(
      gathered.as_strided({far, near, flat.block}, {flat.block, far * flat.block, 1}, gathered.offset()));
}

std::vector<Tensor> ParameterShards::values_of(std::size_t unit) {
  const NoGradGuard no_grad;
  LOCKSTEP_CHECK(
      phase_ != Phase::apart || whole_ > 0 || Engine::running(),
      "[TrainingStep] the values of '{}' are divided over {} ranks and not gathered now: they can be read in "
      "the loss function of a step; to read, save or change them, hold the step's whole_parameters() on all "
      "ranks; in the step of another model, call this one through its DistributedDataParallel",
      name_of(unit), division_->world);
  if (phase_ == Phase::forward && unit > 0 && Engine::running()) go_backward();
  if (division_->trained == 0 && Engine::running() && !in_step()) close_after_backward();
  if (!is_on_the_way(unit)) want(unit);
  State& state = states_[unit];
  const LabelScope label(state.label);
  for (const WorkPtr& work : state.works) work->wait();
  state.works.clear();
  std::vector<Tensor> values;
  std::size_t at = 0;
  for (const std::size_t f : division_->units[unit].flats) {
    const Flat& flat = division_->flats[f];
    const Tensor all = in_order_of_ranks(std::exchange(state.gathered[at++], {}), flat);
    for (std::size_t m = 0; m < flat.members.size(); ++m) {
      values.push_back(empty(division_->parameters[flat.members[m]].tensor.sizes(), flat.options));
      const std::int64_t size = flat.offsets[m + 1] - flat.offsets[m];
      copy_values(elements_of(all, flat.offsets[m], size), elements_of(values.back(), 0, size));
    }
  }
  state.gathered.clear();
  state.whole = true;
  expect_next(unit);
  return values;
}

void ParameterShards::make_absent(std::size_t unit) {
  const Unit& described = division_->units[unit];
  if (described.flats.empty()) return;
  const IntrusivePtr<AbsentValues> absent(new AbsentValues(weak_from_this(), unit, name_of(unit)));
  for (const std::size_t f : described.flats)
    for (const std::size_t p : division_->flats[f].members) {
      const Tensor& parameter = division_->parameters[p].tensor;
      const StoragePtr old = parameter.storage();
      old->before_change();  // what waits to read the values does so now
      if (old->is_lent() && phase_ != Phase::apart) lent_.push_back(old);
      TensorImpl& impl = *parameter.impl();
      impl.storage = absent->add_result(parameter.sizes(), division_->flats[f].options).storage();
      impl.offset = 0;
      impl.strides = contiguous_strides(impl.sizes);
      impl.contiguous = true;
      while (impl.storage->version() < old->version()) impl.storage->bump_version();
    }
}

void ParameterShards::drop(std::size_t unit) {
  State& state = states_[unit];
  for (const WorkPtr& work : state.works) work->wait();
  state.works.clear();
  state.gathered.clear();
  state.through = false;
  if (whole_ > 0 || !std::exchange(state.whole, false)) return;
  make_absent(unit);
}

void ParameterShards::drop_all(bool unit0_too) {
  for (std::size_t u = unit0_too ? 0 : 1; u < states_.size(); ++u) drop(u);
  for (State& state : states_) state.missing = state.members;
}

// What was gathered ahead and is not read: that it did not come says the next gather too.
void ParameterShards::drop_unread() noexcept {
  try {
    drop_all(true);
  } catch (const std::exception&) {
    abandon();
  }
}

void ParameterShards::settle(std::size_t unit) {
  for (const std::size_t f : division_->units[unit].flats)
    for (const std::size_t p : division_->flats[f].members) division_->parameters[p].tensor.storage()->settle();
}

void ParameterShards::close() {
  phase_ = Phase::apart;
  drop_all(true);
  lent_.clear();
}

void ParameterShards::close_after_backward() {
  if (std::exchange(closing_, true)) return;
  Engine::queue_callback([this] {
    closing_ = false;
    if (in_step()) return end_pass();
    close();
  });
}

// Called between operations, so nobody reads what is dropped.
void ParameterShards::on_call(std::size_t unit) {
  if (whole_ > 0) return;
  for (std::size_t u = 1; u < states_.size(); ++u)
    if (u != unit && states_[u].whole) drop(u);
}

void ParameterShards::on_gradient(std::size_t unit) {
  // Before the reducer waits for reductions, which may need what this rank has yet to gather for others.
  close_after_backward();
  for (std::size_t u = 1; u < states_.size() && unit > 0; ++u)
    if (u != unit && states_[u].through) drop(u);
  State& state = states_[unit];
  if (--state.missing > 0) return;
  state.missing = state.members;
  if (unit == 0 || !state.whole) return;
  // A frozen layer that came first is read last, and on some ranks not at all: gathered again, these would not help.
  if (state.frozen)
    state.through = true;
  else
    drop(unit);
}

// --- whole
// --------------------------------------------------------------------------------------------------------------

void ParameterShards::make_whole() {
  LOCKSTEP_CHECK(!in_step(), "[TrainingStep] whole_parameters() was called in a step");
  if (std::exchange(stays_whole_, false)) return;  // of which this call is the owner
  if (whole_ == 0) drop_all(true);
  if (whole_++ > 0) return;
  for (std::size_t u = 0; u < states_.size(); ++u) settle(u);
}

void ParameterShards::divide() {
  if (whole_ > 1) {
    --whole_;
    return;
  }
  stays_whole_ = recast() != nullptr;
  if (stays_whole_) return;  // the next step says so
  const NoGradGuard no_grad;
  visit_own([](const Tensor& parameter, std::int64_t begin, const Tensor& values) {
    copy_values(elements_of(as_contiguous(parameter.detach()), begin, values.numel()), values);
  });
  for (const auto& write : std::exchange(written_when_divided_, {})) write();
  whole_ = 0;
  drop_unread();
  blocks_changed_ = true;
}

// A parameter that was moved, cast or replaced while it was whole, and does not fit into its parts.
const nn::NamedTensor* ParameterShards::recast() const {
  for (const Flat& flat : division_->flats)
    for (std::size_t m = 0; m < flat.members.size(); ++m) {
      const nn::NamedTensor& each = division_->parameters[flat.members[m]];
      if (each.tensor.dtype() != flat.options.dtype || each.tensor.device() != flat.options.device ||
          each.tensor.numel() != flat.offsets[m + 1] - flat.offsets[m])
        return &each;
    }
  return nullptr;
}

// A parameter that was given another value while its own were divided: nobody would see it.
void ParameterShards::check_not_replaced() const {
  for (std::size_t u = 0; u < states_.size() && whole_ == 0; ++u)
    for (const std::size_t f : division_->units[u].flats)
      for (const std::size_t p : division_->flats[f].members)
        LOCKSTEP_CHECK(states_[u].whole || division_->parameters[p].tensor.storage()->is_pending(),
                       "[TrainingStep] parameter '{}' was replaced while its values were divided over {} ranks; hold "
                       "the step's whole_parameters() on all ranks to change it",
                       division_->parameters[p].name, division_->world);
}

void ParameterShards::visit_own(
    const std::function<void(const Tensor& parameter, std::int64_t begin, const Tensor& values)>& take) const {
  for (const Flat& flat : division_->flats) {
    const auto [first, last] = division_->own_range(flat);
    for (std::size_t m = 0; m < flat.members.size(); ++m) {
      const std::int64_t begin = std::max(first, flat.offsets[m]), end = std::min(last, flat.offsets[m + 1]);
      if (begin < end)
        take(division_->parameters[flat.members[m]].tensor, begin - flat.offsets[m],
             elements_of(flat.shard, begin - first, end - begin));
    }
  }
}

void ParameterShards::check_divided(std::string_view what) const {
  LOCKSTEP_CHECK(whole_ == 0,
                 "{} while whole_parameters() are held, whose values would replace the new ones; let go of them before",
                 what);
}

void ParameterShards::when_divided(std::function<void()> write) {
  if (whole_ > 0) written_when_divided_.push_back(std::move(write));
}

// Graphs that have saved the old values must not take the new ones for them.
void ParameterShards::on_update() {
  drop_unread();
  for (const nn::NamedTensor& each : division_->parameters) each.tensor.storage()->bump_version();
  blocks_changed_ = true;
}

WholeParameters::WholeParameters(const std::shared_ptr<ParameterShards>& shards) : shards_(shards) {
  if (shards) shards->make_whole();
}

WholeParameters::WholeParameters(const nn::Module& module) : WholeParameters(ParameterShards::of(module)) {}

WholeParameters::~WholeParameters() {
  if (const auto shards = shards_.lock()) shards->divide();
}

}  // namespace lockstep::distributed
