#include "lockstep/distributed/process_group/process_group.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/own_process.h"
#include "lockstep/distributed/collectives/shard_tree.h"
#include "lockstep/distributed/failure/flight_dump.h"
#include "lockstep/distributed/failure/group_failure.h"
#include "lockstep/distributed/failure/process_end.h"
#include "lockstep/distributed/process_group/executor.h"

namespace lockstep::distributed {
namespace {

constexpr std::size_t kLongestException = 400;  // of what is told of one
// Within so long all ranks of a collective have seen its end.
constexpr Milliseconds kTogether{100};

// The others need not wait for operations that an exception has taken this rank away from. But what all ranks have just
// done together, and found to be an error, say, they shall come to the end of.
void end_by_exception(GroupFailure& failure) {
  const PeerMonitor* monitor = failure.monitor();
  const std::string reason = unwinding_reason(monitor ? monitor->exception() : "");
  if (monitor && !failure.failing() && monitor->since_last_collective() < kTogether)
    std::this_thread::sleep_for(kTogether);
  failure.end_by_own_doing(reason);
}

// Of a group that was split from another, in which others may wait for this rank before that one has come to its end.
void leave_by_exception(GroupFailure& failure, const std::function<void(std::string_view what)>& remember) {
  remember(unwinding_message());
  if (PeerMonitor* const monitor = failure.monitor(); monitor && !failure.failing())
    monitor->set_ended_by(unwinding_reason(monitor->exception()));
}

}  // namespace

ProcessGroup::ProcessGroup(ProcessGroupOptions options, std::shared_ptr<ProcessGroup> parent)
    : options_(std::move(options)),
      parent_(std::move(parent)),
      recorder_(options_.recorded_operations,
                options_.ranks.empty() ? options_.rank : options_.ranks.at(static_cast<std::size_t>(options_.rank)),
                options_.world_size),
      made_in_(std::make_shared<OwnProcess>()) {
  LOCKSTEP_CHECK(options_.world_size >= 1, "[ProcessGroup] world_size is {}; expected at least 1", options_.world_size);
  LOCKSTEP_CHECK(options_.rank >= 0 && options_.rank < options_.world_size,
                 "[ProcessGroup] rank is {}; expected 0 to {} for a world of {}", options_.rank,
                 options_.world_size - 1, options_.world_size);
  LOCKSTEP_CHECK(options_.timeout.count() > 0, "[ProcessGroup] timeout is {} ms; expected a positive one",
                 options_.timeout.count());
  for (auto* counts : {&sends_, &recvs_, &exchanges_}) counts->resize(static_cast<std::size_t>(options_.world_size));
}

ProcessGroup::ProcessGroup(ProcessGroupOptions options, StorePtr store, std::shared_ptr<ProcessGroup> parent)
    : ProcessGroup(std::move(options), std::move(parent)) {
  store_ = std::move(store);
  GroupFailure::Place place{.rank = rank(), .world_size = world_size(), .ranks = options_.ranks};
  if (parent_) place.parent = parent_->failure_;
  failure_ =
      std::make_shared<GroupFailure>(recorder_, std::move(place), timeout(), store_, [this] { abort_executors(); });
  if (parent_) {
    const std::lock_guard lock(parent_->executors_mutex_);
    parent_->parts_.push_back(this);
  }
  FlightDumps::add(recorder_);
  failure_->start();
}

ProcessGroup::~ProcessGroup() {
  if (!made_in_->is_here()) {
    // In a forked child: Note [Another process's objects].
    FlightDumps::remove(recorder_);
    for (auto& executor : executors_) leave_for_ever(executor);
    leave_for_ever(failure_, store_, parent_);
    return;
  }
  if (failure_ && std::uncaught_exceptions() > 0) {
    if (parent_)  // the exception may stay within the group's scope, on all ranks alike, and the job goes on
      leave_by_exception(*failure_, [this](std::string_view what) { remember_exception(what); });
    else
      end_by_exception(*failure_);
  }
  for (auto executor = executors_.rbegin(); executor != executors_.rend(); ++executor)
    if (*executor) (*executor)->stop();
  if (failure_) failure_->stop();
  FlightDumps::remove(recorder_);  // a world of one has been added by its job
  if (!parent_) return;
  const std::lock_guard lock(parent_->executors_mutex_);
  std::erase(parent_->parts_, this);
}

void ProcessGroup::add(DeviceType type, std::unique_ptr<Executor> executor) {
  auto& place = executors_[static_cast<std::size_t>(type)];
  LOCKSTEP_CHECK(!place, "[ProcessGroup] {} already serves these tensors; {} cannot be added", place->backend(),
                 executor->backend());
  const std::lock_guard lock(executors_mutex_);
  place = std::move(executor);
  last_executor_ = place.get();
  if (failed()) place->abort();
}

Executor& ProcessGroup::executor_of(const Tensor& tensor) const {
  LOCKSTEP_CHECK(last_executor_, "[ProcessGroup] has no backend; expected a group that a backend has made");
  if (!tensor.defined()) return *last_executor_;
  const auto& own = executors_[static_cast<std::size_t>(tensor.device().type)];
  return own ? *own : *last_executor_;
}

std::string_view ProcessGroup::backend() const {
  return executor_of().backend();
}

WorkPtr ProcessGroup::watch(std::string_view what, const std::function<void()>& launch) {
  return executor_of().watch(what, launch);
}

void ProcessGroup::abort(std::string_view reason) {
  if (failure_) {
    failure_->end_by_own_doing(fmt::format("aborted on this rank: {}", reason));
    return;
  }
  const std::lock_guard lock(ended_mutex_);
  if (!ended_alone_)
    ended_alone_ = std::make_exception_ptr(
        ProcessGroupError(fmt::format("the group of one rank was aborted on this rank: {}", reason)));
}

// Of a group without a failure of its own, which nothing but abort() ends.
std::exception_ptr ProcessGroup::end_of_one() const {
  {
    const std::lock_guard lock(ended_mutex_);
    if (ended_alone_) return ended_alone_;
  }
  if (!parent_) return nullptr;
  return parent_->failure_ ? parent_->failure_->error() : parent_->end_of_one();
}

void ProcessGroup::abort_executors() {
  const std::lock_guard lock(executors_mutex_);
  for (const auto& executor : executors_)
    if (executor) executor->abort();
  for (ProcessGroup* part : parts_) part->abort_executors();
}

bool ProcessGroup::failed() const {
  return failure_ ? failure_->failing() : end_of_one() != nullptr;
}

WorkPtr ProcessGroup::broadcast(const Tensor& tensor, int root) {
  constexpr auto kind = OperationKind::broadcast;
  check_tensor(tensor, "tensor", kind);
  check_rank(root, "root", kind);
  return issue({.kind = kind, .input = tensor, .output = tensor, .peer = root});
}

WorkPtr ProcessGroup::all_reduce(const Tensor& tensor, ReduceOp op) {
  constexpr auto kind = OperationKind::all_reduce;
  check_tensor(tensor, "tensor", kind);
  check_reduction(tensor, op, kind);
  return issue({.kind = kind, .input = tensor, .output = tensor, .reduce = op});
}

WorkPtr ProcessGroup::all_reduce_tree(const Tensor& output, const Tensor& units, std::int64_t shards,
                                      const Tensor& divisor) {
  constexpr auto kind = OperationKind::all_reduce_tree;
  check_shards(shards, world_size(), "all_reduce_tree");
  check_tensor(output, "output", kind);
  check_tensor(units, "units", kind);
  check_pair(output, "output", units, "units", kind);
  LOCKSTEP_CHECK(output.is_floating_point(), "[all_reduce_tree] expected floating-point tensors, found {}",
                 name(output.dtype()));
  const auto count = static_cast<std::int64_t>(tree_units(shards_of_worker(shards, world_size(), rank())).size());
  LOCKSTEP_CHECK(units.numel() == count * output.numel(),
                 "[all_reduce_tree] units {} has {} elements; expected {}: those of output {} for each of the {} units "
                 "of rank {} of {} with {} shards",
                 to_string(units.sizes()), units.numel(), count * output.numel(), to_string(output.sizes()), count,
                 rank(), world_size(), shards);
  LOCKSTEP_CHECK(count == 1 || output.storage() != units.storage(),
                 "[all_reduce_tree] output shares memory with {} units; expected memory of its own", count);
  LOCKSTEP_CHECK(!divisor.defined() || (divisor.numel() == 1 && divisor.dtype() == kFloat64),
                 "[all_reduce_tree] the divisor must be one float64 element, found {} {}",
                 divisor.defined() ? name(divisor.dtype()) : "", divisor.defined() ? to_string(divisor.sizes()) : "");
  return issue({.kind = kind, .input = units, .output = output, .shards = shards, .divisor = divisor});
}

WorkPtr ProcessGroup::reduce(const Tensor& tensor, int root, ReduceOp op) {
  constexpr auto kind = OperationKind::reduce;
  check_tensor(tensor, "tensor", kind);
  check_rank(root, "root", kind);
  check_reduction(tensor, op, kind);
  return issue({.kind = kind, .input = tensor, .output = tensor, .peer = root, .reduce = op});
}

WorkPtr ProcessGroup::all_gather(const Tensor& output, const Tensor& input) {
  constexpr auto kind = OperationKind::all_gather;
  check_blocks(output, "output", input, "input", kind);
  return issue({.kind = kind, .input = input, .output = output});
}

WorkPtr ProcessGroup::gather(const Tensor& output, const Tensor& input, int root) {
  constexpr auto kind = OperationKind::gather;
  check_rank(root, "root", kind);
  if (rank() == root)
    check_blocks(output, "output", input, "input", kind);
  else
    check_tensor(input, "input", kind);
  return issue({.kind = kind, .input = input, .output = rank() == root ? output : Tensor(), .peer = root});
}

WorkPtr ProcessGroup::scatter(const Tensor& output, const Tensor& input, int root) {
  constexpr auto kind = OperationKind::scatter;
  check_rank(root, "root", kind);
  if (rank() == root)
    check_blocks(input, "input", output, "output", kind);
  else
    check_tensor(output, "output", kind);
  return issue({.kind = kind, .input = rank() == root ? input : Tensor(), .output = output, .peer = root});
}

WorkPtr ProcessGroup::reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op) {
  constexpr auto kind = OperationKind::reduce_scatter;
  check_blocks(input, "input", output, "output", kind);
  check_reduction(input, op, kind);
  return issue({.kind = kind, .input = input, .output = output, .reduce = op});
}

WorkPtr ProcessGroup::all_to_all(const Tensor& output, const Tensor& input) {
  constexpr auto kind = OperationKind::all_to_all;
  check_tensor(input, "input", kind);
  check_tensor(output, "output", kind);
  check_pair(output, "output", input, "input", kind);
  LOCKSTEP_CHECK(input.numel() == output.numel() && input.numel() % world_size() == 0,
                 "[all_to_all] input {} and output {} must have equally many elements, a multiple of the world size {}",
                 to_string(input.sizes()), to_string(output.sizes()), world_size());
  check_apart(output, input, kind);
  return issue({.kind = kind, .input = input, .output = output});
}

WorkPtr ProcessGroup::barrier() {
  return issue({.kind = OperationKind::barrier});
}

WorkPtr ProcessGroup::send(const Tensor& tensor, int destination) {
  constexpr auto kind = OperationKind::send;
  check_tensor(tensor, "tensor", kind);
  check_other_rank(destination, "destination", kind);
  return issue({.kind = kind, .input = tensor, .peer = destination});
}

WorkPtr ProcessGroup::recv(const Tensor& tensor, int source) {
  constexpr auto kind = OperationKind::recv;
  check_tensor(tensor, "tensor", kind);
  check_other_rank(source, "source", kind);
  return issue({.kind = kind, .output = tensor, .peer = source});
}

WorkPtr ProcessGroup::exchange(const Tensor& send_tensor, const Tensor& recv_tensor, int peer) {
  constexpr auto kind = OperationKind::exchange;
  check_tensor(send_tensor, "send_tensor", kind);
  check_tensor(recv_tensor, "recv_tensor", kind);
  check_other_rank(peer, "peer", kind);
  return issue({.kind = kind, .input = send_tensor, .output = recv_tensor, .peer = peer});
}

void ProcessGroup::dump(const std::string& path) const {
  write_flight_dump(path, recorder_, "request");
}

void ProcessGroup::set_step(std::int64_t step, bool checked) {
  if (step_checked_ && !checked && step >= 0) return;
  step_ = step;
  step_checked_ = checked && step >= 0;
  if (PeerMonitor* monitor = failure_ ? failure_->monitor() : nullptr) monitor->set_step(step);
}

void ProcessGroup::remember_exception(std::string_view what) {
  PeerMonitor* const monitor = failure_ ? failure_->monitor() : nullptr;
  if (!monitor || failed()) return;
  std::string line(what.substr(0, kLongestException));
  std::ranges::replace(line, '\n', ' ');
  const std::lock_guard lock(issue_mutex_);
  monitor->set_exception(line, collectives_);
}

WorkPtr ProcessGroup::issue(Operation operation) {
  LOCKSTEP_CHECK(world_size() == 1 || made_in_->is_here(),
                 "[{}] this process is a forked child of process {}, whose group it has a copy of; the parent alone is "
                 "rank {}: call it there, or join a job of the child's own",
                 name(operation.kind), made_in_->number(), rank());
  if (!failure_)
    if (const std::exception_ptr ended = end_of_one()) std::rethrow_exception(ended);
  operation.label = LabelScope::current();
  operation.step = step_;
  operation.checked_step = step_checked_ ? operation.step : -1;
  if (!is_point_to_point(operation.kind)) Rank0Only::check_outside(operation, rank());
  // Here, with all of the caller's threads, and not on the executor's.
  if (operation.input.defined()) operation.input.storage()->settle();
  for (const Tensor& block : operation.inputs) block.storage()->settle();
  if (operation.output.defined()) operation.output.storage()->before_change();
  for (const Tensor& block : operation.outputs) block.storage()->before_change();
  const std::lock_guard lock(issue_mutex_);
  const auto peer = static_cast<std::size_t>(operation.peer);
  std::uint64_t& next = operation.kind == OperationKind::send       ? sends_[peer]
                        : operation.kind == OperationKind::recv     ? recvs_[peer]
                        : operation.kind == OperationKind::exchange ? exchanges_[peer]
                                                                    : collectives_;
  operation.number = next;
  const std::uint64_t record = recorder_.queued(operation);
  Executor& executor = executor_of(operation.input.defined() ? operation.input : operation.output);
  WorkPtr work = executor.launch(std::move(operation), record);
  ++next;  // one that throws leaves its number to the next
  return work;
}

void ProcessGroup::check_tensor(const Tensor& tensor, const char* what, OperationKind kind) const {
  LOCKSTEP_CHECK(tensor.defined(), "[{}] {} is undefined; expected a tensor", name(kind), what);
  LOCKSTEP_CHECK(tensor.is_contiguous(), "[{}] {} {} with strides {} is not contiguous; pass contiguous()", name(kind),
                 what, to_string(tensor.sizes()), to_string(tensor.strides()));
  executor_of(tensor).check(tensor, kind);
}

void ProcessGroup::check_rank(int rank, const char* what, OperationKind kind) const {
  LOCKSTEP_CHECK(rank >= 0 && rank < world_size(), "[{}] {} is {}; expected 0 to {}", name(kind), what, rank,
                 world_size() - 1);
}

void ProcessGroup::check_other_rank(int rank, const char* what, OperationKind kind) const {
  check_rank(rank, what, kind);
  LOCKSTEP_CHECK(rank != this->rank(), "[{}] {} is {}, this rank itself; expected another one", name(kind), what, rank);
}

void ProcessGroup::check_reduction(const Tensor& tensor, ReduceOp op, OperationKind kind) const {
  LOCKSTEP_CHECK(op != ReduceOp::avg || tensor.is_floating_point(),
                 "[{}] avg is defined for floating-point tensors; found {}", name(kind), name(tensor.dtype()));
  LOCKSTEP_CHECK(!is_bitwise(op) || !tensor.is_floating_point(), "[{}] {} is defined for integers and bool; found {}",
                 name(kind), name(op), name(tensor.dtype()));
  executor_of(tensor).check_reduction(op, kind);
}

void ProcessGroup::check_pair(const Tensor& a, const char* a_name, const Tensor& b, const char* b_name,
                              OperationKind kind) const {
  LOCKSTEP_CHECK(a.dtype() == b.dtype(), "[{}] {} is {} and {} is {}; expected one dtype", name(kind), a_name,
                 name(a.dtype()), b_name, name(b.dtype()));
  LOCKSTEP_CHECK(a.device() == b.device(), "[{}] {} is on {} and {} on {}; expected one device", name(kind), a_name,
                 to_string(a.device()), b_name, to_string(b.device()));
}

void ProcessGroup::check_apart(const Tensor& output, const Tensor& input, OperationKind kind) const {
  const auto *written = static_cast<const char*>(output.raw_data()), *read = static_cast<const char*>(input.raw_data());
  const bool apart = written + output.nbytes() <= read || read + input.nbytes() <= written;
  LOCKSTEP_CHECK(apart || output.numel() == 0 || input.numel() == 0,
                 "[{}] output shares memory with input, which it would overwrite while it is read; expected memory of "
                 "its own",
                 name(kind));
}

void ProcessGroup::check_blocks(const Tensor& blocks, const char* blocks_name, const Tensor& one, const char* one_name,
                                OperationKind kind) const {
  check_tensor(blocks, blocks_name, kind);
  check_tensor(one, one_name, kind);
  check_pair(blocks, blocks_name, one, one_name, kind);
  LOCKSTEP_CHECK(blocks.numel() == one.numel() * world_size(),
                 "[{}] {} {} has {} elements; expected {}: those of {} {} from each of {} ranks", name(kind),
                 blocks_name, to_string(blocks.sizes()), blocks.numel(), one.numel() * world_size(), one_name,
                 to_string(one.sizes()), world_size());
}

}  // namespace lockstep::distributed
