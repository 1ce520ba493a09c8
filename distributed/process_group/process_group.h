#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/failure/flight_recorder.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/process_group/work.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep {
class OwnProcess;
}

namespace lockstep::distributed {

class Executor;
class GroupFailure;

/// Who a rank is, and how long it waits.
struct ProcessGroupOptions {
  int rank = 0;        ///< of this process, from 0
  int world_size = 1;  ///< number of processes
  /// Deadline of every operation, from the moment it starts to run.
  Milliseconds timeout{300'000};
  /// Operations the flight recorder keeps.
  std::size_t recorded_operations = 1024;
  /// Of a group that was split from another: the job's number of each rank. Empty: the same.
  std::vector<int> ranks = {};
};

/// Note [ProcessGroup]
/// The ranks of a job that compute together. Every rank must issue the same collectives in the same order; they run in
/// the background in that order, and each call returns a Work at once. The tensors must stay untouched until the Work
/// has ended. All tensors are contiguous and on a device that the backend serves.
///
/// A group has an executor for each type of device that it serves, and for all of them one numbering, one flight
/// recorder and one failure. The public methods validate once, number, record, and hand a checked Operation to the
/// executor of the tensors' device. Argument errors throw lockstep::Error on the calling rank before anything is sent.
///
/// After a failure (see ProcessGroupError) the group is dead on every rank: the failed Work and every later call
/// rethrow the reason. Make a new group to go on.
class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  /// Lets queued operations end (each has its deadline), then leaves the group in good order.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return options_.rank; }                 ///< of this process, from 0
  int world_size() const { return options_.world_size; }     ///< number of processes
  Milliseconds timeout() const { return options_.timeout; }  ///< deadline of every operation
  /// "gloo", "nccl", ...; "self" for a world of one.
  std::string_view backend() const;

  /// Copies the root's values into every rank's `tensor`.
  WorkPtr broadcast(const Tensor& tensor, int root = 0);
  /// Replaces `tensor` by the reduction over all ranks; every rank gets the same bits. ReduceOp's bitwise reductions
  /// need integers or bool, and a tensor on the CPU.
  WorkPtr all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::sum);
  /// The sum over all ranks along the shard tree (Note [Shard tree]) with `shards` leaves, divided by the one float64
  /// element of `divisor`, which is read when the operation runs, so that an earlier one of this group may write it;
  /// undefined: 1. Every rank gets the same bits, and the same for every world size up to `shards`. `units` holds the
  /// sums of this rank's units, tree_units(shards_of_worker(shards, world_size, rank)), one after the other, each with
  /// as many elements as `output`, which may be the memory of `units` if there is one.
  WorkPtr all_reduce_tree(const Tensor& output, const Tensor& units, std::int64_t shards, const Tensor& divisor = {});
  /// all_reduce() with its result on the root alone; elsewhere `tensor` is left as it was.
  WorkPtr reduce(const Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum);
  /// `output` gets every rank's `input`, in rank order: output.numel() == world_size * input.numel().
  WorkPtr all_gather(const Tensor& output, const Tensor& input);
  /// The same, on the root alone; `output` is ignored, and may be undefined, elsewhere.
  WorkPtr gather(const Tensor& output, const Tensor& input, int root = 0);
  /// The reverse: rank r gets block r of the root's `input`, which is ignored, and may be undefined, elsewhere.
  WorkPtr scatter(const Tensor& output, const Tensor& input, int root = 0);
  /// Reduces `input` over all ranks; rank r gets block r: input.numel() == world_size * output.numel().
  WorkPtr reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::sum);
  /// Block i of `input` goes to rank i; block j of `output` comes from rank j.
  WorkPtr all_to_all(const Tensor& output, const Tensor& input);
  /// all_gather() of blocks of different sizes: `counts` has the number of elements that each rank gives, the same on
  /// every rank; input.numel() == counts[rank()], output.numel() is their sum, and blocks stand in rank order. A rank
  /// that gives another number than the others expect ends the group with an error that names both (on CUDA devices the
  /// counts of different ranks are not compared).
  WorkPtr all_gather_uneven(const Tensor& output, const Tensor& input, const std::vector<std::int64_t>& counts);
  /// all_to_all() of blocks of different sizes, in rank order: input_counts[i] elements of `input` go to rank i, and
  /// output_counts[j] of `output` come from rank j, which must send as many; else as all_gather_uneven() says.
  WorkPtr all_to_all_uneven(const Tensor& output, const Tensor& input, const std::vector<std::int64_t>& output_counts,
                            const std::vector<std::int64_t>& input_counts);

  /// Note [Lists of blocks]
  /// The same with each rank's block in a tensor of its own, in rank order, as PyTorch's functions of these names have
  /// them: nothing is copied together. A list has world_size() tensors of one dtype and device, which may have
  /// different sizes but for gather() and scatter(); all ranks give lists. What is written may share no memory with
  /// anything else of the operation, except that this rank's output may be its own input. Records and messages call
  /// these all_gather_uneven and all_to_all_uneven, whose errors they have; reduce_scatter, gather and scatter keep
  /// their names.
  ///
  /// outputs[r] gets the input of rank r, which has as many elements.
  WorkPtr all_gather(const std::vector<Tensor>& outputs, const Tensor& input);
  /// The same on the root alone; elsewhere `outputs` is ignored, and may be empty.
  WorkPtr gather(const std::vector<Tensor>& outputs, const Tensor& input, int root = 0);
  /// A list in braces; `{}` where it is ignored.
  WorkPtr gather(std::initializer_list<Tensor> outputs, const Tensor& input, int root = 0);
  /// Rank r gets the root's inputs[r]; elsewhere `inputs` is ignored, and may be empty.
  WorkPtr scatter(const Tensor& output, const std::vector<Tensor>& inputs, int root = 0);
  /// A list in braces; `{}` where it is ignored.
  WorkPtr scatter(const Tensor& output, std::initializer_list<Tensor> inputs, int root = 0);
  /// Rank r gets the reduction of all ranks' inputs[r], which have as many elements on all of them.
  WorkPtr reduce_scatter(const Tensor& output, const std::vector<Tensor>& inputs, ReduceOp op = ReduceOp::sum);
  /// inputs[i] goes to rank i; outputs[j] comes from rank j.
  WorkPtr all_to_all(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs);

  /// Ends on every rank only after every rank has called it.
  WorkPtr barrier();

  /// Point to point. The n-th send from a to b meets the n-th recv on b from a. Their dtypes and numbers of elements
  /// must agree, else the group ends with an error that names both (on CUDA devices they are not compared). These do
  /// not queue behind collectives or each other: any order of issue works, as long as both sides do issue them.
  WorkPtr send(const Tensor& tensor, int destination);
  /// The other end of send(); throws Error for `source` itself or outside the world.
  WorkPtr recv(const Tensor& tensor, int source);
  /// Sends one tensor to `peer` and receives another from it, which must call exchange() as well. Both or one may be
  /// of any size; the two directions run at once.
  WorkPtr exchange(const Tensor& send_tensor, const Tensor& recv_tensor, int peer);

  /// Note [Objects]
  /// Bytes of any length instead of tensors of known sizes, for what is small and seldom: settings, names, results. The
  /// calls are collectives, wait, and give the bytes back as they were given; what they mean is the program's business.
  /// More than 1 GiB from a rank throws Error. This one returns every rank's, in rank order.
  std::vector<std::string> all_gather_object(std::string_view object);
  /// The root's, on every rank; elsewhere `object` is ignored.
  std::string broadcast_object(std::string_view object, int root = 0);
  /// Every rank's on the root; nothing elsewhere.
  std::vector<std::string> gather_object(std::string_view object, int root = 0);
  /// The root's objects[rank()]; elsewhere `objects` is ignored. On the root they are as many as there are ranks.
  std::string scatter_object(const std::vector<std::string>& objects, int root = 0);

  /// Note [Split groups]
  /// Ranks that give the same color become a group of their own, numbered by `key` and, where keys are equal, in the
  /// order of their ranks here. A collective: who gives a negative color takes part and gets null.
  ///
  /// The new group has a numbering, a flight recorder, a monitor and threads of its own, and the connections of this
  /// one (on CUDA devices a communicator of its own), which it keeps alive. On the CPU no operation of one group waits
  /// for one of another, in whatever order each rank issues them. On CUDA devices ranks that are in two groups must
  /// issue the operations of both in the same order.
  ///
  /// A job's groups fail together: what ends one ends the group that it was split from, and all that were split from
  /// that, on every rank, and the errors name the operation, its group and the ranks by their numbers in the job. That
  /// an operation of the group itself never ends is noticed by its ranks, in the same way as in any group.
  std::shared_ptr<ProcessGroup> split(int color, int key = 0);
  /// split() by a list, the same on all ranks: those in it become a group, numbered by their places in it, and the
  /// others get null. Throws Error for one outside of the world, or named twice.
  std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks);
  /// The job's number of a rank of this group, as messages have it: `rank` itself unless the group is split from
  /// another. Throws Error for a rank outside.
  int job_rank(int rank) const;

  /// The last operations, oldest first, with the times they were queued, started and finished.
  std::vector<OperationRecord> records() const { return recorder_.records(); }
  /// Adds them to a file as JSON lines; see Note [Flight dumps]. Throws Error if it cannot be written.
  void dump(const std::string& path) const;

  /// The training step that operations belong to from now on, for records and reports; -1: none.
  /// DistributedDataParallel counts steps by itself. `checked`: ranks that call the same collective under different
  /// steps are told so, as if they had called different ones; for loops in which all ranks number steps alike. A
  /// checked number stays until the next one or -1.
  void set_step(std::int64_t step, bool checked = false);
  std::int64_t step() const { return step_; }  ///< that set_step() named last

  /// What a step of this rank has ended with, which the program may catch. Where other ranks then wait for this one,
  /// the report of their failure says what it was; it is forgotten when a collective that is issued later ends well.
  void remember_exception(std::string_view what);
  /// Returns body(), and remembers what it throws. For steps, which run the program's code between collectives.
  template <typename Body>
  decltype(auto) attempt(Body&& body) {
    try {
      return std::forward<Body>(body)();
    } catch (const std::exception& error) {
      remember_exception(error.what());
      throw;
    } catch (...) {
      remember_exception("no std::exception");
      throw;
    }
  }

  /// Calls `launch`, which launches a CUDA graph with collectives of this group on the current stream, and watches over
  /// what it puts there as over an operation called `what`: its deadline runs from the moment when the stream comes to
  /// it. Throws the group's error, and launches nothing, once the group has failed. Returns null where nothing can be
  /// captured.
  WorkPtr watch(std::string_view what, const std::function<void()>& launch);

  /// Gives up: ends every running and queued operation with an error and refuses more. Other ranks learn of it.
  void abort(std::string_view reason);
  /// True once the group is dead.
  bool failed() const;

  // For backends.

  /// Of a rank without others, or none that could fail. No operation may be called before add().
  explicit ProcessGroup(ProcessGroupOptions options, std::shared_ptr<ProcessGroup> parent = nullptr);
  /// `store` is the ranks' common ground for diagnosing failures and must be scoped to this group; null: nobody is
  /// asked.
  /// `parent`: the group that it was split from; null: none.
  ProcessGroup(ProcessGroupOptions options, StorePtr store, std::shared_ptr<ProcessGroup> parent = nullptr);
  /// Has tensors on this type of device served, before the first operation. The last executor added also runs what has
  /// no tensor, and names the backend.
  void add(DeviceType type, std::unique_ptr<Executor> executor);
  const ProcessGroupOptions& options() const { return options_; }  ///< as given to the constructor
  FlightRecorder& recorder() { return recorder_; }                 ///< of this group's operations
  /// Null in a group of the first constructor.
  const std::shared_ptr<GroupFailure>& failure() const { return failure_; }

 private:
  Executor& executor_of(const Tensor& tensor = {}) const;
  void abort_executors();
  std::exception_ptr end_of_one() const;
  WorkPtr issue(Operation operation);
  void check_tensor(const Tensor& tensor, const char* what, OperationKind kind) const;
  void check_rank(int rank, const char* what, OperationKind kind) const;
  void check_other_rank(int rank, const char* what, OperationKind kind) const;
  void check_reduction(const Tensor& tensor, ReduceOp op, OperationKind kind) const;
  void check_pair(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name, OperationKind kind) const;
  void check_apart(const Tensor& output, const Tensor& input, OperationKind kind) const;
  void check_counts(const Tensor& tensor, const char* what, const std::vector<std::int64_t>& counts,
                    OperationKind kind) const;
  void check_blocks(const Tensor& blocks, const char* blocks_name, const Tensor& one, const char* one_name,
                    OperationKind kind) const;
  const Tensor& own_block(const std::vector<Tensor>& list, const char* what, const Tensor& like,
                          OperationKind kind) const;
  void check_same_size(const std::vector<Tensor>& list, const char* what, const Tensor& one, const char* one_name,
                       OperationKind kind) const;

  ProcessGroupOptions options_;
  StorePtr store_;
  std::shared_ptr<ProcessGroup> parent_;  // outlives this group
  FlightRecorder recorder_;
  std::shared_ptr<const OwnProcess> made_in_;
  std::shared_ptr<GroupFailure> failure_;
  std::mutex executors_mutex_;        // of add(), split groups that come and go, and a failure's thread
  std::vector<ProcessGroup*> parts_;  // that were split from this one, as long as they live
  std::uint64_t splits_ = 0;
  std::array<std::unique_ptr<Executor>, kDeviceTypes> executors_;
  Executor* last_executor_ = nullptr;
  mutable std::mutex ended_mutex_;
  std::exception_ptr ended_alone_;  // of a group without failure_, under ended_mutex_
  std::mutex issue_mutex_;          // keeps numbers in the order of launch
  std::uint64_t collectives_ = 0;
  std::atomic<std::int64_t> step_ = -1;
  std::atomic<bool> step_checked_ = false;
  std::vector<std::uint64_t> sends_;  // by peer
  std::vector<std::uint64_t> recvs_;
  std::vector<std::uint64_t> exchanges_;
};

/// Shared by all that communicate through it.
using ProcessGroupPtr = std::shared_ptr<ProcessGroup>;

/// A world of one: every operation ends at once.
ProcessGroupPtr make_single_process_group(ProcessGroupOptions options = {},
                                          std::shared_ptr<ProcessGroup> parent = nullptr);

/// Marks code that only one rank runs. While the object lives, a collective that this thread issues is an error at once
/// and by name, in a job of one process too; without it the job would hang until the deadline, because the other ranks
/// never make the call.
///
///   if (job.is_rank0()) {
///     const Rank0Only scope("saving the checkpoint");
///     save(model, path);
///     ddp.step(batch, loss);  // throws: [all_reduce] was called on rank 0 inside rank0_only("saving the checkpoint"),
///     ...
///   }
///
/// Sends and receives between two ranks are allowed.
class Rank0Only {
 public:
  /// `what` must outlive the object: a literal.
  explicit Rank0Only(std::string_view what);
  ~Rank0Only();
  Rank0Only(const Rank0Only&) = delete;
  Rank0Only& operator=(const Rank0Only&) = delete;

 private:
  friend class ProcessGroup;
  static void check_outside(const Operation& operation, int rank);  // throws Error in a scope of this thread

  const Rank0Only* outer_;
  std::string_view what_;
};

/// Runs `body` on rank 0 alone, in such a scope: rank0_only(job, "saving", [&] { save(model, path); }). `job` is a Job
/// or a ProcessGroup.
template <typename Job, typename Body>
void rank0_only(const Job& job, std::string_view what, Body&& body) {
  if (job.rank() != 0) return;
  const Rank0Only scope(what);
  std::forward<Body>(body)();
}

}  // namespace lockstep::distributed
