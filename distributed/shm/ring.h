#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/distributed/shm/segment.h"

namespace lockstep::distributed::shm {

/// What is ahead of every message in a ring. Headers start at multiples of their size, so payloads are aligned, too.
struct alignas(64) MessageHeader {
  std::uint64_t tag;
  std::uint64_t bytes;
};

/// What one side does before the other learns of it: little enough that both work at once.
inline constexpr std::size_t kSliceBytes = std::size_t{64} << 10;

/// The sending end of a ring. One thread at a time.
class RingWriter {
 public:
  RingWriter() = default;
  RingWriter(RingControl& control, std::byte* data, std::size_t capacity)
      : control_(&control), data_(data), capacity_(capacity) {}

  /// False if there is no room for it now.
  bool put_header(const MessageHeader& header);
  /// As much as there is room for, at most `bytes` and kSliceBytes; returns how much that was. The reader sees it at
  /// once.
  std::size_t put(const void* data, std::size_t bytes);
  RingControl& control() const { return *control_; }

 private:
  std::size_t room(std::size_t wanted);
  void copy_in(const void* data, std::size_t bytes);
  void publish();

  RingControl* control_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;  // as last seen
};

/// The receiving end of a ring. One thread at a time.
class RingReader {
 public:
  RingReader() = default;
  RingReader(const RingControl& control, const std::byte* data, std::size_t capacity)
      : control_(const_cast<RingControl*>(&control)), data_(data), capacity_(capacity) {}

  /// False if there is none yet. To be called when the payload of the one before has been taken.
  bool take_header(MessageHeader* header);
  /// As much as there is, at most `bytes` and kSliceBytes; returns how much that was.
  std::size_t take(void* data, std::size_t bytes);
  /// What could be taken now and lies in one piece, at most `bytes`; its memory is good until skip().
  const std::byte* peek(std::size_t bytes, std::size_t* available);
  /// Copies the next `bytes` bytes, which must be there, and leaves them in the ring.
  void copy(void* target, std::size_t bytes) const;
  /// Gives `bytes` bytes back to the writer.
  void skip(std::size_t bytes);
  /// How much could be taken now; exact only below `wanted`.
  std::size_t available(std::size_t wanted);
  RingControl& control() const { return *control_; }

 private:
  RingControl* control_ = nullptr;
  const std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint64_t read_ = 0;
  std::uint64_t written_ = 0;  // as last seen
};

}  // namespace lockstep::distributed::shm
