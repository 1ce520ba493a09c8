#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::distributed {

struct Division;

/// Note [Sharded optimizer]
/// An optimizer whose state is divided over the ranks of a group: ZeRO-1 (Rajbhandari et al., "ZeRO: Memory
/// Optimizations Toward Training Trillion Parameter Models", 2020). Gradients are the same on every rank, as
/// DistributedDataParallel leaves them; each rank updates its share of all elements with an ordinary optimizer, and the
/// new values are gathered. Elements are divided evenly, whatever the sizes of the parameters, in chunks, so that a
/// step needs no more memory besides than a chunk. An element's update depends on nothing but its own gradient and
/// state, so the weights have the same bits as with the undivided optimizer.
///
/// step() is a collective; set_lr(), set_momentum() and changed options must be the same on every rank. The state is
/// whole only after consolidate(), on rank 0, where it is like that of an undivided optimizer: a checkpoint says
/// nothing about who saved it, and can be loaded by any number of ranks, with and without this class.
///
/// Made with a TrainingStep instead of a group, it divides what the step's option `zero` says: with 2 (ZeRO-2) each
/// rank gets its part of the gradients alone, with 3 (ZeRO-3) it keeps its part of the parameters alone:
///
///   TrainingStep step(model, {.job = &job, .zero = 3});
///   auto optimizer = zero_redundancy<optim::AdamW>(step, {.lr = 1e-3});
///   for (const data::Batch& batch : loader.epoch(0)) {
///     Tensor loss = step(batch, f);
///     optimizer->clip_grad_norm_(1.0);
///     optimizer->step();
///   }
///
/// Parameters have no grad() then. clip_grad_norm_() and a GradScaler work on the optimizer, which is where gradients
/// are; step() lets go of them. Divided parameters have their values while a step, a forward or a backward computes
/// with them, and while the step's whole_parameters() live; evaluate(), save_checkpoint() and load_checkpoint() see to
/// that by themselves. Any other read throws Error. In lockstep mode the weights, and the norm to which gradients are
/// clipped, have the bits of the undivided step. Gradients of several passes (accumulation, several logical shards of a
/// rank) are added up whole, on the rank that computes them, before they are divided.
class ZeroRedundancyOptimizer final : public optim::Optimizer {
 public:
  /// `whole`: the undivided optimizer, of the same parameters, in the same order and groups, on every rank, contiguous;
  /// it has made no step, and so keeps no state yet. Its options are those of every share. Throws Error if the sizes
  /// of the parameters differ between the ranks.
  ZeroRedundancyOptimizer(std::unique_ptr<optim::Optimizer> whole, ProcessGroupPtr group,
                          std::size_t chunk_bytes = std::size_t{25} << 20);

  /// For parameters that `step` trains, of a model part those of this rank, and divides as its options say. A
  /// collective; `step` may be gone before this.
  ZeroRedundancyOptimizer(std::unique_ptr<optim::Optimizer> whole, TrainingStep& step,
                          std::size_t chunk_bytes = std::size_t{25} << 20);
  ~ZeroRedundancyOptimizer() override;

  void step() override;
  optim::GradNorm clip_grad_norm_(double max_norm, bool error_if_nonfinite = false) override;
  void clip_grad_value_(double limit) override;
  bool scale_gradients(double factor) override;
  void prepare_step() override;
  /// As many at a time as travel together.
  void visit_gradients(const std::function<void(const Tensor& parameter, const Tensor& grad)>& take) const override;
  /// optim::detail::gradient_squares() of the gradients that it has: for each of `parameters` the sum of its gradient's
  /// squares, with the same bits; 0 for those of others. A collective.
  std::vector<double> gradient_squares(const std::vector<Tensor>& parameters);
  /// Gradients are divided too, and so with no parameter.
  bool is_of_divided_gradients() const { return division_ != nullptr; }
  /// Those of other optimizers of its step too.
  void multiply_gradients(double factor) override;

  using Optimizer::set_lr;
  using Optimizer::set_momentum;
  double lr(std::size_t group = 0) const override { return local_->lr(group); }
  void set_lr(double lr, std::size_t group) override { local_->set_lr(lr, group); }
  double momentum(std::size_t group = 0) const override { return local_->momentum(group); }
  bool has_momentum() const override { return local_->has_momentum(); }
  void set_momentum(double value, std::size_t group) override { local_->set_momentum(value, group); }
  /// That of the optimizer inside.
  const char* name() const override { return local_->name(); }

  /// A collective: brings the state together on rank 0, until the next step.
  void consolidate();
  /// On rank 0, after consolidate(); otherwise throws Error.
  optim::OptimizerState state() const override;
  /// What consolidate() would bring together, without the values of tensors that are divided, on all ranks. A
  /// collective.
  optim::OptimizerState outline() const;
  /// Calls `take` with this rank's parts of those: `values` are the elements of tensor `name` from `begin` on.
  void visit_state(
      const std::function<void(const std::string& name, std::int64_t begin, const Tensor& values)>& take) const;
  /// Every rank gives the whole state, and reads its share.
  std::function<void()> prepare_load(const optim::OptimizerStateReader& state) override;

  /// The optimizer of this rank's share: the one that was given, with pieces of the parameters in their place.
  const optim::Optimizer& local() const { return *local_; }

 private:
  friend optim::GradNorm clip_grad_norm_(const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                                         double max_norm, bool error_if_nonfinite);

  /// Elements of a group that are gathered together: [begin, begin + size), `block` for each rank.
  struct Chunk {
    std::int64_t begin;
    std::int64_t size;
    std::int64_t block;
  };
  /// Parameters of one dtype and device, their elements numbered through.
  struct Group {
    DType dtype;
    Device device;
    std::vector<std::size_t> members;   // kNone: a parameter of the division, not of this optimizer
    std::vector<std::int64_t> offsets;  // one more than members
    std::vector<Chunk> chunks;
    std::size_t flat;  // of the division, if there is one
  };
  /// A part of a parameter: `size` elements from `begin`, at `at` of its group's numbering.
  struct Piece {
    std::size_t parameter;
    std::int64_t begin;
    std::int64_t size;
    std::int64_t at;
    std::size_t flat;
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::vector<std::string> names_of_state(int) const override { return {}; }
  void check_options(std::size_t) const override {}
  void check_rates(std::size_t, double, double) const override {}
  std::map<std::string, double> settings(std::size_t) const override { return {}; }
  void scalars(std::size_t, std::int64_t, double*) const override {}
  void update(const Tensor&, const Plan&) override {}
  void set_up(std::size_t chunk_bytes);
  void divide(std::size_t chunk_bytes);
  void divide_by_flats();
  bool has_gradient(std::size_t parameter) const;
  optim::GradNorm scale_to_norm(double norm, double max_norm, bool error_if_nonfinite);
  std::vector<double> squares_of_own() const;
  void add_up_squares(const Group& group, std::vector<std::vector<double>>& sums) const;
  void lend_flats();
  static std::vector<Piece> pieces_in(const Group& group, std::int64_t begin, std::int64_t end);
  std::pair<std::int64_t, std::int64_t> own_range(const Chunk& chunk) const;
  void lend();
  void gather(const Group& group);
  bool keeps(std::size_t parameter, const std::string& state) const;
  Tensor steps_of_all(const optim::OptimizerState& local) const;
  std::vector<std::string> names_in(const Group& group) const;
  void add_left_out(optim::OptimizerState& whole,
                    const std::function<Tensor(const Shape& sizes, const TensorOptions& options)>& make) const;

  ProcessGroupPtr group_;
  std::shared_ptr<Division> division_;  // null: gradients are whole
  std::vector<std::size_t> places_;     // of the parameters, in the division
  std::vector<Group> groups_;
  std::vector<Piece> own_;      // in the order of groups and chunks; local_'s parameters
  std::vector<Tensor> shares_;  // leaves that stand for own_; one that is empty if there are none
  std::unique_ptr<optim::Optimizer> local_;
  std::optional<optim::OptimizerState> whole_;
};

/// Optimizer::clip_grad_norm_() of several optimizers, by the norm of all their gradients taken as one vector; a
/// collective where some are divided. An error of a norm that is not finite leaves all of them alone.
optim::GradNorm clip_grad_norm_(const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                                double max_norm, bool error_if_nonfinite = false);

namespace detail {
template <typename Options, double Options::*kMomentum>
Options options_of(const optim::OptimizerWith<Options, kMomentum>&);
}  // namespace detail

/// `zero_redundancy<optim::AdamW>(model.parameters(), job.process_group(), {.lr = 1e-3})`. An optimizer of one's own
/// that does not derive from optim::OptimizerWith is given its options by name: MyOptions{.lr = 1e-3}.
template <typename O, typename Options = decltype(detail::options_of(std::declval<const O&>()))>
std::unique_ptr<ZeroRedundancyOptimizer> zero_redundancy(std::vector<Tensor> parameters, ProcessGroupPtr group,
                                                         const Options& options = {}) {
  return std::make_unique<ZeroRedundancyOptimizer>(std::make_unique<O>(std::move(parameters), options),
                                                   std::move(group));
}

/// The same for the parameters of a step's module, divided as the step's options say.
template <typename O, typename Options = decltype(detail::options_of(std::declval<const O&>()))>
std::unique_ptr<ZeroRedundancyOptimizer> zero_redundancy(TrainingStep& step, const Options& options = {}) {
  return std::make_unique<ZeroRedundancyOptimizer>(std::make_unique<O>(step.module().parameters(), options), step);
}

}  // namespace lockstep::distributed
