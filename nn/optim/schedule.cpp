#include "lockstep/nn/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "lockstep/core/check.h"
#include "lockstep/core/double_math.h"

namespace lockstep::optim {
namespace {

double anneal(double from, double to, double share, bool linear) {
  if (linear) return from + (to - from) * share;
  return to + (from - to) / 2.0 * (1.0 + math::portable_cos(std::numbers::pi * share));
}

/// The value of a curve that goes through first, middle, (first,) last at OneCycle's turning points.
double one_cycle(const OneCycle& c, std::int64_t step, double first, double middle, double last) {
  LOCKSTEP_CHECK(c.total_steps >= 1 && c.pct_start >= 0.0 && c.pct_start <= 1.0,
                 "[OneCycle] expected total_steps >= 1 and 0 <= pct_start <= 1, found {} and {}", c.total_steps,
                 c.pct_start);
  const double total = static_cast<double>(c.total_steps);
  const double top = c.pct_start * total - 1.0;
  const double x = std::min(static_cast<double>(step), total - 1.0);
  const auto between = [&](double from_x, double to_x, double from, double to) {
    const double share = to_x > from_x ? (x - from_x) / (to_x - from_x) : 1.0;
    return anneal(from, to, share, c.linear);
  };
  if (x <= top) return between(0.0, top, first, middle);
  if (!c.three_phase) return between(top, total - 1.0, middle, last);
  const double back = 2.0 * top;
  if (x <= back) return between(top, back, middle, first);
  return between(back, total - 1.0, first, last);
}

/// The momentum that goes with a schedule of the rate: that of a OneCycle, else none.
Schedule momentum_beside(const Schedule& lr) {
  const OneCycle* cycle = lr.target<OneCycle>();
  if (!cycle || !cycle->cycle_momentum) return {};
  return [cycle = *cycle](std::int64_t step) { return cycle.momentum(step); };
}

double rate_of(const char* schedule, double lr) {
  LOCKSTEP_CHECK(!std::isnan(lr),
                 "[{}] has no rate; set .lr, or give it to an LRScheduler, which takes the optimizer's", schedule);
  return lr;
}

template <typename S>
bool takes(Schedule& schedule, double rate) {
  S* const given = schedule.target<S>();
  if (!given || !std::isnan(given->lr)) return false;
  given->lr = rate;
  return true;
}

/// Gives a schedule that goes by the optimizer's rate this one. False: it has, in some part, rates of its own.
bool take_rate(Schedule& schedule, double rate) {
  if (auto* const warmup = schedule.target<LinearWarmup>()) return take_rate(warmup->next, rate);
  if (auto* const parts = schedule.target<SequentialLR>()) {
    bool all = true;
    for (Schedule& part : parts->schedules) all = take_rate(part, rate) && all;
    return all;
  }
  return takes<StepLR>(schedule, rate) || takes<MultiStepLR>(schedule, rate) || takes<ExponentialLR>(schedule, rate) ||
         takes<CosineAnnealing>(schedule, rate) || takes<CosineAnnealingWarmRestarts>(schedule, rate) ||
         takes<PolynomialLR>(schedule, rate);
}

/// The number of a scheduler's state that has this name.
double number_in(const std::map<std::string, double>& state, const char* scheduler, const char* name) {
  const auto found = state.find(name);
  LOCKSTEP_CHECK(
      found != state.end(),
      "[{}] the state to load has no '{}', so it is that of another kind of scheduler; pass the one that was "
      "saved in this place",
      scheduler, name);
  return found->second;
}

/// The same for one that counts steps.
std::int64_t count_in(const std::map<std::string, double>& state, const char* scheduler, const char* name) {
  const double value = number_in(state, scheduler, name);
  LOCKSTEP_CHECK(value >= 0.0 && value < 0x1p53 && value == std::floor(value),
                 "[{}] the state to load has {} {}, expected a whole number >= 0", scheduler, name, value);
  return static_cast<std::int64_t>(value);
}

}  // namespace

double StepLR::operator()(std::int64_t step) const {
  LOCKSTEP_CHECK(step_size >= 1, "[StepLR] expected step_size >= 1, found {}", step_size);
  return rate_of("StepLR", lr) * math::portable_pow(gamma, static_cast<double>(step / step_size));
}

double CosineAnnealing::operator()(std::int64_t step) const {
  LOCKSTEP_CHECK(period >= 1, "[CosineAnnealing] expected period >= 1, found {}", period);
  const double angle = std::numbers::pi * static_cast<double>(step) / static_cast<double>(period);
  return min_lr + (rate_of("CosineAnnealing", lr) - min_lr) * (1.0 + math::portable_cos(angle)) / 2.0;
}

double CosineAnnealingWarmRestarts::operator()(std::int64_t step) const {
  LOCKSTEP_CHECK(period >= 1 && factor >= 1,
                 "[CosineAnnealingWarmRestarts] expected a period and a factor of at least 1, found {} and {}", period,
                 factor);
  std::int64_t since = step, length = period;
  if (factor == 1) since = step % period;
  while (since >= length) {
    since -= length;
    length *= factor;
  }
  return CosineAnnealing{.lr = rate_of("CosineAnnealingWarmRestarts", lr), .period = length, .min_lr = min_lr}(since);
}

double PolynomialLR::operator()(std::int64_t step) const {
  LOCKSTEP_CHECK(total_steps >= 1, "[PolynomialLR] expected total_steps >= 1, found {}", total_steps);
  const double rate = rate_of("PolynomialLR", lr);
  if (step >= total_steps) return 0.0;
  return rate * math::portable_pow(1.0 - static_cast<double>(step) / static_cast<double>(total_steps), power);
}

double CyclicLR::operator()(std::int64_t step) const {
  LOCKSTEP_CHECK(steps_up >= 1 && steps_down >= 0,
                 "[CyclicLR] expected steps_up >= 1 and steps_down >= 0, found {} and {}", steps_up, steps_down);
  const std::int64_t down = steps_down == 0 ? steps_up : steps_down, length = steps_up + down;
  const std::int64_t cycle = step / length, at = step % length;
  const double share = at <= steps_up ? static_cast<double>(at) / static_cast<double>(steps_up)
                                      : static_cast<double>(length - at) / static_cast<double>(down);
  double height = max_lr - lr;
  if (mode == CycleMode::triangular2) height *= math::portable_pow(0.5, static_cast<double>(cycle));
  if (mode == CycleMode::exp_range) height *= math::portable_pow(gamma, static_cast<double>(step));
  return lr + height * share;
}

double SequentialLR::operator()(std::int64_t step) const {
  LOCKSTEP_CHECK(!schedules.empty() && milestones.size() + 1 == schedules.size(),
                 "[SequentialLR] expected a milestone between two schedules each, found {} schedules and {} milestones",
                 schedules.size(), milestones.size());
  std::size_t i = 0;
  while (i < milestones.size() && step >= milestones[i]) ++i;
  LOCKSTEP_CHECK(schedules[i], "[SequentialLR] schedule {} is empty", i);
  return schedules[i](i == 0 ? step : step - milestones[i - 1]);
}

double OneCycle::operator()(std::int64_t step) const {
  const double initial = max_lr / div_factor;
  return one_cycle(*this, step, initial, max_lr, initial / final_div_factor);
}

double OneCycle::momentum(std::int64_t step) const {
  return one_cycle(*this, step, max_momentum, base_momentum, max_momentum);
}

double LinearWarmup::operator()(std::int64_t step) const {
  LOCKSTEP_CHECK(next, "[LinearWarmup] has no schedule to go on with; set .next");
  if (step >= steps) return next(step - steps);
  const double share = static_cast<double>(step) / static_cast<double>(steps);
  return next(0) * (start_factor + (1.0 - start_factor) * share);
}

LRScheduler::LRScheduler(Optimizer& optimizer, Schedule lr, Schedule momentum)
    : LRScheduler(optimizer, std::vector<Schedule>{std::move(lr)}, std::move(momentum)) {}

LRScheduler::LRScheduler(Optimizer& optimizer, std::vector<Schedule> lr, Schedule momentum)
    : optimizer_(optimizer), lr_(std::move(lr)) {
  const std::size_t groups = optimizer.num_param_groups();
  LOCKSTEP_CHECK(lr_.size() == 1 || lr_.size() == groups,
                 "[LRScheduler] expected {} schedules, one for each parameter group, found {}", groups, lr_.size());
  for (const Schedule& each : lr_) LOCKSTEP_CHECK(each, "[LRScheduler] has no schedule");
  if (Schedule first = lr_.front(); take_rate(first, optimizer.lr(0))) lr_.resize(groups, Schedule(lr_.front()));
  for (std::size_t group = lr_.size(); group < groups; ++group)
    LOCKSTEP_CHECK(optimizer.lr(group) == optimizer.lr(0),
                   "[LRScheduler] parameter groups 0 and {} have learning rates {} and {}, and one schedule was given; "
                   "pass one for each of the {} groups",
                   group, optimizer.lr(0), optimizer.lr(group), groups);
  for (std::size_t group = 0; group < lr_.size(); ++group) take_rate(lr_[group], optimizer.lr(group));
  for (const Schedule& each : lr_) {
    momentum_.push_back(momentum ? momentum : momentum_beside(each));
    LOCKSTEP_CHECK(
        !momentum_.back() || optimizer.has_momentum(),
        "[LRScheduler] expected an optimizer with momentum or beta1, whose schedule was given, and found one "
        "that has neither; give none, and turn off cycle_momentum in a OneCycle");
  }
  set_position(0);
}

LRScheduler::LRScheduler(Optimizer& optimizer, const OneCycle& schedule) : LRScheduler(optimizer, Schedule(schedule)) {}

void LRScheduler::set_position(std::int64_t position) {
  LOCKSTEP_CHECK(position >= 0, "[LRScheduler] expected a position >= 0, found {}", position);
  position_ = position;
  for (std::size_t group = 0; group < optimizer_.num_param_groups(); ++group) {
    const std::size_t of_group = lr_.size() == 1 ? 0 : group;
    if (momentum_[of_group]) optimizer_.set_momentum(momentum_[of_group](position), group);
    optimizer_.set_lr(lr_[of_group](position), group);
  }
}

std::vector<double> LRScheduler::get_last_lr() const {
  std::vector<double> rates;
  for (std::size_t group = 0; group < optimizer_.num_param_groups(); ++group) rates.push_back(optimizer_.lr(group));
  return rates;
}

std::map<std::string, double> LRScheduler::state() const {
  return {{"position", static_cast<double>(position_)}};
}

std::function<void()> LRScheduler::prepare_load(const std::map<std::string, double>& state) {
  return [this, position = count_in(state, "LRScheduler", "position")] { set_position(position); };
}

double MultiStepLR::operator()(std::int64_t step) const {
  double rate = rate_of("MultiStepLR", lr);
  for (const std::int64_t milestone : milestones)
    if (milestone <= step) rate *= gamma;
  return rate;
}

double ExponentialLR::operator()(std::int64_t step) const {
  return rate_of("ExponentialLR", lr) * math::portable_pow(gamma, static_cast<double>(step));
}

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options)
    : optimizer_(optimizer),
      options_(options),
      best_(options.larger_is_better ? -std::numeric_limits<double>::infinity()
                                     : std::numeric_limits<double>::infinity()) {
  LOCKSTEP_CHECK(options.factor > 0.0 && options.factor < 1.0,
                 "[ReduceLROnPlateau] expected a factor between 0 and 1, found {}", options.factor);
}

void ReduceLROnPlateau::step(double measure) {
  const bool better = options_.larger_is_better ? measure > best_ * (1.0 + options_.threshold)
                                                : measure < best_ * (1.0 - options_.threshold);
  if (better) best_ = measure;
  bad_ = better ? 0 : bad_ + 1;
  if (cooling_ > 0) {
    --cooling_;
    bad_ = 0;
  }
  if (bad_ <= options_.patience) return;
  for (std::size_t group = 0; group < optimizer_.num_param_groups(); ++group) {
    const double rate = std::max(optimizer_.lr(group) * options_.factor, options_.min_lr);
    if (optimizer_.lr(group) - rate > 1e-8) optimizer_.set_lr(rate, group);
  }
  cooling_ = options_.cooldown;
  bad_ = 0;
}

std::map<std::string, double> ReduceLROnPlateau::state() const {
  return {{"best", best_}, {"bad_steps", static_cast<double>(bad_)}, {"cooldown", static_cast<double>(cooling_)}};
}

std::function<void()> ReduceLROnPlateau::prepare_load(const std::map<std::string, double>& state) {
  constexpr const char* kName = "ReduceLROnPlateau";
  return [this, best = number_in(state, kName, "best"), bad = count_in(state, kName, "bad_steps"),
          cooling = count_in(state, kName, "cooldown")] {
    best_ = best;
    bad_ = bad;
    cooling_ = cooling;
  };
}

}  // namespace lockstep::optim
