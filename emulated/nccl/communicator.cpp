#include "lockstep/emulated/nccl/communicator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string_view>
#include <thread>
#include <utility>

#include "lockstep/emulated/core/execution.h"

using namespace lockstep::distributed::nccl::emulated;
using lockstep::cuda::emulated::enqueue;

namespace {

std::atomic<int> races{0};
std::atomic<ncclResult_t> fault_error{ncclSuccess};

std::atomic<unsigned> schedule{7};

/// The next number of this thread in the schedule that the tests have chosen.
unsigned draw() {
  static std::atomic<unsigned> threads{0};
  static thread_local const unsigned thread = threads++;
  static thread_local unsigned seed = 0;
  static thread_local std::minstd_rand random;
  if (seed != schedule) random.seed((seed = schedule) * 1009 + thread);
  return static_cast<unsigned>(random());
}

/// A call on a communicator. It takes its time, so that another thread's meets it.
class Call {
 public:
  explicit Call(ncclComm_t comm) : comm_(comm) {
    if (comm_->inside.exchange(true)) ++races;
    if (draw() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw() % 100));
  }
  ~Call() { comm_->inside = false; }
  Call(const Call&) = delete;

 private:
  ncclComm_t comm_;
};

bool is_capturing(CUstream_st* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return stream && cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

void wait_for_graphs(ncclComm_t comm) {
  while (comm->graphs.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// NCCL's parameter, read when it is first asked for.
bool registers_graphs() {
  static const bool on = [] {
    const char* text = std::getenv("NCCL_GRAPH_REGISTER");
    return !text || std::string_view(text) != "0";
  }();
  return on;
}

// Offers the buffers of the group that waits, once; true when every rank has offered those of as many groups.
bool has_registered(ncclComm_t comm) {
  Meeting& meeting = comm->meeting();
  if (std::exchange(comm->registers, false)) meeting.registered[comm->rank] = ++comm->registrations;
  for (int r = 0; r < comm->ranks; ++r)
    if (meeting.registered[r] < comm->registrations) return false;
  return true;
}

struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  std::vector<std::pair<CUstream_st*, std::function<bool()>>> work;
};
thread_local Group group;

}  // namespace

char* ncclComm::place(int of) const {
  return memory + kHeader + kPlace * static_cast<std::size_t>(of);
}

char* ncclComm::pair_place(int from, int to) const {
  return memory + kHeader + kPlace * static_cast<std::size_t>(ranks) +
         kPairPlace * static_cast<std::size_t>(from * ranks + to);
}

bool ncclComm::faulty() const {
  return fault_at >= 0 && collectives > fault_at;
}

ncclResult_t lockstep::distributed::nccl::emulated::add(ncclComm_t comm, CUstream_st* stream,
                                                        std::function<bool()> work) {
  const Call call(comm);
  if (comm->job || group.depth == 0) return ncclInvalidUsage;  // the last one has not been taken
  if (is_capturing(stream)) work = [work = std::move(work), graph = comm->graphs] { return work(); };
  group.comm = comm;
  group.work.emplace_back(stream, std::move(work));
  return ncclSuccess;
}

int lockstep_emulated_nccl_races() {
  return races;
}

void lockstep_emulate_nccl_schedule(unsigned seed) {
  schedule = seed;
}

void lockstep_emulate_nccl_fault(int n, ncclResult_t error) {
  collectives = 0;
  fault_error = error;
  fault_at = n;
}

namespace {

// Work on streams may still hold a communicator that is gone, so none is ever freed.
ncclComm_t keep(std::unique_ptr<ncclComm> comm) {
  static std::mutex mutex;
  static auto* all = new std::vector<std::unique_ptr<ncclComm>>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(comm));
  return all->back().get();
}

}  // namespace

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t*) {
  if (ranks > kRanks) return ncclInvalidArgument;
  auto made = std::make_unique<ncclComm>();
  cudaGetDevice(&made->device);
  made->file = id.internal;
  made->rank = rank;
  made->ranks = ranks;
  made->sent.resize(static_cast<std::size_t>(ranks));
  made->received.resize(static_cast<std::size_t>(ranks));
  made->bytes =
      kHeader + kPlace * static_cast<std::size_t>(ranks) + kPairPlace * static_cast<std::size_t>(ranks * ranks);
  const int file = shm_open(id.internal, O_CREAT | O_RDWR, 0600);
  if (file < 0) return ncclSystemError;
  const bool sized = ftruncate(file, static_cast<off_t>(made->bytes)) == 0;
  void* memory =
      sized ? mmap(nullptr, made->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0) : MAP_FAILED;
  close(file);
  if (memory == MAP_FAILED) return ncclSystemError;
  made->memory = static_cast<char*>(memory);
  // The file needs no name once everybody has it.
  if (++made->meeting().joined == ranks) shm_unlink(id.internal);
  *comm = keep(std::move(made));
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const Call call(comm);
  const auto goes_on = [&] {
    Meeting& meeting = comm->meeting();
    if (meeting.joined < comm->ranks) return true;
    if (comm->job) {
      if (comm->connects && !std::exchange(comm->connecting, true)) ++meeting.connected;
      if ((comm->connects && meeting.connected < comm->ranks) || comm->polls-- > 0) return true;
      if (!has_registered(comm)) return true;
      std::exchange(comm->job, nullptr)();
    }
    return comm->finalized && comm->graphs.use_count() > 1;
  };
  *result = goes_on() ? ncclInProgress : comm->faulty() ? fault_error.load() : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Call call(comm);
  comm->finalized = true;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  wait_for_graphs(comm);
  comm->aborted = true;
  munmap(comm->memory, comm->bytes);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  comm->job = nullptr;
  shm_unlink(comm->file.c_str());
  wait_for_graphs(comm);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--group.depth > 0 || group.work.empty()) return ncclSuccess;
  const auto all = std::exchange(group.work, {});
  ncclComm_t const comm = group.comm;
  const Call call(comm);
  CUstream_st* const stream = all.front().first;
  std::vector<std::function<bool()>> parts;
  for (const auto& [on, work] : all) parts.push_back(work);
  comm->polls = static_cast<int>(draw() % 4);
  comm->registers = is_capturing(stream) && registers_graphs();
  comm->job = [comm, stream, parts] {
    enqueue(comm->device, stream, [parts, done = std::make_shared<std::vector<bool>>(parts.size())] {
      bool all_done = true;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        if (!(*done)[i]) (*done)[i] = parts[i]();
        all_done = all_done && (*done)[i];
      }
      if (all_done) done->assign(parts.size(), false);  // for the next launch of a graph
      return all_done;
    });
  };
  return ncclInProgress;
}
