#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/dtype.h"
#include "lockstep/emulated/nccl/communicator.h"

using namespace lockstep::distributed::nccl::emulated;

namespace {

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
