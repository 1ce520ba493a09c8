#include "lockstep/distributed/parallel/rank0_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/input_file.h"
#include "lockstep/core/start_thread.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/held_file.h"
#include "lockstep/distributed/process_group/all_gather_integers.h"

namespace lockstep::distributed {
namespace {

constexpr std::int64_t kNotYet = -1, kDone = 0, kFailed = 1;  // what rank 0 says of its work
constexpr std::chrono::hours kLongest{1};
constexpr std::int64_t kPiece = std::int64_t{16} << 20;  // bytes of a file that travel at once

std::string reason(int error) {
  return std::generic_category().message(error);
}

// Of rank 0's word, whatever it says.
OperationLabel end_of_work() {
  static const OperationLabel label("the end of what rank 0 does for all ranks");
  return label;
}

/// While rank 0 works, the others wait for its word. So that their deadline limits rank 0's silence and not its work,
/// it tells them "not yet" several times in each, from a thread of its own, for as long as kLongest.
class NotYet {
 public:
  explicit NotYet(ProcessGroup& group) {
    if (group.world_size() > 1) thread_ = start_thread("word of rank 0", [this, &group] { tell(group); });
  }
  ~NotYet() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  NotYet(const NotYet&) = delete;
  NotYet& operator=(const NotYet&) = delete;

 private:
  void tell(ProcessGroup& group) {
    const LabelScope scope(end_of_work());
    const auto pause = std::clamp(group.timeout() / 4, Milliseconds(1), Milliseconds(10'000));
    const auto end = std::chrono::steady_clock::now() + kLongest;
    std::unique_lock lock(mutex_);
    try {
      while (!wake_.wait_for(lock, pause, [this] { return done_; }) && std::chrono::steady_clock::now() < end) {
        lock.unlock();
        group.broadcast(tensor({kNotYet}), 0)->wait();
        lock.lock();
      }
    } catch (const std::exception&) {
      // The group has failed, as its next operation will say.
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

// The ranks of a machine share what the first of them keeps. Returns that, or nothing: this rank keeps its own. Whether
// two ranks are on one machine is found out by trying: Note [A file of another process].
FileDescriptor descriptor_of_another(int own, ProcessGroup& group) {
  const HeldFile mine(own, group.rank());
  const std::vector<HeldFile::Numbers> all = all_gather_integers(mine.numbers(), group);
  FileDescriptor found;
  std::int64_t holder = group.rank();
  for (int r = 0; r < group.rank() && !found; ++r) {
    found = HeldFile::open(all[static_cast<std::size_t>(r)], r);
    if (found) holder = r;
  }
  // One that itself shares a third's keeps nothing. All have looked now, so that what shows the files may go.
  const std::vector<std::int64_t> holders = all_gather_integers(holder, group);
  if (holders[static_cast<std::size_t>(holder)] != holder) found.reset();
  return found;
}

}  // namespace

void on_rank0(ProcessGroup& group, const std::function<void()>& body) {
  std::exception_ptr own;
  std::string failure;
  if (group.rank() == 0) {
    try {
      const NotYet others(group);
      const Rank0Only scope("what it does for all ranks");
      body();
    } catch (const std::exception& error) {
      own = std::current_exception();
      failure = *error.what() != '\0' ? error.what() : "it failed without a message";
    } catch (...) {
      own = std::current_exception();
      failure = "rank 0 failed with an unknown exception";
    }
  }
  const LabelScope scope(end_of_work());
  const Tensor word = tensor({failure.empty() ? kDone : kFailed});
  do group.broadcast(word, 0)->wait();
  while (word.item<std::int64_t>() == kNotYet);
  if (word.item<std::int64_t>() == kFailed) failure = group.broadcast_object(failure);
  if (own) std::rethrow_exception(own);
  if (!failure.empty()) throw Error(failure);
}

Rank0File::Rank0File(const std::string& path, ProcessGroup& group) : descriptor_(std::make_shared<FileDescriptor>()) {
  static const OperationLabel label("a file that rank 0 reads");
  std::int64_t bytes = 0;
  on_rank0(group, [&] {
    InputFile opened = open_input_file(path, "[rank 0]");
    *descriptor_ = std::move(opened.descriptor);
    bytes = static_cast<std::int64_t>(opened.size);
  });
  const LabelScope scope(label);
  name_ = group.broadcast_object(path);
  if (group.world_size() == 1) return;
  const bool root = group.rank() == 0;
  const Tensor size = tensor({bytes});
  group.broadcast(size, 0)->wait();
  bytes = size.item<std::int64_t>();
  std::string failure;  // kept until all pieces have come: the others send and wait for them
  if (!root) {
    descriptor_->reset(memfd_create("rank0_file", MFD_CLOEXEC));
    if (!*descriptor_) failure = fmt::format("cannot keep '{}' in memory: {}", name_, reason(errno));
  }
  FileDescriptor shared = descriptor_of_another(descriptor_->get(), group);
  const bool keeps = !root && !shared;
  if (shared) {
    *descriptor_ = std::move(shared);
    failure.clear();
  }
  const Tensor piece = empty({std::min(kPiece, bytes)}, {.dtype = kUInt8});
  for (std::int64_t at = 0; at < bytes; at += kPiece) {
    const std::int64_t n = std::min(kPiece, bytes - at);
    const Tensor part = rows(piece, 0, n);
    auto* const data = static_cast<char*>(part.raw_data());
    if (root && failure.empty())
      if (const std::int64_t came = read_all(descriptor_->get(), data, static_cast<std::size_t>(n)); came != n)
        failure = fmt::format("cannot read '{}' on rank 0: {}", name_,
                              came < 0 ? reason(errno) : "it has become shorter while it was read");
    group.broadcast(part, 0)->wait();
    if (keeps && failure.empty() && !write_all(descriptor_->get(), data, static_cast<std::size_t>(n)))
      failure = fmt::format("cannot keep '{}' in memory: {}", name_, reason(errno));
  }
  // All fail together.
  const Tensor failed = tensor({std::int64_t{failure.empty() ? 0 : 1}});
  group.all_reduce(failed, ReduceOp::max)->wait();
  if (failed.item<std::int64_t>() == 0) return;
  throw Error(failure.empty() ? fmt::format("'{}' did not come to all ranks", name_) : failure);
}

void Rank0File::read(const std::function<void(const std::string& path)>& body) const {
  const std::string path = fmt::format("/proc/self/fd/{}", descriptor_->get());
  try {
    body(path);
  } catch (const Error& error) {
    std::string message = error.what();
    if (message.find(path) == std::string::npos) throw;
    for (std::size_t at = 0; (at = message.find(path, at)) != std::string::npos; at += name_.size())
      message.replace(at, path.size(), name_);
    throw Error(message);
  }
}

}  // namespace lockstep::distributed
