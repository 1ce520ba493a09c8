#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "distributed/parallel/communication_hook.h"
#include "distributed/process_group/process_group.h"
#include "nn/module.h"

namespace lockstep::distributed {

struct ReducerOptions {
  /// The first bucket is small, so that communication starts early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  /// Averages the buckets; null: an all-reduce does.
  CommunicationHookPtr hook = nullptr;
};

/// When things happened in the last synchronised backward pass; readings of steady_now_ns().
struct ReducerTrace {
  std::int64_t first_gradient_ns = 0;
  std::int64_t last_gradient_ns = 0;      ///< backward's computation ended here
  std::int64_t finished_ns = 0;           ///< all buckets reduced
  std::vector<std::int64_t> launched_ns;  ///< by bucket
};

/// Note [Reducer]
/// Averages gradients over the ranks of a process group while backward still runs. Each parameter's gradient is a view
/// of a flat bucket. A hook on each parameter counts its bucket down; a full bucket's all-reduce is launched at once,
/// but strictly in bucket order, which is the same on every rank. When backward has reached every leaf, buckets that
/// are still open are closed (parameters that got no gradient count as zero), and backward() returns once all buckets
/// are reduced, so it is also what throws when a rank is gone.
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
  bool synchronize() const { return synchronize_; }

  /// What this rank's gradients are multiplied by before they are averaged; 1 at first.
  void set_weight(double value) { weight_ = value; }

  /// Takes part in a pass without a backward() of its own: for a rank that has no samples in this step. Its gradients
  /// count as they are (undefined: zero).
  void reduce_now();

  std::size_t num_buckets() const { return buckets_.size(); }
  /// Names of the parameters that got no gradient on this rank in the last synchronised pass, nor in those that
  /// accumulated for it.
  std::vector<std::string> unused_parameters() const;
  /// Synchronised passes so far.
  std::uint64_t passes() const { return passes_; }
  const ReducerTrace& trace() const { return trace_; }

 private:
  struct Slot {
    nn::NamedTensor parameter;
    std::size_t bucket = 0;
    Tensor view;  // of the bucket, in the parameter's shape
    std::uint64_t hook = 0;
    bool ready = false;
    bool used = false;  // has got a gradient since the last synchronised pass, be it in a pass of its own
    bool unused = false;
  };
  struct Bucket {
    Tensor flat;
    OperationLabel label;
    std::vector<std::size_t> slots;
    std::size_t pending = 0;
    WorkPtr work;
    GradientBucket described;  // for the hook
  };

  void on_gradient(std::size_t slot);
  void begin_pass();
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
  std::uint64_t passes_ = 0;
  ReducerTrace trace_;
};

}  // namespace lockstep::distributed
