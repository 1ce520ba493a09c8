#pragma once

// A communicator of the emulated device's NCCL. Every operation is the same exchange: each rank puts its values into a
// place of its own in a shared file, waits until those that it reads have been put, computes, and waits before its next
// operation until nobody reads the old values any more. Nothing blocks: work on a stream that has to wait is asked
// again. For .cpp files only.
//
// As in NCCL: a group of a communicator that does not block is taken by a later poll, which any thread may make, and
// the first one only when all ranks have come to theirs; so is a captured one whose buffers the ranks exchange
// (NCCL_GRAPH_REGISTER, on unless it is 0), which ranks that capture nothing never come to; calls on one communicator
// are not locked; and to end a communicator waits for every captured graph that holds its operations.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/emulated/nccl/nccl.h"

namespace lockstep::distributed::nccl::emulated {

inline constexpr int kRanks = 16;
inline constexpr std::size_t kPlace = std::size_t{256} << 20;  // addresses; memory comes as it is touched

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
  std::atomic<std::uint64_t> registered[kRanks]{};  // groups whose buffers the rank has offered to the others
};
inline constexpr std::size_t kHeader = (sizeof(Meeting) + 4095) / 4096 * 4096;
inline constexpr std::size_t kPairPlace = std::size_t{16} << 20;

/// See lockstep_emulate_nccl_fault(): the first collective that does not end, or negative; and how many there were.
inline std::atomic<int> fault_at{-1}, collectives{0};

/// Adds work for `stream` to the group that this thread has begun: work of one group goes on together, none waits for
/// another's end. It is asked until it returns true.
ncclResult_t add(ncclComm_t comm, CUstream_st* stream, std::function<bool()> work);

}  // namespace lockstep::distributed::nccl::emulated

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
  bool registers = false;           // its buffers are exchanged first
  std::uint64_t registrations = 0;  // so far
  std::atomic<bool> inside{false};  // a thread is in a call
  // Held by what captured graphs do.
  std::shared_ptr<int> graphs = std::make_shared<int>();

  using Meeting = lockstep::distributed::nccl::emulated::Meeting;
  Meeting& meeting() const { return *reinterpret_cast<Meeting*>(memory); }
  /// Where rank `of` puts its values.
  char* place(int of) const;
  /// The same for a message from one rank to another.
  char* pair_place(int from, int to) const;
  bool faulty() const;  ///< a collective that does not end has been called
};
