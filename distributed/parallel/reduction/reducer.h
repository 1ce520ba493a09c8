#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/parallel/reduction/communication_hook.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Options of Reducer.
struct ReducerOptions {
  /// The first bucket is small, so that communication starts early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;  ///< size of the other buckets, about
  /// Averages the buckets; null: an all-reduce does.
  CommunicationHookPtr hook = nullptr;
  /// See DistributedDataParallelOptions.
  bool static_graph = false;
};

/// When things happened in the last synchronised backward pass; readings of steady_now_ns().
struct ReducerTrace {
  std::int64_t first_gradient_ns = 0;     ///< backward reached the first parameter
  std::int64_t last_gradient_ns = 0;      ///< backward's computation ended here
  std::int64_t finished_ns = 0;           ///< all buckets reduced
  std::vector<std::int64_t> launched_ns;  ///< by bucket
};

/// Note [Reducer]
/// Averages gradients over the ranks of a process group while backward still runs. Each parameter's gradient is a view
/// of a flat bucket. A hook on each parameter counts its bucket down; a full bucket's all-reduce is launched at once,
/// but strictly in bucket order, which is the same on every rank. When backward has reached every leaf, buckets that
/// are still open are closed, and backward() returns once all buckets are reduced, so it is also what throws when a
/// rank is gone.
///
/// Parameters that got no gradient on this rank count as zero. If no rank had one, they have none afterwards, as in one
/// process, so that weight decay and momentum leave them alone: how many ranks used each parameter travels with the
/// last bucket, which costs no operation of its own. With static_graph, what the first pass of this rank did not use
/// counts as ready from the start, so that its buckets need not wait for the end of the pass.
///
/// The hooks are removed by the destructor. Not thread-safe: one backward pass at a time.
class Reducer {
 public:
  /// `parameters` must be leaves that require gradients, the same and in the same order on every rank.
  Reducer(std::vector<nn::NamedTensor> parameters, ProcessGroupPtr group, ReducerOptions options = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Off: backward passes only add to the local gradients (gradient accumulation). The next synchronised pass averages
  /// what has come together.
  void set_synchronize(bool value) { synchronize_ = value; }
  bool synchronize() const { return synchronize_; }  ///< as set last

  /// Module::zero_grad() for its parameters, a bucket at a time where the gradients lie in buckets.
  void zero_gradients();

  /// What this rank's gradients are multiplied by before they are averaged; 1 at first.
  void set_weight(double value) { weight_ = value; }

  /// Takes part in a pass without a backward() of its own: for a rank that has no samples in this step. Its gradients
  /// count as they are (undefined: zero).
  void reduce_now();

  /// After an exception in a pass: the next one begins anew. Buckets that this rank has not launched are not sent, so
  /// ranks that wait for them wait until their deadline.
  void abandon_pass();

  std::size_t num_buckets() const { return buckets_.size(); }  ///< that the gradients travel in
  /// Names of the parameters that got no gradient on this rank in the last synchronised pass, nor in those that
  /// accumulated for it.
  std::vector<std::string> unused_parameters() const;
  /// Names of those that got none on any rank.
  std::vector<std::string> unused_everywhere() const;
  /// Takes away the gradients that those had from before. For steps that began by clearing all gradients, to zeros.
  void drop_unused_gradients();
  /// Synchronised passes so far.
  std::uint64_t passes() const { return passes_; }
  const ReducerTrace& trace() const { return trace_; }  ///< of the last synchronised pass

 private:
  struct Slot {
    nn::NamedTensor parameter;
    std::size_t bucket = 0;
    Tensor view;  // of the bucket, in the parameter's shape
    std::uint64_t hook = 0;
    bool ready = false;
    bool used = false;  // has got a gradient since the last synchronised pass, be it in a pass of its own
    bool unused = false;
    bool had_none = false;           // no gradient from earlier passes, when it was marked as ready
    bool unused_everywhere = false;  // on all ranks
    bool absent = false;             // from the static graph
  };
  struct Bucket {
    Tensor flat;  // the last one's has a place for each slot behind its gradients: was it used?
    OperationLabel label;
    std::vector<std::size_t> slots;
    std::size_t pending = 0;
    WorkPtr work;
    GradientBucket described;  // for the hook
  };

  void on_gradient(std::size_t slot);
  void begin_pass(bool computed);
  void note_use();
  void spread_use();
  void mark_ready(Slot& slot);
  void launch_ready_buckets();
  void finish_pass();

  ProcessGroupPtr group_;
  CommunicationHookPtr hook_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::size_t next_bucket_ = 0;  // the first one not launched
  bool synchronize_ = true;
  double weight_ = 1.0;
  bool in_pass_ = false;
  bool computed_ = false;  // the pass has a backward() on this rank
  bool static_graph_;
  bool learned_ = false;  // what the static graph uses
  bool warned_ = false;
  bool uses_all_ = false;
  Tensor use_;  // [slots], the end of the last bucket
  WorkPtr use_work_;
  std::uint64_t passes_ = 0;
  ReducerTrace trace_;
};

}  // namespace lockstep::distributed
