#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/optim/clip_grad.h"

namespace lockstep::optim {
namespace detail {
class ScalerOnDevice;
}

/// What a checkpoint keeps of an optimizer.
struct OptimizerState {
  static constexpr const char* kGroups = "param_groups";  ///< see tensors
  std::string type;                                       ///< "SGD", "Adam", "AdamW"
  /// "steps", "momentum.0", ...; the number is the parameter's place. With several groups also kGroups: the group of
  /// each parameter.
  std::vector<nn::NamedTensor> tensors;
  /// The first group's "lr" and "momentum", which schedules change, and settings(); another's as "param_groups.1.lr".
  std::map<std::string, double> scalars;
  /// Those that the numbers stand for. A checkpoint keeps their names, by which load_checkpoint() finds them again;
  /// where they are left out, it goes by the numbers.
  std::vector<Tensor> parameters = {};
};

/// Parameters that are updated with options of their own, such as a weight decay of 0:
///   optim::AdamW optimizer({{weights, {.lr = 1e-3, .weight_decay = 0.1}}, {biases, {.lr = 1e-3, .weight_decay = 0}}});
template <typename Options>
struct ParamGroup {
  std::vector<Tensor> params;  ///< floating-point leaves; may be empty
  Options options = {};        ///< all of them: a group takes none over from another
};

/// A group of an optimizer, seen through Optimizer's param_groups().
template <typename Options>
struct ParamGroupView {
  std::vector<Tensor> params;  ///< those it has
  /// May be changed between steps; checked in the next one. What decides about the state that is kept (whether there is
  /// a momentum, nesterov, amsgrad) stays as it was.
  Options& options;
};

/// A state that is read as it is needed, tensor by tensor and in parts: one of a file, say, of which each rank of a
/// ZeroRedundancyOptimizer wants its share alone.
struct OptimizerStateReader {
  /// What is known of a tensor without reading it.
  struct Entry {
    Shape sizes;  ///< of the whole tensor
    DType dtype;  ///< as it is stored
  };

  std::string type;                       ///< as in OptimizerState
  std::map<std::string, Entry> tensors;   ///< by name
  std::map<std::string, double> scalars;  ///< as in OptimizerState
  /// `size` elements of a tensor from element `begin` on, row-major, as a tensor of one dimension. Throws Error.
  std::function<Tensor(const std::string& name, std::int64_t begin, std::int64_t size)> read;

  Tensor read_all(const std::string& name) const;  ///< of its sizes
};

/// Of a state in memory.
OptimizerStateReader reader_of(const OptimizerState& state);

/// Note [Optimizers]
/// Changes parameters by their gradients. Holds handles on the tensors, so it sees what module.to() and load() put
/// behind them; its own state is made at the first step, where the parameters then are.
///
/// A step is one pass over parameter, gradient and state. The state of all parameters of a dtype is one buffer;
/// parameters that are neighbours in memory, and whose gradients are too, are updated as one run. The loops have
/// no fused multiply-adds: an element's new value does not depend on its place in a run,
/// so neither the layout nor the number of threads changes a bit.
///
/// On a CUDA device one kernel updates all parameters of a dtype. Where they and their gradients are, and what of a
/// step's formula changes from step to step (learning rate, momentum, bias corrections), it reads from a table in the
/// device's memory, which prepare_step() fills: a captured graph that has step() in it can be replayed under a schedule
/// and counts its steps. The arithmetic is that of the CPU to the bit.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient; the others keep value and state. Throws Error if a parameter moved to
  /// another device or dtype since its first step, or if options have become wrong. While the device's work is captured
  /// for a graph, the update is recorded and not counted as a step; throws Error then unless there was a step or
  /// prepare_step() before.
  virtual void step();
  /// Begins a step for parameters on CUDA devices: counts it, and queues what it takes from lr(), momentum() and the
  /// gradients' addresses. step() does this itself. Before each replay of a graph that has captured step():
  ///   schedule.step(); optimizer.prepare_step(); graph.launch();
  virtual void prepare_step();
  /// prepare_step() for a captured step that GradScaler::record_step() has recorded: whether it counts is decided on
  /// the device. What GradScaler::prepare_replay() does.
  void prepare_step(const std::shared_ptr<detail::ScalerOnDevice>& scaler);
  /// See nn::Module::zero_grad().
  virtual void zero_grad(bool set_to_none = true);
  /// clip_grad_norm_() of its parameters. Where gradients are divided over ranks, a collective, with the same norm.
  virtual GradNorm clip_grad_norm_(double max_norm, bool error_if_nonfinite = false);
  /// Calls `take` with each parameter that has a gradient, and that gradient, whole. Where gradients are divided over
  /// ranks, a collective, which calls it on every rank for the same ones.
  virtual void visit_gradients(const std::function<void(const Tensor& parameter, const Tensor& grad)>& take) const;
  /// Multiplies all gradients by `factor`, in their memory.
  virtual void multiply_gradients(double factor);
  /// clip_grad_value_() of its parameters, wherever their gradients are.
  virtual void clip_grad_value_(double limit);
  /// Multiplies all gradients by `factor`, in their memory. Returns whether all of them are finite then, on every rank
  /// that has some of them. What GradScaler does.
  virtual bool scale_gradients(double factor);
  /// For a model whose parameters lie with several ranks: `agree` is given whether this rank's gradients are finite,
  /// and returns whether all ranks' are, such as `[&](bool finite) { return mesh.all(finite); }`. scale_gradients()
  /// calls it on each, so that a GradScaler decides alike. Null: nobody is asked.
  void set_agreement(std::function<bool(bool finite)> agree) { agree_ = std::move(agree); }
  bool has_agreement() const { return agree_ != nullptr; }  ///< whether one was set

  /// Parameters are in groups, numbered from 0, each with options of its own; often it is one.
  std::size_t num_param_groups() const { return forms_.size(); }
  /// The group of each parameter.
  const std::vector<std::size_t>& group_of_parameters() const { return group_of_; }

  /// Learning rate of a group's next step.
  virtual double lr(std::size_t group = 0) const = 0;
  virtual void set_lr(double lr, std::size_t group) = 0;
  void set_lr(double lr);  ///< of all groups
  /// SGD's momentum, Adam's beta1: what OneCycle cycles. Of an optimizer that has neither, another option that is saved
  /// with the rate.
  virtual double momentum(std::size_t group = 0) const = 0;
  virtual bool has_momentum() const { return true; }  ///< it has one of the two
  virtual void set_momentum(double value, std::size_t group) = 0;
  void set_momentum(double value);  ///< of all groups

  /// Half types keep their state in float: a beta2 of 0.999 has no effect in eight bits of mantissa.
  static DType state_dtype(DType parameter);

  /// Those of all groups, in the order in which they were given.
  const std::vector<Tensor>& parameters() const { return parameters_; }
  /// For one that updates parts of parameters in the place of others, as ZeroRedundancyOptimizer lets it: puts
  /// `parameters`, of the groups `group_of`, in the place of its own. Throws Error after the first step, and for what
  /// the constructor refuses.
  void replace_parameters(std::vector<Tensor> parameters, std::vector<std::size_t> group_of);
  /// Of the state tensors that it keeps of each parameter of a group: "momentum".
  std::vector<std::string> state_names(std::size_t group) const;
  /// "SGD", "Adam", ...: in checkpoints and messages.
  virtual const char* name() const = 0;
  /// Whether the update of an element takes nothing but its own gradient and state, so that ranks may update parts.
  virtual bool is_elementwise() const { return true; }

  /// Handles on the present state; values change with the next step.
  virtual OptimizerState state() const;
  /// Copies `state` into this optimizer. Throws Error, before anything changes, for another type of optimizer, another
  /// number of parameters, another division into groups, tensors that are missing, unexpected or of another shape,
  /// values out of range, or settings() that differ from this optimizer's (those that the state lacks are passed over:
  /// older files have none).
  void load_state(const OptimizerStateReader& state) { prepare_load(state)(); }
  void load_state(const OptimizerState& state);
  /// load_state() up to where it changes something: throws what that would throw, has read the whole state, and returns
  /// what is left to do. For several things that are to be loaded together or not at all.
  virtual std::function<void()> prepare_load(const OptimizerStateReader& state);

  /// State tensors that a formula may keep of a parameter.
  static constexpr int kMaxState = 3;

  /// Neighbouring elements with their state, for kernels. Pointers are to elements of the parameter's dtype; state is
  /// float for the half types, else of that dtype too.
  struct Run {
    void* parameter;         ///< read and written
    const void* gradient;    ///< read
    void* state[kMaxState];  ///< null beyond the tensors that the formula has
    std::int64_t numel;      ///< elements
    std::int64_t step;       ///< 1 in the first step of these elements
    double scalars[9];       ///< what scalars() says of this step
  };
  /// The update of all parameters of one dtype on one device whose groups have one form of the formula.
  struct Plan {
    DType dtype;            ///< of the parameters
    int form;               ///< see names_of_state()
    std::vector<Run> runs;  ///< in the order of the parameters
    Tensor table;           ///< `runs` for a CUDA device; see nn/optim/step_table.h
  };

 protected:
  Optimizer() = default;
  /// For one that hands on its work: the groups and parameters of `other`.
  void take_groups_of(const Optimizer& other);
  /// The next group. `form`: of its formula, see names_of_state(). Throws Error, and has done nothing then, for an
  /// undefined tensor, one that is not a floating-point leaf, or two that are one or share their memory.
  void add_parameters(std::vector<Tensor> parameters, int form);
  void check_not_empty() const;                                ///< Throws Error if there is no parameter at all.
  void check_group(std::size_t group) const;                   ///< Throws Error if there is no such group.
  void check_form(std::size_t group, bool fits) const;         ///< Throws Error unless `fits`.
  void check_lr(double lr) const;                              ///< Throws Error if it is out of range.
  int form(std::size_t group) const { return forms_[group]; }  ///< as given to add_parameters()
  void check_all_options() const;                              ///< check_options() of every group
  /// One more step of a parameter; returns how many that makes.
  std::int64_t count_step(std::size_t parameter) { return ++steps_[parameter]; }

  /// Names of the state tensors that a form of the formula keeps of a parameter; at most kMaxState.
  virtual std::vector<std::string> names_of_state(int form) const = 0;
  /// Throws Error for options that are out of range, or of another form than when the group was made.
  virtual void check_options(std::size_t group) const = 0;
  /// Throws Error if these could not be set.
  virtual void check_rates(std::size_t group, double lr, double momentum) const = 0;
  /// The options of a group that lr() and momentum() do not tell. A state is loaded only where they are the same.
  virtual std::map<std::string, double> settings(std::size_t group) const = 0;
  /// What the formula of step number `step` of a group's parameter takes from the options as they are now.
  virtual void scalars(std::size_t group, std::int64_t step, double* out) const = 0;
  /// Runs the kernel. `like` is on the plan's device.
  virtual void update(const Tensor& like, const Plan& plan) = 0;

 private:
  /// Parameters of one plan, in order, and their state, one flat buffer a name.
  struct Bucket {
    Device device;
    std::vector<std::string> state_names;
    std::vector<std::size_t> members;
    std::vector<std::int64_t> offsets;
    std::vector<Tensor> buffers;
    Plan plan;
    std::vector<std::size_t> group_of_runs;  // of the plan
    /// By member, made when needed: contiguous copies of what is not, with the same memory in every step.
    std::vector<Tensor> dense_parameters, dense_gradients;
    std::vector<std::pair<Tensor, Tensor>> copies_in, copies_out;  ///< from, to
  };

  void make_state();
  bool has_state() const { return with_state_ == parameters_.size(); }
  bool is_capturing(const Device& device) const;
  void check_members() const;
  void make_plan(Bucket& bucket, bool count);
  void prepare(Bucket& bucket);
  void launch(Bucket& bucket);
  std::vector<std::size_t> with_gradients() const;
  void uncount(std::int64_t skips);
  void settle_steps();
  Tensor state_view(const Bucket& bucket, std::size_t member, std::size_t which) const;

  std::vector<Tensor> parameters_;
  std::vector<std::size_t> group_of_;  // each parameter's
  std::vector<int> forms_;             // each group's
  std::vector<std::int64_t> steps_;
  std::vector<Bucket> buckets_;
  std::size_t with_state_ = 0;  // parameters that are in buckets: the first ones
  std::function<bool(bool finite)> agree_;
  // Of captured steps that the device may have left out: who knows, how many of them steps_ has taken off, and which
  // parameters they update.
  std::shared_ptr<detail::ScalerOnDevice> scaler_;
  std::int64_t skips_ = 0;
  std::vector<std::size_t> counted_;
};

namespace detail {
/// Whether the option is a momentum or a beta1.
template <typename Options>
bool has_momentum(const Options& options, double Options::*option) {
  if constexpr (requires { options.momentum; }) return &(options.*option) == &options.momentum;
  if constexpr (requires { options.beta1; }) return &(options.*option) == &options.beta1;
  return false;
}
}  // namespace detail

/// An optimizer whose options are a struct, one for each group of parameters. `kMomentum`: what momentum() is in it.
template <typename Options, double Options::*kMomentum>
class OptimizerWith : public Optimizer {
 public:
  /// The groups, to read and to change options: `for (auto& group : optimizer.param_groups()) group.options.lr *= 0.1;`
  std::vector<ParamGroupView<Options>> param_groups();
  /// One more; its parameters begin with no state. Throws Error as the constructor, and has done nothing then.
  void add_param_group(ParamGroup<Options> group);

  using Optimizer::set_lr;
  using Optimizer::set_momentum;
  double lr(std::size_t group = 0) const override { return options(group).lr; }
  void set_lr(double lr, std::size_t group) override { set(&Options::lr, lr, group); }
  double momentum(std::size_t group = 0) const override { return options(group).*kMomentum; }
  bool has_momentum() const override { return detail::has_momentum(Options(), kMomentum); }
  void set_momentum(double value, std::size_t group) override { set(kMomentum, value, group); }

 protected:
  /// Throws Error for options out of range.
  virtual void check(const Options& options) const = 0;
  /// The form of the formula that a group with these options has.
  virtual int form_of(const Options& options) const = 0;
  /// Whether a group of this form can go on with these options.
  virtual bool fits(const Options& options, int form) const { return form_of(options) == form; }

  void add_param_groups(std::vector<ParamGroup<Options>> groups);
  const Options& options(std::size_t group) const;

 private:
  void check_options(std::size_t group) const override { check_fits(options_[group], group); }
  void check_rates(std::size_t group, double lr, double momentum) const override;
  void check_fits(const Options& options, std::size_t group) const;
  void set(double Options::*option, double value, std::size_t group);

  std::vector<Options> options_;  // each group's
};

template <typename Options, double Options::*kMomentum>
std::vector<ParamGroupView<Options>> OptimizerWith<Options, kMomentum>::param_groups() {
  std::vector<ParamGroupView<Options>> groups;
  for (Options& options : options_) groups.push_back({{}, options});
  for (std::size_t i = 0; i < parameters().size(); ++i)
    groups[group_of_parameters()[i]].params.push_back(parameters()[i]);
  return groups;
}

template <typename Options, double Options::*kMomentum>
void OptimizerWith<Options, kMomentum>::add_param_group(ParamGroup<Options> group) {
  check(group.options);
  options_.reserve(options_.size() + 1);
  add_parameters(std::move(group.params), form_of(group.options));
  options_.push_back(group.options);
}

template <typename Options, double Options::*kMomentum>
void OptimizerWith<Options, kMomentum>::add_param_groups(std::vector<ParamGroup<Options>> groups) {
  for (ParamGroup<Options>& group : groups) add_param_group(std::move(group));
  check_not_empty();
}

template <typename Options, double Options::*kMomentum>
const Options& OptimizerWith<Options, kMomentum>::options(std::size_t group) const {
  check_group(group);
  return options_[group];
}

template <typename Options, double Options::*kMomentum>
void OptimizerWith<Options, kMomentum>::check_fits(const Options& options, std::size_t group) const {
  check(options);
  check_form(group, fits(options, form(group)));
}

template <typename Options, double Options::*kMomentum>
void OptimizerWith<Options, kMomentum>::check_rates(std::size_t group, double lr, double momentum) const {
  Options changed = options(group);
  changed.lr = lr;
  changed.*kMomentum = momentum;
  check_fits(changed, group);
}

template <typename Options, double Options::*kMomentum>
void OptimizerWith<Options, kMomentum>::set(double Options::*option, double value, std::size_t group) {
  Options changed = options(group);
  changed.*option = value;
  check_fits(changed, group);
  options_[group] = changed;
}

/// Options of LBFGS.
struct LBFGSOptions {
  double lr = 1.0;                  ///< length of a step along the direction; of the first one at most 1 / |g|_1 of it
  std::int64_t max_iter = 20;       ///< directions taken in a step()
  std::int64_t max_eval = 0;        ///< calls of the closure in a step(); 0: 1.25 max_iter
  double tolerance_grad = 1e-7;     ///< ends a step() where no element of the gradient is larger
  double tolerance_change = 1e-9;   ///< ends it where neither a parameter nor the loss changes by more
  std::int64_t history_size = 100;  ///< steps that the curvature is estimated from
};

/// Liu and Nocedal, "On the limited memory BFGS method for large scale optimization" (1989), as torch.optim.LBFGS
/// without a line search. It is no Optimizer, since a step() asks for loss and gradients several times:
///
///   optim::LBFGS lbfgs({image}, {.max_iter = 4});
///   Tensor loss = lbfgs.step([&] { lbfgs.zero_grad(); Tensor loss = f(image); loss.backward(); return loss; });
///
/// Sums are Tensor's: the same bits on any number of threads. Checkpoints do not keep its history.
class LBFGS {
 public:
  /// Floating-point leaves of one dtype on one device. Throws Error for others, and for options out of range.
  explicit LBFGS(std::vector<Tensor> parameters, LBFGSOptions options = {});
  /// Several steps along the gradients that the closure computes; parameters without a gradient stay. Returns the loss
  /// of its first call.
  Tensor step(const std::function<Tensor()>& closure);
  /// See nn::Module::zero_grad().
  void zero_grad(bool set_to_none = true);
  LBFGSOptions& options() { return options_; }  ///< may be changed between steps

 private:
  Tensor gradient() const;
  void move(const Tensor& direction, double length) const;
  Tensor direction(const Tensor& gradient);

  std::vector<Tensor> parameters_;
  LBFGSOptions options_;
  std::vector<Tensor> changes_, gradient_changes_;  // the last history_size, the oldest first
  Tensor direction_, last_gradient_;
  double length_ = 0.0, scale_ = 1.0;
  std::int64_t iterations_ = 0;
};

}  // namespace lockstep::optim
