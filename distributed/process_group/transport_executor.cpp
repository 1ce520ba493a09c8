#include "lockstep/distributed/process_group/transport_executor.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/log.h"
#include "lockstep/core/start_thread.h"
#include "lockstep/distributed/collectives/sub_transport.h"
#include "lockstep/distributed/failure/group_failure.h"

namespace lockstep::distributed {
namespace {

/// A transport that writes to a connection which the peer has closed gets SIGPIPE, whose default is to end the process
/// without a word. Blocked in the threads that write, it becomes the error code that the transport handles.
void block_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

/// What the other side is told of a message between two ranks.
struct TransportExecutor::Letter {
  std::uint64_t dtype = 0;
  std::uint64_t elements = 0;

  static Letter of(const Tensor& tensor) {
    if (!tensor.defined()) return {};
    return {static_cast<std::uint64_t>(tensor.dtype()), static_cast<std::uint64_t>(tensor.numel())};
  }
  bool operator==(const Letter&) const = default;
  /// "float32 with 3 elements".
  std::string text() const {
    return fmt::format("{} with {} element{}", name(static_cast<DType>(dtype)), elements, elements == 1 ? "" : "s");
  }
};

/// Of an operation that waits for those before it.
class TransportExecutor::QueuedWork final : public Work {
 public:
  using Work::Work;

  void begin() {
    {
      const std::lock_guard lock(mutex_);
      begun_ = true;
    }
    ended_.notify_all();
  }

 protected:
  void wait_for_group() override {
    {
      std::unique_lock lock(mutex_);
      ended_.wait(lock, [this] { return begun_ || completed_; });
    }
    wait(default_wait_);
  }

 private:
  bool begun_ = false;
};

TransportExecutor::TransportExecutor(ProcessGroup& group, std::string backend, std::shared_ptr<Transport> transport)
    : Executor(group),
      backend_(std::move(backend)),
      transport_(std::move(transport)),
      collectives_(*transport_, group.rank(), group.world_size(), group.options().ranks),
      failure_(*group.failure()) {
  collective_thread_ = start_thread("collectives", [this] { run_collectives(); });
}

std::unique_ptr<Executor> TransportExecutor::split(const SplitGroup& part) {
  auto transport = std::make_shared<SubTransport>(transport_, part.members, part.number);
  return std::make_unique<TransportExecutor>(part.group, backend_, std::move(transport));
}

void TransportExecutor::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  collective_came_.notify_all();
  point_to_point_came_.notify_all();
  if (!collective_thread_.joinable()) return;
  collective_thread_.join();
  // None of them ends by itself any more.
  for (std::list<std::thread>* threads : {&point_to_point_threads_, &ended_}) {
    for (std::thread& thread : *threads) thread.join();
    threads->clear();
  }
  if (!failure_.failing()) warn_of_unread();
}

/// What other collectives than the others' as the last ones leave behind, where no later call has found it out.
void TransportExecutor::warn_of_unread() {
  const int from = transport_->unread();
  if (from < 0) return;
  const std::vector<OperationRecord> records = group_.recorder().records();
  const std::string last = records.empty() ? "no operation" : describe(records.back().operation);
  logging::warn(
      "the group ends here, after {}, with a message from rank {} that nobody has received: the last collectives were "
      "not the same on all ranks, or a send() had no recv(); all ranks must make the same calls with the same roots, "
      "shapes and dtypes",
      last, from);
}

void TransportExecutor::check(const Tensor& tensor, OperationKind kind) const {
  LOCKSTEP_CHECK(tensor.device().is_cpu(), "[{}] the {} backend works on CPU tensors; found one on {}", name(kind),
                 backend_, to_string(tensor.device()));
}

WorkPtr TransportExecutor::launch(Operation operation, std::uint64_t record) {
  // A running operation ends at its deadline, and its diagnosis within as much again.
  auto work = std::make_shared<QueuedWork>(describe(operation), 3 * group_.timeout());
  const bool alone = is_point_to_point(operation.kind);
  std::list<std::thread> ended;
  {
    const std::lock_guard lock(mutex_);
    if (const std::exception_ptr error = failure_.error()) std::rethrow_exception(error);
    auto& tasks = alone ? point_to_point_tasks_ : collective_tasks_;
    // The thread first: where there is none to be had, nothing stays behind that would run without the caller's Work.
    if (alone && idle_point_to_point_threads_ <= static_cast<int>(point_to_point_tasks_.size()))
      point_to_point_threads_.push_back(start_thread("messages between two ranks", [this] { run_point_to_point(); }));
    tasks.push_back({std::move(operation), record, work});
    ended.swap(ended_);
  }
  (alone ? point_to_point_came_ : collective_came_).notify_one();
  for (std::thread& thread : ended) thread.join();
  return work;
}

void TransportExecutor::run_collectives() {
  block_sigpipe();
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      collective_came_.wait(lock, [this] { return stop_ || !collective_tasks_.empty(); });
      if (collective_tasks_.empty()) return;
      task = std::move(collective_tasks_.front());
      collective_tasks_.pop_front();
    }
    run(task);
  }
}

void TransportExecutor::run_point_to_point() {
  constexpr std::chrono::milliseconds kIdle{200};
  block_sigpipe();
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      ++idle_point_to_point_threads_;
      const bool woken =
          point_to_point_came_.wait_for(lock, kIdle, [this] { return stop_ || !point_to_point_tasks_.empty(); });
      --idle_point_to_point_threads_;
      if (!woken) {
        const auto own = std::ranges::find(point_to_point_threads_, std::this_thread::get_id(), &std::thread::get_id);
        ended_.splice(ended_.end(), point_to_point_threads_, own);
        return;
      }
      if (point_to_point_tasks_.empty()) return;
      task = std::move(point_to_point_tasks_.front());
      point_to_point_tasks_.pop_front();
    }
    run(task);
  }
}

void TransportExecutor::run(Task& task) {
  const Operation& operation = task.operation;
  const bool collective = !is_point_to_point(operation.kind);
  PeerMonitor* const monitor = failure_.monitor();
  task.work->begin();
  std::exception_ptr error = failure_.error();
  if (!error) {
    const Deadline deadline = deadline_in(group_.timeout());
    group_.recorder().started(task.record);
    if (collective) history_ = call_history(history_, fingerprint(operation));
    if (monitor && collective) monitor->collective_started(info_of(operation), history_);
    if (monitor && !collective) monitor->point_to_point_started(info_of(operation));
    try {
      collective ? collectives_.run(operation, history_, deadline) : transfer(operation, deadline);
      if (monitor && collective) monitor->collective_ended();
    } catch (const std::exception& exception) {
      OperationFailure failure;
      failure.operation = task.work->description();
      failure.cause = exception.what();
      if (const auto* lost = dynamic_cast<const TransportError*>(&exception)) {
        failure.peer = rank_of(lost->peer());
        failure.missed = lost->missed();
      }
      error = failure_.fail(failure);
    }
  }
  group_.recorder().finished(task.record, !error);
  const WorkPtr work = std::move(task.work);
  task.operation = {};  // the tensors go before the caller is told
  work->complete(error);
}

/// Of a split group the transport below knows the job's numbers.
int TransportExecutor::rank_of(int job_rank) const {
  const std::vector<int>& ranks = group_.options().ranks;
  if (ranks.empty()) return job_rank;
  const auto found = std::ranges::find(ranks, job_rank);
  return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
}

void TransportExecutor::transfer(const Operation& operation, Deadline deadline) {
  const bool exchange = operation.kind == OperationKind::exchange;
  // Note [Point to point]
  // Ahead of each message goes a letter with its dtype and size, under a tag of the direction and the count of such
  // messages alone, so that one which does not fit is an error at once, and not at the deadline. The tag of the message
  // itself also depends on what the letter says: what does not fit never meets a receive. A send() that an exchange()
  // waits for, instead of another exchange(), is no error before the deadline: each of them may still get its
  // counterpart, since either side may call its operations in any order. The failure names both then.
  const auto tag = [&](int from, const Letter& letter, std::uint64_t step) {
    const auto route = static_cast<std::uint64_t>(from) << 1 | (exchange ? 1 : 0);
    return other_tag(message_tag(message_tag(route, letter.elements, letter.dtype), operation.number, step));
  };
  const auto letter_tag = [&](int from) { return tag(from, {}, 0x70327001); };
  const auto content_tag = [&](int from, const Letter& letter) { return tag(from, letter, 0x70327000); };
  const Tensor &input = operation.input, &output = operation.output;
  Letter announced;
  const Letter sent = Letter::of(input), expected = Letter::of(output);
  const LibraryAccess access;
  std::unique_ptr<Transport::Request> recv_letter, recv, send_letter, send;
  if (output.defined()) {
    recv_letter = transport_->recv(operation.peer, letter_tag(operation.peer), &announced, sizeof(announced));
    if (output.nbytes() > 0)
      recv =
          transport_->recv(operation.peer, content_tag(operation.peer, expected), output.raw_data(), output.nbytes());
  }
  if (input.defined()) {
    send_letter = transport_->send(operation.peer, letter_tag(group_.rank()), &sent, sizeof(sent));
    if (input.nbytes() > 0)
      send = transport_->send(operation.peer, content_tag(group_.rank(), sent), input.raw_data(), input.nbytes());
  }
  if (recv_letter) {
    recv_letter->wait(deadline);
    if (announced != expected) throw_mismatch(operation, announced, expected);
  }
  if (recv) recv->wait(deadline);
  if (send_letter) send_letter->wait(deadline);
  if (send) send->wait(deadline);
}

void TransportExecutor::throw_mismatch(const Operation& operation, const Letter& sent, const Letter& expected) const {
  const std::vector<int>& ranks = group_.options().ranks;
  const auto job_rank = [&](int rank) { return ranks.empty() ? rank : ranks[static_cast<std::size_t>(rank)]; };
  const bool exchange = operation.kind == OperationKind::exchange;
  throw TransportError(
      job_rank(operation.peer),
      fmt::format(
          "{}{} #{} of rank {} to rank {} is {}, and rank {} expected {}; the tensors of both sides must have one "
          "dtype and number of elements: the n-th {} on one rank meets the n-th {} on the other",
          kMismatchedMessages, exchange ? "exchange" : "send", operation.number, job_rank(operation.peer),
          job_rank(group_.rank()), sent.text(), job_rank(group_.rank()), expected.text(),
          exchange ? "exchange" : "send", exchange ? "exchange" : "recv"));
}

ProcessGroupPtr make_transport_group(std::string backend, const ProcessGroupOptions& options,
                                     std::unique_ptr<Transport> transport, StorePtr store) {
  auto group = std::make_shared<ProcessGroup>(options, std::move(store));
  group->add(kCPU, std::make_unique<TransportExecutor>(*group, std::move(backend), std::move(transport)));
  return group;
}

}  // namespace lockstep::distributed
