// The order in which ParameterShards gathers units.

#include <algorithm>
#include <array>
#include <utility>

#include "lockstep/autograd/engine.h"
#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "lockstep/distributed/process_group/all_gather_integers.h"

namespace lockstep::distributed {

void ParameterShards::want(std::size_t unit) {
  if (!in_pass() || whole_ > 0 || unit == 0) return start(unit);
  if (follows()) return follow_until(static_cast<std::int64_t>(unit));
  std::vector<std::size_t>& list = lists_[is_backward()];
  std::size_t& place = place_[is_backward()];
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
    State kept = std::exchange(states_[unit], {});
    states_[unit].label = kept.label;
    start(unit);
    for (const WorkPtr& work : states_[unit].works) work->wait();
    states_[unit] = std::move(kept);
    return;
  }
  start(unit);
}

void ParameterShards::expect_next(std::size_t unit) {
  if (whole_ > 0 || is_led()) return;
  if (in_pass()) {
    const std::vector<std::size_t>& list = lists_[is_backward()];
    std::size_t& place = place_[is_backward()];
    if (unit == 0 && is_backward()) return;
    if (place < list.size() && !is_on_the_way(list[place]) && !states_[list[place]].whole) {
      start(list[place++]);
    }
    return;
  }
  if (in_step() || unit == 0) return;
  const std::size_t next = Engine::running() ? unit - 1 : unit + 1;
  if (next > 0 && next < states_.size() && !is_on_the_way(next) && !states_[next].whole) start(next);
}

// Where ranks make different numbers of passes in the first step, when it is not known yet in what order a pass reads,
// one that makes the most says before each gather which it is. The others make the same ones until theirs comes.
std::int64_t ParameterShards::agree_on(std::int64_t unit) {
  static const OperationLabel label("what is gathered next");
  const LabelScope scope(label);
  const Tensor said = tensor({unit});
  group_->broadcast(said, *leader_)->wait();
  return said.item<std::int64_t>();
}

void ParameterShards::follow_until(std::int64_t wanted) {
  for (std::int64_t said = agree_on(kListen);; said = agree_on(kListen)) {
    const auto unit = static_cast<std::size_t>(said);
    if (said == wanted) {
      if (said >= 0) start(unit);
      return;
    }
    LOCKSTEP_CHECK(said >= 0,
                   "[TrainingStep] rank {} reads {} once more than rank {} does; in a first step in which ranks make "
                   "different numbers of passes, all of them must read the blocks in one order",
                   division_->rank, wanted >= 0 ? states_[static_cast<std::size_t>(wanted)].label.text() : "parameters",
                   *leader_);
    pass_over(unit);
    if (wanted < 0 && !states_[unit].whole) drop(unit);
  }
}

void ParameterShards::play_pass() {
  begin_pass();
  end_pass();
}

void ParameterShards::end_last_forward() {
  if (plays_last_) begin_pass();
  if (phase_ == Phase::forward) go_backward();
}

void ParameterShards::play_last_backward() {
  if (std::exchange(plays_last_, false)) end_pass();
}

void ParameterShards::go_backward() {
  if (follows()) {
    follow_until(kBackward);
  } else {
    while (place_[0] < lists_[0].size()) {
      const std::size_t unit = lists_[0][place_[0]++];
      pass_over(unit);
      if (!states_[unit].whole) drop(unit);
    }
    if (leads()) agree_on(kBackward);
  }
  phase_ = Phase::backward;
}

void ParameterShards::begin_pass() {
  LOCKSTEP_ASSERT(!in_pass(), "two passes at once");
  phase_ = Phase::forward;
  closing_ = repeated_ = false;
  for (int phase : {0, 1}) {
    place_[phase] = 0;
    made_[phase].clear();
  }
  expect_next(0);
}

void ParameterShards::end_pass() {
  if (!in_pass()) return;
  if (!is_backward()) go_backward();
  for (std::size_t u = 1; u < states_.size(); ++u) drop(u);
  if (follows()) follow_until(kEnd);
  while (!follows() && place_[1] < lists_[1].size()) {
    const std::size_t unit = lists_[1][place_[1]++];
    start(unit);
    drop(unit);
  }
  if (leads()) agree_on(kEnd);
  if (ProcessGroup& ranks = near_ ? *near_ : *group_; !is_led() && ranks.world_size() > 1) {
    static const OperationLabel label("end of the gathers of a pass");
    const LabelScope scope(label);
    end_ = ranks.all_reduce(zeros({1}));
  }
  if (repeated_ || is_led())
    for (int phase : {0, 1}) lists_[phase] = made_[phase];
  phase_ = Phase::step;
  drop_all(/*unit0_too=*/false);
}

void ParameterShards::begin_step(std::int64_t passes) {
  const nn::NamedTensor* const other = recast();
  LOCKSTEP_CHECK(
      !other,
      "[TrainingStep] parameter '{}' was moved, cast or replaced, and is {} {} on {}, after the step had divided it; "
      "change the model first, then make the step and its optimizer",
      other->name, name(other->tensor.dtype()), to_string(other->tensor.sizes()), to_string(other->tensor.device()));
  if (std::exchange(stays_whole_, false)) divide();  // it has been changed back
  LOCKSTEP_CHECK(whole_ == 0,
                 "[TrainingStep] a step was made while whole_parameters() are held; let go of them before");
  closing_ = false;
  drop_all(true);
  check_not_replaced();
  if (near_) near_->set_step(steps_, /*checked=*/true);
  group_->set_step(steps_++, /*checked=*/true);
  exchange_blocks();
  phase_ = Phase::step;
  if (division_->of_part) return gather_all();
  const auto hash = [](const std::vector<std::size_t>& list) {
    Checksum sum;
    sum.update(list.data(), list.size() * sizeof(std::size_t));
    return static_cast<std::int64_t>(sum.value());
  };
  static const OperationLabel label("passes of a step");
  std::vector told{std::array{passes, hash(lists_[0]), hash(lists_[1]), division_->updates}};
  if (division_->world > 1) {
    const LabelScope scope(label);
    told = all_gather_integers(told.front(), *group_);
  }
  std::int64_t most = told[0][0], least = told[0][0];
  int leader = 0;
  bool differ = false;
  for (std::size_t r = 0; r < told.size(); ++r) {
    const auto [theirs, forward, backward, updates] = told[r];
    LOCKSTEP_CHECK(updates == told[0][3],
                   "[TrainingStep] optimizers have stepped {} times on rank {} and {} times on rank 0; each rank "
                   "updates its share of the parameters (zero = 3), so all must step alike",
                   updates, r, told[0][3]);
    if (theirs > most) leader = static_cast<int>(r);
    most = std::max(most, theirs);
    least = std::min(least, theirs);
    differ = differ || forward != told[0][1] || backward != told[0][2];
  }
  if (differ) agree_on_lists();
  settle(0);
  leader_.reset();
  if (steps_ == 1 && least < most) leader_ = leader;
  plays_last_ = passes == 0 && most > 0;
  for (passes = std::max<std::int64_t>(passes, 1); passes < most; ++passes) play_pass();
}

// One after the other, while the next one travels.
void ParameterShards::gather_all() {
  if (!states_.empty()) start(0);
  for (std::size_t u = 0; u < states_.size(); ++u) {
    if (u + 1 < states_.size()) start(u + 1);
    settle(u);
  }
}

// Rank 0 has a part of every batch that the library divides, so it has seen what there is to see.
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
  if (end_) std::exchange(end_, nullptr)->wait();
  close();
}

void ParameterShards::begin_forward() {
  check_not_replaced();
  exchange_blocks();
  if (phase_ == Phase::apart) phase_ = Phase::reading;
  closing_ = false;
}

void ParameterShards::end_forward(bool recorded) {
  if (!recorded && !in_step()) close();
}

void ParameterShards::abandon() {
  closing_ = false;
  end_.reset();
  for (State& state : states_) {
    state.works.clear();
    state.gathered.clear();
  }
  close();
}

}  // namespace lockstep::distributed
