#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/posix.h"

namespace lockstep::distributed::shm {

/// What a rank shares with all others.
struct RankControl {
  /// Changes whenever somebody has news for this rank; its waits sleep on it.
  alignas(64) std::atomic<std::uint32_t> bell;
  /// 1 once this rank has left or given up. What it has written before counts still.
  std::atomic<std::uint32_t> closed;
  std::atomic<std::int32_t> pid;
};

/// The state of one ring: what one rank has for another, as a stream of bytes. Positions only grow.
struct RingControl {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  /// 1 if that side sleeps until the other one has moved.
  alignas(64) std::atomic<std::uint32_t> reader_sleeps;
  std::atomic<std::uint32_t> writer_sleeps;
};

/// Note [Shared memory segment]
/// One segment a group, made by rank 0: a header, a line per rank, a ring for every ordered pair of ranks. It is a
/// memfd, a file without a name: nobody has to remove it, whatever way the ranks end, and the size of /dev/shm does not
/// matter. The others open it as /proc/PID/fd/N, which the kernel allows to processes of the same user (or of root) in
/// the same PID namespace. The ticket says where it is, and holds a random word that the segment must contain, so that
/// nothing else is taken for it. Memory is taken as the rings are written, not at once.
class Segment {
 public:
  static constexpr int kMaxRanks = 64;

  /// Throws Error if the system does not allow it.
  static Segment create(int world_size);
  /// Maps the segment of another rank's ticket. Throws Error, saying why, if this process cannot reach it.
  static Segment open(std::string_view ticket, int world_size);
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  /// Where the others find it; valid until close_file().
  const std::string& ticket() const { return ticket_; }
  /// To be called on rank 0 when all have opened it.
  void close_file() { file_ = {}; }

  RankControl& rank(int rank) const;
  RingControl& ring(int from, int to) const;
  std::byte* ring_data(int from, int to) const;
  /// A power of two.
  std::size_t ring_bytes() const { return ring_bytes_; }

 private:
  explicit Segment(int world_size);
  void map(int fd);
  std::size_t bytes() const;

  int world_size_;
  std::size_t ring_bytes_;
  std::byte* base_ = nullptr;
  FileDescriptor file_;
  std::string ticket_;
};

}  // namespace lockstep::distributed::shm
