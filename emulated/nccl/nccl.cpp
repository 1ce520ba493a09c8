// NCCL for the emulated device. Every operation is the same exchange: each rank puts its values into a place of its own
// in a shared file, waits until those that it reads have been put, computes, and waits before its next operation until
// nobody reads the old values any more. Nothing blocks: work on a stream that has to wait is asked again.
//
// As in NCCL: a group of a communicator that does not block is taken by a later poll, which any thread may make, and
// the first one only when all ranks have come to theirs; calls on one communicator are not locked; and to end a
// communicator waits for every captured graph that holds its operations.

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/half.h"
#include "lockstep/distributed/nccl/library.h"
#include "lockstep/emulated/core/execution.h"

namespace {

using lockstep::cuda::emulated::enqueue;

constexpr int kRanks = 16;
constexpr std::size_t kPlace = std::size_t{256} << 20;  // addresses; memory comes as it is touched

/// Of one rank, or of one direction between two ranks.
struct Counter {
  std::atomic<std::uint64_t> put{0};   // operations whose values are in place
  std::atomic<std::uint64_t> read{0};  // operations that need no values of others any more
};
struct Meeting {
  std::atomic<int> joined{0};
  std::atomic<int> connected{0};  // ranks that have come to their first group
  Counter ranks[kRanks];
  Counter pairs[kRanks * kRanks];
};
constexpr std::size_t kHeader = (sizeof(Meeting) + 4095) / 4096 * 4096;
constexpr std::size_t kPairPlace = std::size_t{16} << 20;

std::atomic<int> races{0};
std::atomic<int> fault_at{-1};
std::atomic<int> collectives{0};
std::atomic<ncclResult_t> fault_error{ncclSuccess};

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt64:
    case ncclFloat64:
      return 8;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

}  // namespace

struct ncclComm {
  std::string file;
  int device = 0;
  int rank = 0, ranks = 0;
  char* memory = nullptr;
  std::size_t bytes = 0;
  std::uint64_t number = 0;                   // collectives so far
  std::vector<std::uint64_t> sent, received;  // by peer
  std::atomic<bool> aborted{false};
  bool connects = false, connecting = false, finalized = false;
  std::function<void()> job;        // a group that has not been taken yet
  int polls = 0;                    // that it still waits for
  std::atomic<bool> inside{false};  // a thread is in a call
  // Held by what captured graphs do.
  std::shared_ptr<int> graphs = std::make_shared<int>();

  Meeting& meeting() const { return *reinterpret_cast<Meeting*>(memory); }
  char* place(int of) const { return memory + kHeader + kPlace * static_cast<std::size_t>(of); }
  char* pair_place(int from, int to) const {
    return memory + kHeader + kPlace * static_cast<std::size_t>(ranks) +
           kPairPlace * static_cast<std::size_t>(from * ranks + to);
  }
  bool faulty() const { return fault_at >= 0 && collectives > fault_at; }
};

namespace {

template <typename T>
T combine(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd:
      return static_cast<T>(a * b);
    case ncclMax:
      return a < b ? b : a;
    case ncclMin:
      return b < a ? b : a;
    default:
      return static_cast<T>(a + b);
  }
}

// `recv` gets the reduction of what the ranks have put at `offset`. An average divides before it adds, as NCCL does.
template <typename T>
void reduce_typed(ncclComm_t comm, T* recv, std::size_t offset, std::size_t count, ncclRedOp_t op) {
  const auto value = [&](int rank, std::size_t i) {
    const T put = reinterpret_cast<const T*>(comm->place(rank) + offset)[i];
    return op == ncclAvg ? static_cast<T>(static_cast<float>(put) / static_cast<float>(comm->ranks)) : put;
  };
  for (std::size_t i = 0; i < count; ++i) {
    T result = value(0, i);
    for (int rank = 1; rank < comm->ranks; ++rank) result = combine(result, value(rank, i), op);
    recv[i] = result;
  }
}

void reduce_places(ncclComm_t comm, void* recv, std::size_t offset, std::size_t count, ncclDataType_t type,
                   ncclRedOp_t op) {
  const auto typed = [&]<typename T>() { reduce_typed(comm, static_cast<T*>(recv), offset, count, op); };
  switch (type) {
    case ncclFloat32:
      return typed.operator()<float>();
    case ncclFloat64:
      return typed.operator()<double>();
    case ncclFloat16:
      return typed.operator()<lockstep::Half>();
    case ncclBfloat16:
      return typed.operator()<lockstep::BFloat16>();
    case ncclInt64:
      return typed.operator()<std::int64_t>();
    case ncclInt32:
      return typed.operator()<std::int32_t>();
    default:
      return typed.operator()<std::uint8_t>();
  }
}

/// A call on a communicator. It takes its time, so that another thread's meets it.
class Call {
 public:
  explicit Call(ncclComm_t comm) : comm_(comm) {
    if (comm_->inside.exchange(true)) ++races;
    static thread_local std::minstd_rand random(7);
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
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

struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  std::vector<std::pair<CUstream_st*, std::function<bool()>>> work;
};
thread_local Group group;

// Work of one group goes on together: none waits for another's end.
ncclResult_t add(ncclComm_t comm, CUstream_st* stream, std::function<bool()> work) {
  const Call call(comm);
  if (comm->job || group.depth == 0) return ncclInvalidUsage;  // the last one has not been taken
  if (is_capturing(stream)) work = [work = std::move(work), graph = comm->graphs] { return work(); };
  group.comm = comm;
  group.work.emplace_back(stream, std::move(work));
  return ncclSuccess;
}

using Compute = std::function<void()>;

/// `reads`: this rank needs the others' values for compute().
ncclResult_t collective(ncclComm_t comm, CUstream_st* stream, const void* send, std::size_t bytes, Compute compute) {
  if (bytes > kPlace) return ncclInvalidArgument;
  const int count = collectives++;
  comm->connects = true;
  // A captured operation is done once for each launch of its graph, so its number is taken when it runs.
  struct State {
    bool put = false;
    std::uint64_t number = 0;
  };
  return add(comm, stream, [=, state = std::make_shared<State>()] {
    if (comm->aborted) return true;
    if (fault_at >= 0 && count >= fault_at) return false;
    Meeting& meeting = comm->meeting();
    if (!state->put) {
      for (int r = 0; r < comm->ranks; ++r)
        if (meeting.ranks[r].read < comm->number) return false;
      state->number = ++comm->number;
      if (bytes > 0) std::memcpy(comm->place(comm->rank), send, bytes);
      meeting.ranks[comm->rank].put = state->number;
      state->put = true;
    }
    for (int r = 0; r < comm->ranks; ++r)
      if (meeting.ranks[r].put < state->number) return false;
    compute();
    meeting.ranks[comm->rank].read = state->number;
    state->put = false;
    return true;
  });
}

}  // namespace

int lockstep_emulated_nccl_races() {
  return races;
}

void lockstep_emulate_nccl_fault(int n, ncclResult_t error) {
  collectives = 0;
  fault_error = error;
  fault_at = n;
}

ncclResult_t ncclGetVersion(int* version) {
  *version = 0;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "/lockstep-emulated-%08x%08x", random(), random());
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclSystemError:
      return "unhandled system error";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return "";
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
  comm->polls = static_cast<int>(collectives % 3);
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

ncclResult_t ncclAllReduce(const void* send, void* recv, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, CUstream_st* stream) {
  return collective(comm, stream, send, count * size_of(type), [=] { reduce_places(comm, recv, 0, count, type, op); });
}

ncclResult_t ncclReduce(const void* send, void* recv, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, CUstream_st* stream) {
  return collective(comm, stream, send, count * size_of(type), [=] {
    if (comm->rank == root) reduce_places(comm, recv, 0, count, type, op);
  });
}

ncclResult_t ncclBroadcast(const void* send, void* recv, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, CUstream_st* stream) {
  const std::size_t bytes = count * size_of(type);
  return collective(comm, stream, send, comm->rank == root ? bytes : 0,
                    [=] { std::memmove(recv, comm->place(root), bytes); });
}

ncclResult_t ncclAllGather(const void* send, void* recv, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           CUstream_st* stream) {
  const std::size_t bytes = count * size_of(type);
  return collective(comm, stream, send, bytes, [=] {
    for (int r = 0; r < comm->ranks; ++r)
      std::memcpy(static_cast<char*>(recv) + bytes * static_cast<std::size_t>(r), comm->place(r), bytes);
  });
}

ncclResult_t ncclReduceScatter(const void* send, void* recv, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, CUstream_st* stream) {
  const std::size_t bytes = count * size_of(type);
  return collective(comm, stream, send, bytes * static_cast<std::size_t>(comm->ranks),
                    [=] { reduce_places(comm, recv, bytes * static_cast<std::size_t>(comm->rank), count, type, op); });
}

ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      CUstream_st* stream) {
  const std::size_t bytes = count * size_of(type);
  if (bytes > kPairPlace) return ncclInvalidArgument;
  return add(comm, stream, [=] {
    if (comm->aborted) return true;
    Counter& pair = comm->meeting().pairs[comm->rank * comm->ranks + peer];
    std::uint64_t& sent = comm->sent[static_cast<std::size_t>(peer)];
    if (pair.read < sent) return false;  // the last message has not been read
    std::memcpy(comm->pair_place(comm->rank, peer), send, bytes);
    pair.put = ++sent;
    return true;
  });
}

ncclResult_t ncclRecv(void* recv, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      CUstream_st* stream) {
  const std::size_t bytes = count * size_of(type);
  if (bytes > kPairPlace) return ncclInvalidArgument;
  return add(comm, stream, [=] {
    if (comm->aborted) return true;
    Counter& pair = comm->meeting().pairs[peer * comm->ranks + comm->rank];
    std::uint64_t& received = comm->received[static_cast<std::size_t>(peer)];
    if (pair.put <= received) return false;
    std::memcpy(recv, comm->pair_place(peer, comm->rank), bytes);
    pair.read = ++received;
    return true;
  });
}

namespace lockstep::distributed::nccl {

const Library& Library::get() {
  static const Library library{ncclGetVersion,
                               ncclGetUniqueId,
                               ncclGetErrorString,
                               ncclGetLastError,
                               ncclCommInitRankConfig,
                               ncclCommFinalize,
                               ncclCommDestroy,
                               ncclCommAbort,
                               ncclCommGetAsyncError,
                               ncclGroupStart,
                               ncclGroupEnd,
                               ncclAllReduce,
                               ncclReduce,
                               ncclBroadcast,
                               ncclAllGather,
                               ncclReduceScatter,
                               ncclSend,
                               ncclRecv};
  return library;
}

std::string Library::obstacle() {
  return {};
}

}  // namespace lockstep::distributed::nccl
