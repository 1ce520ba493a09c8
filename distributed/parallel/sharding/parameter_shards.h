#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/distributed/parallel/sharding/division.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// Note [Gathered parameters]
/// ZeRO-3: each rank keeps its blocks of the parameters' values, and a parameter's storage is *absent*: pending (Note
/// [Pending values]), with a computation that gathers the parameter's unit. So whoever reads a parameter, in forward,
/// in a backward function that has saved it, in a block that is computed again, or by a name that a tied layer has,
/// gets its values, and nothing in `nn/` or `autograd/` knows of it. Between steps, when a read by one rank would wait
/// for others that do not read, it is an Error that says what to do.
///
/// In a step values may travel, and so be, rounded to another dtype (TrainingStepOptions::gather_dtype); the blocks,
/// and values that are made whole, are not.
///
/// Values are dropped, by giving the parameter another absent storage of the same version, where no operation can be
/// reading them: when a module of another unit is called (Module::set_call_hook), when the last of the unit's gradients
/// is there (with frozen parameters, which backward may still read, the first one of another unit), and at the end of a
/// pass. Unit 0 stays for a step. A unit none of whose parameters gets a gradient, which backward reads because earlier
/// ones do or because its input needs one (a teacher), has no such moment: from its read in backward on it stays until
/// backward ends, and many of them need memory for all of them then. Each read of an absent unit also starts to gather
/// the one that is expected next.
///
/// Gathers are collectives of a group of their own, so that their order and that of the reductions need not agree. A
/// pass of forward and backward makes every gather of a list, in its order: units as they stand, then in reverse. A
/// rank that has no use for one makes it all the same, and one with fewer passes than others (a short batch, or 8
/// logical shards on 3 ranks) plays the list alone, before its own passes, so that the last passes of all ranks, whose
/// gradients travel, are made together. A unit that is read again behind its place in the list is gathered once more;
/// the ranks that play the list alone learn of it before the next step. Labels are compared, so that gathers of two
/// units never meet (on CUDA devices they are not compared). A pass ends with a collective that nobody waits for: who
/// gathers a unit once more than others is named by it, also where these gather nothing any more.
/// Of a part of a model units are gathered at the beginning of a step, and dropped at its end.
///
/// With TrainingStepOptions::gather_within each rank keeps, besides its block, the blocks of the ranks that have its
/// place in their own group of neighbours, as a step gathers them: so the ranks of a group have all of them, and a step
/// gathers within it. They are exchanged anew before a step or forward when blocks have changed. What is made whole for
/// the user is gathered from all ranks.
///
/// In the first step, when no list is known to be that of the model, ranks that play along are told what comes.
class ParameterShards : public std::enable_shared_from_this<ParameterShards> {
 public:
  /// A collective. Values must be the same on all ranks; this drops them.
  static std::shared_ptr<ParameterShards> make(nn::Module& module, std::shared_ptr<Division> division,
                                               ProcessGroup& group);
  ~ParameterShards();
  ParameterShards(const ParameterShards&) = delete;
  ParameterShards& operator=(const ParameterShards&) = delete;
  /// Those that divide a module's parameters, all of them: of a part of a step's module too. Null: they are whole.
  static std::shared_ptr<ParameterShards> of(const nn::Module& module);

  /// Around a step of the library's, in which this rank makes so many passes. A collective.
  void begin_step(std::int64_t passes);
  /// When the losses are summed: the last pass's forward is over, on a rank without a pass in this step too, which
  /// takes part in the others' last one. From here on all ranks may give up alike.
  void end_last_forward();
  /// Without a pass in this step: takes part in backward of the others' last one.
  void play_last_backward();
  void begin_pass();  ///< before a forward that has a backward
  void end_pass();
  void end_step();
  /// Around a forward of the user's. What it records is in the user's hands: parameters may be read until the end of
  /// the next backward.
  void begin_forward();
  void end_forward(bool recorded);
  /// After an exception: drops what is gathered. Ranks that wait for this one do so until their deadline.
  void abandon();

  /// Makes all values whole, and back; nests. A collective.
  void make_whole();
  void divide();
  /// Calls `take` with this rank's blocks of the values: elements of a parameter from `begin` on.
  void visit_own(
      const std::function<void(const Tensor& parameter, std::int64_t begin, const Tensor& values)>& take) const;
  /// The ranks, as the gathers' own group.
  ProcessGroup& group() { return *group_; }
  /// Before who changes the shards does it, and after.
  void check_divided(std::string_view what = "[ZeroRedundancyOptimizer] a step was made") const;
  void on_update();
  /// While values are whole, which replace the shards in the end: calls `write` then, to change those once more.
  void when_divided(std::function<void()> write);

 private:
  friend class AbsentValues;
  /// Where this rank is, in this order.
  enum class Phase : std::uint8_t {
    apart,     ///< nobody may read
    reading,   ///< the user may
    step,      ///< in a step, and in no pass
    forward,   ///< in a pass of a step
    backward,  ///< likewise
  };
  struct State {
    std::vector<Tensor> gathered;  // by flat, [ranks * block]; none: not on the way
    std::vector<WorkPtr> works;
    bool whole = false;  // the parameters have values
    std::size_t members = 0, missing = 0;
    bool frozen = false;   // it has parameters that get no gradient, and may be read when all gradients are there
    bool through = false;  // all gradients are there, and the values stay until the next unit's come
    OperationLabel label;
  };

  ParameterShards(nn::Module& module, std::shared_ptr<Division> division, ProcessGroup& group);
  const std::string& name_of(std::size_t unit) const;
  std::vector<Tensor> values_of(std::size_t unit);
  bool is_on_the_way(std::size_t unit) const { return !states_[unit].works.empty() || !states_[unit].gathered.empty(); }
  void start(std::size_t unit);
  void want(std::size_t unit);
  void expect_next(std::size_t unit);
  void pass_over(std::size_t unit);
  void go_backward();
  bool in_step() const { return phase_ >= Phase::step; }
  bool in_pass() const { return phase_ >= Phase::forward; }
  bool is_backward() const { return phase_ == Phase::backward; }
  bool is_led() const { return in_pass() && leader_; }
  std::int64_t agree_on(std::int64_t unit);
  bool leads() const { return is_led() && division_->rank == *leader_; }
  bool follows() const { return is_led() && division_->rank != *leader_; }
  void follow_until(std::int64_t wanted);
  void play_pass();
  void drop(std::size_t unit);
  void drop_all(bool unit0_too);
  void drop_unread() noexcept;
  void make_absent(std::size_t unit);
  void settle(std::size_t unit);
  void close();
  void close_after_backward();
  const nn::NamedTensor* recast() const;
  void check_not_replaced() const;
  void on_call(std::size_t unit);
  void on_gradient(std::size_t unit);
  void agree_on_lists();
  void gather_all();
  bool is_rounded(const Flat& flat) const;
  void exchange_blocks();
  Tensor in_order_of_ranks(const Tensor& gathered, const Flat& flat) const;

  const std::string model_;  // its type
  std::shared_ptr<Division> division_;
  ProcessGroupPtr group_;
  ProcessGroupPtr near_;            // the ranks that gather in a step, if they are not all
  ProcessGroupPtr far_;             // those with this one's place in their groups
  std::vector<Tensor> blocks_far_;  // by flat, [ranks of far_ * block]: their blocks
  std::vector<State> states_;       // by unit
  std::vector<std::uint64_t> hooks_;
  std::vector<std::size_t> lists_[2];  // units in the order of a pass's gathers: forward, backward
  std::vector<std::size_t> made_[2];   // as this pass has made them
  std::size_t place_[2] = {0, 0};      // in the lists
  bool repeated_ = false;              // a unit was read behind its place
  Phase phase_ = Phase::apart;
  bool plays_last_ = false;
  bool closing_ = false;      // at the end of this backward
  WorkPtr end_;               // of the last pass, see Note [Gathered parameters]
  int whole_ = 0;             // calls of make_whole() without divide()
  bool stays_whole_ = false;  // behind the last divide(), which found a parameter that does not fit
  std::vector<std::function<void()>> written_when_divided_;
  static constexpr std::int64_t kListen = -1, kBackward = -2, kEnd = -3;
  std::optional<int> leader_;     // of a first step with different numbers of passes
  std::int64_t steps_ = 0;        // that have begun
  bool blocks_changed_ = true;    // since they were exchanged
  std::vector<StoragePtr> lent_;  // whose addresses the user may have
};

}  // namespace lockstep::distributed
