#pragma once

// What the files of Collectives share. For .cpp files only.

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/distributed/collectives/collectives.h"

namespace lockstep::distributed {

inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
/// What is reduced at a time, while it is in a core's cache.
inline constexpr std::size_t kSliceBytes = std::size_t{64} << 10;
/// Up to this much from each rank goes whole to everybody.
inline constexpr std::size_t kWholeBytes = std::size_t{16} << 10;

inline std::byte* bytes_of(const Tensor& tensor) {
  const LibraryAccess access;
  return static_cast<std::byte*>(tensor.raw_data());
}

inline void copy_bytes(std::byte* target, const std::byte* source, std::size_t bytes) {
  if (bytes != 0 && target != source) std::memcpy(target, source, bytes);
}

/// Where block `rank` begins when `count` elements are cut into `world_size` blocks, as equal as they go.
inline std::int64_t block_begin(std::int64_t count, int world_size, int rank) {
  return count / world_size * rank + std::min<std::int64_t>(rank, count % world_size);
}

/// Calls body(piece, at, length) for the slices of a block, from its beginning to its end; none lies in two pieces.
template <typename Body>
void for_slices(std::size_t bytes, Body&& body) {
  for (std::size_t at = 0; at < bytes; at += kSliceBytes) body(at / kPieceBytes, at, std::min(kSliceBytes, bytes - at));
}

struct Collectives::Call {
  const Operation& operation;
  Deadline deadline;
  std::uint64_t history;

  std::uint64_t tag(std::uint64_t step) const {
    return collective_tag(message_tag(history, operation.number, step), operation.number);
  }
  /// The block for rank r, or from it, which begins `offset` bytes into the tensor where there is no list of blocks.
  std::byte* input_block(int r, std::size_t offset) const {
    return block(operation.input, operation.inputs, r, offset);
  }
  std::byte* output_block(int r, std::size_t offset) const {
    return block(operation.output, operation.outputs, r, offset);
  }
  static std::byte* block(const Tensor& whole, const std::vector<Tensor>& list, int r, std::size_t offset) {
    return list.empty() ? bytes_of(whole) + offset : bytes_of(list[static_cast<std::size_t>(r)]);
  }
  DType dtype() const { return agreed_tensor(operation).dtype(); }
  std::size_t element() const { return element_size(dtype()); }
  double divisor(int world_size) const { return operation.reduce == ReduceOp::avg ? world_size : 1.0; }
  void wait_all(const Requests& requests) const {
    for (const auto& request : requests) request->wait(deadline);
  }
};

}  // namespace lockstep::distributed
