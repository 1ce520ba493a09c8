#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/accumulate_grad.h"
#include "lockstep/core/tensor.h"
#include "lockstep/distributed/parallel/options.h"
#include "lockstep/distributed/parallel/reduction/no_sync.h"
#include "lockstep/distributed/parallel/reduction/rank_reduction.h"
#include "lockstep/distributed/parallel/reduction/reducer_trace.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Note [Reducer]
/// Reduces gradients over the ranks of a process group while backward still runs; how, is the RankReduction's business.
/// Each parameter's gradient is a view of a flat bucket. A hook on each parameter counts its bucket down; a full
/// bucket's reduction is launched at once, but strictly in bucket order, which is the same on every rank. When backward
/// has reached every leaf, buckets that are still open are closed, and backward() returns once all buckets are reduced,
/// so it is also what throws when a rank is gone.
///
/// Parameters that got no gradient on this rank count as zero. If no rank had one, they have none afterwards, as in one
/// process, so that weight decay and momentum leave them alone. With static_graph, what the first pass of this rank did
/// not use counts as ready from the start, so that its buckets need not wait for the end of the pass.
///
/// Hooks that a program has registered on the parameters' gradients (register_post_accumulate_grad_hook) wait until all
/// buckets are reduced (Note [Held hooks]): they run on every rank, in bucket order, for each parameter that any rank
/// used, and not in passes that only accumulate.
///
/// The reducer's own hooks are removed by the destructor. Not thread-safe: one backward pass at a time.
class Reducer {
 public:
  /// `parameters` must be leaves that require gradients, the same and in the same order on every rank. Of the options
  /// the buckets' sizes, static_graph and the hook count.
  Reducer(std::vector<nn::NamedTensor> parameters, ProcessGroupPtr group, const TrainingStepOptions& options = {});
  /// The same along the shard tree.
  Reducer(ShardSums& sums, ProcessGroupPtr group, const TrainingStepOptions& options);
  /// By a policy of the caller's, in buckets of the caller's: the parameters of each, by their places.
  Reducer(std::vector<nn::NamedTensor> parameters, std::unique_ptr<RankReduction> reduction, ProcessGroupPtr group,
          const TrainingStepOptions& options, const std::vector<std::vector<std::size_t>>& buckets);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Off: backward passes only add to the local gradients (gradient accumulation). The next synchronised pass reduces
  /// what has come together.
  void set_synchronize(bool value) { *synchronize_ = value; }
  bool synchronize() const { return *synchronize_; }  ///< as set last

  /// Begins a step: Module::zero_grad() for its parameters.
  void clear_gradients();

  /// What this rank's gradients are multiplied by before they are averaged; 1 at first.
  void set_weight(double value) { weight_ = value; }

  /// Takes part in a pass without a backward() of its own: for a rank that has no samples in this step. Its gradients
  /// count as they are (undefined: zero).
  void reduce_now();

  /// The same for `count` parameters from number `first` on, whose gradients are final while others are still computed:
  /// what can be sent of them is. The pass ends with reduce_now(). All ranks make the same calls.
  void reduce_early(std::size_t first, std::size_t count);

  /// After an exception in a pass: the next one begins anew. Gradients whose reduction is under way are dropped.
  /// Buckets that this rank has not launched are not sent, so ranks that wait for them wait until their deadline. A
  /// pass of a backward() that an exception breaks off is abandoned by itself.
  void abandon_pass();

  /// Names of the parameters that got no gradient on this rank in the last synchronised pass, nor in those that
  /// accumulated for it.
  std::vector<std::string> unused_parameters() const { return names_of(&Slot::unused); }
  /// Names of those that got none on any rank.
  std::vector<std::string> unused_everywhere() const { return names_of(&Slot::unused_everywhere); }
  /// Takes away the gradients that those had from before. For steps that began by clearing all gradients, to zeros.
  void drop_unused_gradients();
  /// Synchronised passes so far.
  std::uint64_t passes() const { return passes_; }
  const ReducerTrace& trace() const { return trace_; }  ///< of the last synchronised pass
  RankReduction& reduction() { return *reduction_; }

 private:
  struct Slot {
    std::size_t bucket = 0;
    std::size_t place = 0;  // in the bucket
    std::uint64_t hook = 0;
    bool ready = false;
    bool unused = false;
    bool had_none = false;           // no gradient from earlier passes, when it was marked as ready
    bool unused_everywhere = false;  // on all ranks
    bool absent = false;             // from the static graph
  };

  class PassOfBackward;
  friend class NoSync;

  void make_bucket(const std::vector<std::size_t>& slots, std::size_t index, std::size_t count);
  void allocate(Bucket& bucket);
  void on_gradient(std::size_t slot);
  void begin_pass(bool computed);
  void mark_ready(std::size_t slot);
  void launch_ready_buckets();
  void finish_pass();
  void settle_use();
  void run_held_hooks() const;
  void check_hooks() const;
  std::vector<std::string> names_of(bool Slot::*which) const;

  ProcessGroupPtr group_;
  std::unique_ptr<RankReduction> reduction_;
  std::vector<nn::NamedTensor> parameters_;
  detail::HeldHooks held_;   // the program's, by parameter
  std::vector<Slot> slots_;  // by parameter
  std::vector<bool> used_;   // has got a gradient since the last synchronised pass, be it in a pass of its own
  std::vector<Bucket> buckets_;
  bool early_ = false;                                                // the pass was begun by reduce_early()
  std::size_t next_bucket_ = 0;                                       // the first one not launched
  std::shared_ptr<bool> synchronize_ = std::make_shared<bool>(true);  // a NoSync may live longer
  double weight_ = 1.0;
  bool in_pass_ = false;
  bool computed_ = false;  // the pass has a backward() on this rank
  bool static_graph_;
  bool learned_ = false;  // what the static graph uses
  bool warned_ = false;
  std::uint64_t passes_ = 0;
  ReducerTrace trace_;
};

}  // namespace lockstep::distributed
