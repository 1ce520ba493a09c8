#include "lockstep/distributed/shm/ring.h"

#include <algorithm>
#include <cstring>

namespace lockstep::distributed::shm {
namespace {

/// From a position to the next one at which a header may start.
std::size_t padding(std::uint64_t position) {
  return (sizeof(MessageHeader) - position % sizeof(MessageHeader)) % sizeof(MessageHeader);
}

}  // namespace

std::size_t RingWriter::room(std::size_t wanted) {
  if (capacity_ - (written_ - read_) < wanted) read_ = control_->read.load(std::memory_order_acquire);
  return capacity_ - static_cast<std::size_t>(written_ - read_);
}

void RingWriter::copy_in(const void* data, std::size_t bytes) {
  const auto at = static_cast<std::size_t>(written_ & (capacity_ - 1));
  const std::size_t first = std::min(bytes, capacity_ - at);
  std::memcpy(data_ + at, data, first);
  std::memcpy(data_, static_cast<const std::byte*>(data) + first, bytes - first);
  written_ += bytes;
}

void RingWriter::publish() {
  control_->written.store(written_, std::memory_order_release);
}

bool RingWriter::put_header(const MessageHeader& header) {
  const std::size_t skipped = padding(written_);
  if (room(skipped + sizeof(header)) < skipped + sizeof(header)) return false;
  written_ += skipped;
  copy_in(&header, sizeof(header));
  publish();
  return true;
}

std::size_t RingWriter::put(const void* data, std::size_t bytes) {
  const std::size_t wanted = std::min(bytes, kSliceBytes);
  const std::size_t slice = std::min(wanted, room(wanted));
  if (slice == 0) return 0;
  copy_in(data, slice);
  publish();
  return slice;
}

std::size_t RingReader::available(std::size_t wanted) {
  if (written_ - read_ < wanted) written_ = control_->written.load(std::memory_order_acquire);
  return static_cast<std::size_t>(written_ - read_);
}

bool RingReader::take_header(MessageHeader* header) {
  const std::size_t skipped = padding(read_);
  if (available(skipped + sizeof(*header)) < skipped + sizeof(*header)) return false;
  // Never in two pieces: the capacity is a multiple of its size.
  std::memcpy(header, data_ + ((read_ + skipped) & (capacity_ - 1)), sizeof(*header));
  skip(skipped + sizeof(*header));
  return true;
}

std::size_t RingReader::take(void* data, std::size_t bytes) {
  std::size_t slice = 0;
  const std::byte* from = peek(std::min(bytes, kSliceBytes), &slice);
  if (slice == 0) return 0;
  std::memcpy(data, from, slice);
  skip(slice);
  return slice;
}

const std::byte* RingReader::peek(std::size_t bytes, std::size_t* found) {
  const auto at = static_cast<std::size_t>(read_ & (capacity_ - 1));
  *found = std::min({bytes, available(bytes), capacity_ - at});
  return data_ + at;
}

void RingReader::copy(void* target, std::size_t bytes) const {
  const auto at = static_cast<std::size_t>(read_ & (capacity_ - 1));
  const std::size_t first = std::min(bytes, capacity_ - at);
  std::memcpy(target, data_ + at, first);
  std::memcpy(static_cast<std::byte*>(target) + first, data_, bytes - first);
}

void RingReader::skip(std::size_t bytes) {
  read_ += bytes;
  control_->read.store(read_, std::memory_order_release);
}

}  // namespace lockstep::distributed::shm
