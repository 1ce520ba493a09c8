// The order in which ParameterShards gathers units.

#include <algorithm>
#include <utility>

#include "lockstep/autograd/engine.h"
#include "lockstep/core/check.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"

namespace lockstep::distributed {

void ParameterShards::want(std::size_t unit) {
  if (!in_pass_ || whole_ > 0 || unit == 0) return start(unit);
  std::vector<std::size_t>& list = lists_[backward_];
  std::size_t& place = place_[backward_];
  if (std::find(list.begin() + static_cast<std::ptrdiff_t>(place), list.end(), unit) == list.end()) {
    repeated_ = true;
    return start(unit);
  }
  while (list[place] != unit) pass_over(list[place++]);
  ++place;
  start(unit);
}

// A gather that others need, and perhaps this rank later.
void ParameterShards::pass_over(std::size_t unit) {
  if (is_on_the_way(unit) || states_[unit].whole) {
    // There are values already: the gather is made for the others.
    State kept = std::exchange(states_[unit], State{{}, {}, false, 0, 0, states_[unit].label});
    start(unit);
    for (const WorkPtr& work : states_[unit].works) work->wait();
    states_[unit] = std::move(kept);
    return;
  }
  start(unit);
}

void ParameterShards::expect_next(std::size_t unit) {
  if (whole_ > 0) return;
  if (in_pass_) {
    const std::vector<std::size_t>& list = lists_[backward_];
    std::size_t& place = place_[backward_];
    if (unit == 0 && backward_) return;
    if (place < list.size() && !is_on_the_way(list[place]) && !states_[list[place]].whole) {
      start(list[place++]);
    }
    return;
  }
  if (in_step_ || unit == 0) return;
  const std::size_t next = Engine::running() ? unit - 1 : unit + 1;
  if (next > 0 && next < states_.size() && !is_on_the_way(next) && !states_[next].whole) start(next);
}

void ParameterShards::go_backward() {
  while (place_[0] < lists_[0].size()) {
    const std::size_t unit = lists_[0][place_[0]++];
    pass_over(unit);
    if (!states_[unit].whole) drop(unit);
  }
  backward_ = true;
}

void ParameterShards::begin_pass() {
  LOCKSTEP_ASSERT(!in_pass_, "two passes at once");
  in_pass_ = true;
  backward_ = repeated_ = false;
  for (int phase : {0, 1}) {
    place_[phase] = 0;
    wanted_[phase].clear();
  }
  expect_next(0);
}

void ParameterShards::end_pass() {
  go_backward();
  for (std::size_t u = 1; u < states_.size(); ++u) drop(u);
  while (place_[1] < lists_[1].size()) {
    const std::size_t unit = lists_[1][place_[1]++];
    start(unit);
    drop(unit);
  }
  if (repeated_)
    for (int phase : {0, 1}) lists_[phase] = wanted_[phase];
  in_pass_ = false;
  drop_all(/*unit0_too=*/false);
}

void ParameterShards::begin_step(std::int64_t passes) {
  LOCKSTEP_CHECK(whole_ == 0,
                 "[TrainingStep] a step was made while whole_parameters() are held; let go of them before");
  closing_ = false;
  drop_all(true);
  group_->set_step(steps_++, /*checked=*/true);
  in_step_ = true;
  const auto hash = [](const std::vector<std::size_t>& list) {
    std::uint64_t value = 1469598103934665603ULL;
    for (const std::size_t each : list) value = (value ^ (each + 1)) * 1099511628211ULL;
    return static_cast<std::int64_t>(value >> 1);
  };
  const Tensor mine = tensor({passes, hash(lists_[0]), hash(lists_[1])});
  const Tensor all = empty({3 * division_->world}, {.dtype = kInt64});
  static const OperationLabel label("passes of a step");
  std::vector<std::int64_t> told = mine.to_vector<std::int64_t>();
  if (division_->world > 1) {
    const LabelScope scope(label);
    group_->all_gather(all, mine)->wait();
    told = all.to_vector<std::int64_t>();
  }
  std::int64_t most = 0;
  bool differ = false;
  for (std::size_t r = 0; r < told.size() / 3; ++r) {
    most = std::max(most, told[3 * r]);
    differ = differ || told[3 * r + 1] != told[1] || told[3 * r + 2] != told[2];
  }
  if (differ) agree_on_lists();
  settle(0);
  for (; passes < most; ++passes) {
    begin_pass();
    end_pass();
  }
}

// Rank 0 has a part of every batch, so it has seen what there is to see.
void ParameterShards::agree_on_lists() {
  std::string text;
  for (const std::vector<std::size_t>& list : lists_) {
    for (const std::size_t unit : list) text += std::to_string(unit) + " ";
    text += "/ ";
  }
  text = group_->broadcast_object(text);
  int phase = 0;
  lists_[0].clear();
  lists_[1].clear();
  for (std::size_t at = 0; at < text.size() && phase < 2; at = text.find(' ', at) + 1)
    if (text[at] == '/')
      ++phase;
    else
      lists_[phase].push_back(std::stoul(text.substr(at)));
}

void ParameterShards::end_step() {
  drop_all(true);
  in_step_ = reading_ = false;
  lent_.clear();
}

void ParameterShards::begin_forward() {
  reading_ = true;
  closing_ = false;
}

void ParameterShards::end_forward(bool recorded) {
  if (recorded) return;
  drop_all(true);
  reading_ = false;
  lent_.clear();
}

void ParameterShards::abandon() {
  in_pass_ = backward_ = closing_ = false;
  for (State& state : states_) {
    state.works.clear();
    state.gathered.clear();
  }
  end_step();
}

}  // namespace lockstep::distributed
