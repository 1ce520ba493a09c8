#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/nn/module.h"

namespace lockstep::optim {

/// What a checkpoint keeps of an optimizer.
struct OptimizerState {
  std::string type;                       ///< "SGD", "Adam", "AdamW"
  std::vector<nn::NamedTensor> tensors;   ///< "steps", "momentum.0", ...; the number is the parameter's place
  std::map<std::string, double> scalars;  ///< "lr" and "momentum", which schedules change, and settings()
};

/// Note [Optimizers]
/// Changes parameters by their gradients. Holds handles on the tensors, so it sees what module.to() and load() put
/// behind them; its own state is made at the first step, where the parameters then are.
///
/// A step is one pass over parameter, gradient and state. The state of all parameters of a dtype is one buffer;
/// parameters that are neighbours in memory, and whose gradients are too, are updated as one run. The loops are
/// compiled without contraction into fused multiply-adds: an element's new value does not depend on its place in a run,
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
  /// another device or dtype since the first step. While the device's work is captured for a graph, the update is
  /// recorded and not counted as a step; throws Error then unless there was a step or prepare_step() before.
  virtual void step();
  /// Begins a step for parameters on CUDA devices: counts it, and queues what it takes from lr(), momentum() and the
  /// gradients' addresses. step() does this itself. Before each replay of a graph that has captured step():
  ///   schedule.step(); optimizer.prepare_step(); graph.launch();
  virtual void prepare_step();
  /// See nn::Module::zero_grad().
  void zero_grad(bool set_to_none = false);

  virtual double lr() const { return lr_; }  ///< learning rate of the next step
  virtual void set_lr(double lr);
  /// SGD's momentum, Adam's beta1: what OneCycle cycles.
  virtual double momentum() const = 0;
  virtual void set_momentum(double value) = 0;

  /// Half types keep their state in float: a beta2 of 0.999 has no effect in eight bits of mantissa.
  static DType state_dtype(DType parameter);

  const std::vector<Tensor>& parameters() const { return parameters_; }  ///< those it was made with
  /// "SGD", "Adam", ...: in checkpoints and messages.
  virtual const char* name() const = 0;

  /// Handles on the present state; values change with the next step.
  virtual OptimizerState state() const;
  /// Copies `state` into this optimizer. Throws Error, before anything changes, for another type of optimizer, another
  /// number of parameters, tensors that are missing, unexpected or of another shape, values out of range, or settings()
  /// that differ from this optimizer's (those that the state lacks are passed over: older files have none).
  virtual void load_state(const OptimizerState& state);

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
  /// The update of all parameters of one dtype on one device.
  struct Plan {
    DType dtype;            ///< of the parameters
    std::vector<Run> runs;  ///< in the order of the parameters
    Tensor table;           ///< `runs` for a CUDA device; see nn/optim/step_table.h
  };

 protected:
  /// `state_names`: one name for each state tensor of a parameter; at most kMaxState. Throws Error for an empty
  /// list, an undefined tensor, one that is not a floating-point leaf, or two that are one or share their memory.
  Optimizer(std::vector<Tensor> parameters, double lr, std::vector<std::string> state_names, const char* type);

  /// What of the options stays as it was constructed; a state is loaded only where they are the same.
  virtual std::map<std::string, double> settings() const { return {}; }
  /// What the formula of a parameter's step number `step` takes from the options as they are now.
  virtual void scalars(std::int64_t step, double* out) const = 0;
  /// Runs the kernel. `like` is on the plan's device.
  virtual void update(const Tensor& like, const Plan& plan) = 0;

 private:
  /// Parameters of one dtype and device, in order, and their state, one flat buffer a name.
  struct Group {
    Device device;
    std::vector<std::size_t> members;
    std::vector<std::int64_t> offsets;
    std::vector<Tensor> buffers;
    Plan plan;
    /// By member, made when needed: contiguous copies of what is not, with the same memory in every step.
    std::vector<Tensor> dense_parameters, dense_gradients;
    std::vector<std::pair<Tensor, Tensor>> copies_in, copies_out;  ///< from, to
  };

  void make_state();
  bool is_capturing(const Device& device) const;
  void make_plan(Group& group, bool count);
  void prepare(Group& group);
  void launch(Group& group);
  Tensor state_view(const Group& group, std::size_t member, std::size_t which) const;

  std::vector<Tensor> parameters_;
  std::vector<std::int64_t> steps_;
  std::vector<std::string> state_names_;
  std::vector<Group> groups_;
  double lr_;
};

}  // namespace lockstep::optim
