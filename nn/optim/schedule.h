#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

/// Note [Schedules]
/// A schedule is a pure function from a step (0, 1, ...) to a value: nothing to save but the position, nothing to
/// drift. The structs below are such functions, with the closed forms of PyTorch's schedulers; any callable will do. A
/// "step" is whatever calls LRScheduler::step() is: an optimizer step or an epoch. The value is the rate itself, also
/// that of a program's own function, which torch's LambdaLR would multiply with the optimizer's.
using Schedule = std::function<double(std::int64_t step)>;

/// The `lr` of a schedule that was given none: each parameter group's, at the time when the LRScheduler is made. Called
/// by itself such a schedule throws Error.
inline constexpr double kRateOfOptimizer = std::numeric_limits<double>::quiet_NaN();

/// lr * gamma^floor(step / step_size).
struct StepLR {
  double lr = kRateOfOptimizer;                ///< at step 0
  std::int64_t step_size = 1;                  ///< steps between two changes
  double gamma = 0.1;                          ///< factor of each change
  double operator()(std::int64_t step) const;  ///< the rate at `step`
};

/// lr * gamma^k for the k milestones that are not above step.
struct MultiStepLR {
  double lr = kRateOfOptimizer;                ///< at step 0
  std::vector<std::int64_t> milestones = {};   ///< steps, in rising order
  double gamma = 0.1;                          ///< factor of each change
  double operator()(std::int64_t step) const;  ///< the rate at `step`
};

/// lr * gamma^step.
struct ExponentialLR {
  double lr = kRateOfOptimizer;                ///< at step 0
  double gamma = 0.9;                          ///< factor of each step
  double operator()(std::int64_t step) const;  ///< the rate at `step`
};

/// min_lr + (lr - min_lr) * (1 + cos(pi * step / period)) / 2. Loshchilov and Hutter, "SGDR" (2017), without restarts;
/// torch's CosineAnnealingLR with T_max = period: past it the rate rises again.
struct CosineAnnealing {
  double lr = kRateOfOptimizer;                ///< at step 0
  std::int64_t period = 1;                     ///< steps from lr to min_lr
  double min_lr = 0.0;                         ///< the lowest rate
  double operator()(std::int64_t step) const;  ///< the rate at `step`
};

/// SGDR with restarts, torch's CosineAnnealingWarmRestarts: CosineAnnealing again and again, each time over `factor` as
/// many steps as before.
struct CosineAnnealingWarmRestarts {
  double lr = kRateOfOptimizer;                ///< after each restart
  std::int64_t period = 1;                     ///< steps to the first restart, T_0
  std::int64_t factor = 1;                     ///< by which the period grows, T_mult
  double min_lr = 0.0;                         ///< the rate before a restart comes near it
  double operator()(std::int64_t step) const;  ///< the rate at `step`
};

/// lr * (1 - step / total_steps)^power, and 0 from total_steps on; torch's PolynomialLR.
struct PolynomialLR {
  double lr = kRateOfOptimizer;                ///< at step 0
  std::int64_t total_steps = 5;                ///< to 0
  double power = 1.0;                          ///< 1: a straight line
  double operator()(std::int64_t step) const;  ///< the rate at `step`
};

/// What becomes of the height of CyclicLR's cycles.
enum class CycleMode { triangular, triangular2, exp_range };

/// Smith, "Cyclical learning rates for training neural networks" (2017), as torch's CyclicLR: from lr up to max_lr and
/// down again, in straight lines, for ever. Momentum, which torch cycles with it, is another one of them, such as
/// {.lr = 0.9, .max_lr = 0.8}, given to LRScheduler beside it.
struct CyclicLR {
  double lr = 1e-3;                            ///< the lowest rate
  double max_lr = 0.1;                         ///< the highest rate of the first cycle
  std::int64_t steps_up = 2000;                ///< from lr to max_lr
  std::int64_t steps_down = 0;                 ///< and back; 0: as many
  CycleMode mode = CycleMode::triangular;      ///< each cycle as high, half as high as the last, or gamma^step as high
  double gamma = 1.0;                          ///< of exp_range
  double operator()(std::int64_t step) const;  ///< the rate at `step`
};

/// schedules[0] up to milestones[0], then schedules[1] from its step 0 up to milestones[1], ...: torch's SequentialLR.
struct SequentialLR {
  std::vector<Schedule> schedules = {};        ///< at least one
  std::vector<std::int64_t> milestones = {};   ///< one less, in rising order
  double operator()(std::int64_t step) const;  ///< the rate at `step`
};

/// Smith and Topin, "Super-convergence" (2018), as torch's OneCycleLR: from max_lr / div_factor up to max_lr in the
/// first pct_start of total_steps, then down to the initial rate / final_div_factor; momentum the other way round. Past
/// total_steps it stays at the end.
struct OneCycle {
  double max_lr = 0.1;                         ///< the highest rate
  std::int64_t total_steps = 1;                ///< length of the cycle
  double pct_start = 0.3;                      ///< share of the cycle in which the rate rises
  double div_factor = 25.0;                    ///< max_lr / initial rate
  double final_div_factor = 1e4;               ///< initial rate / last rate
  bool three_phase = false;                    ///< down to the initial rate as fast as up, then to the end
  bool linear = false;                         ///< straight lines instead of half cosines
  bool cycle_momentum = true;                  ///< also cycle the momentum
  double base_momentum = 0.85;                 ///< where the rate is highest
  double max_momentum = 0.95;                  ///< at both ends
  double operator()(std::int64_t step) const;  ///< the rate at `step`
  double momentum(std::int64_t step) const;    ///< the momentum at `step`
};

/// Rises in a straight line from start_factor * next(0) to next(0) over `steps`, then goes on with next from its step
/// 0.
struct LinearWarmup {
  std::int64_t steps = 0;                      ///< length of the rise
  Schedule next = {};                          ///< what follows; must be set
  double start_factor = 0.0;                   ///< share of next(0) at step 0
  double operator()(std::int64_t step) const;  ///< the rate at `step`
};

/// What sets the rates of an optimizer and is kept in checkpoints: LRScheduler and ReduceLROnPlateau.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  /// What a checkpoint keeps of it, by name. The rates themselves are kept with the optimizer.
  virtual std::map<std::string, double> state() const = 0;
  /// What load_state() does, once everything about the state has been checked: throws Error for the state of another
  /// kind of scheduler, and for values that none has.
  virtual std::function<void()> prepare_load(const std::map<std::string, double>& state) = 0;
  /// Goes on from what state() was. Load the optimizer's state before. Errors as prepare_load(); nothing has changed
  /// then.
  void load_state(const std::map<std::string, double>& state) { prepare_load(state)(); }
};

/// Sets an optimizer's learning rate (and momentum) from a schedule. Position 0 holds from construction on; call step()
/// after each optimizer.step(). The optimizer must outlive it. Where no schedule of the momentum is given, a OneCycle
/// cycles that of its parameter groups too, unless its cycle_momentum is off. Throws Error if there is a momentum to
/// set in an optimizer without.
class LRScheduler : public Scheduler {
 public:
  /// One schedule for all parameter groups. Throws Error if these were made with different rates, unless the schedule
  /// goes by them (kRateOfOptimizer): say then what each is to have.
  LRScheduler(Optimizer& optimizer, Schedule lr, Schedule momentum = {});
  /// A schedule for each parameter group. Throws Error for another number of them.
  LRScheduler(Optimizer& optimizer, std::vector<Schedule> lr, Schedule momentum = {});
  /// One cycle for all parameter groups.
  LRScheduler(Optimizer& optimizer, const OneCycle& schedule);

  void step() { set_position(position_ + 1); }         ///< goes on by one position
  std::int64_t position() const { return position_; }  ///< argument of the schedule now
  /// The rates that the optimizer has now, one for each parameter group.
  std::vector<double> get_last_lr() const;
  /// For resuming. Throws Error if negative.
  void set_position(std::int64_t position);
  /// The position, as "position".
  std::map<std::string, double> state() const override;
  std::function<void()> prepare_load(const std::map<std::string, double>& state) override;

 private:
  Optimizer& optimizer_;
  std::vector<Schedule> lr_;        // one for all groups, or one for each
  std::vector<Schedule> momentum_;  // beside each of lr_; empty: stays as it is
  std::int64_t position_ = 0;
};

/// Options of ReduceLROnPlateau.
struct ReduceLROnPlateauOptions {
  bool larger_is_better = false;  ///< of an accuracy; else of a loss
  double factor = 0.1;            ///< of a reduction
  std::int64_t patience = 10;     ///< steps without improvement before one
  double threshold = 1e-4;        ///< better is below best (1 - threshold), or above best (1 + threshold)
  std::int64_t cooldown = 0;      ///< steps after a reduction that are not counted
  double min_lr = 0.0;            ///< the lowest rate
};

/// Lowers the rates of all parameter groups when a measure stops to improve, as torch's of that name (threshold_mode
/// "rel"): `plateau.step(validation_loss)` after each evaluation. The optimizer must outlive it.
class ReduceLROnPlateau : public Scheduler {
 public:
  /// Throws Error unless 0 < factor < 1.
  explicit ReduceLROnPlateau(Optimizer& optimizer, ReduceLROnPlateauOptions options = {});
  void step(double measure);                       ///< takes the next value in
  std::int64_t bad_steps() const { return bad_; }  ///< without improvement
  /// The best measure, the steps without improvement and those that are not counted yet: "best", "bad_steps",
  /// "cooldown".
  std::map<std::string, double> state() const override;
  std::function<void()> prepare_load(const std::map<std::string, double>& state) override;

 private:
  Optimizer& optimizer_;
  ReduceLROnPlateauOptions options_;
  double best_;
  std::int64_t bad_ = 0;
  std::int64_t cooling_ = 0;
};

}  // namespace lockstep::optim
