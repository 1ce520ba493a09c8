#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/cuda/stream.h"

namespace lockstep::cuda {

/// Note [CUDA graphs]
/// Work on a stream, recorded once and then started as a whole by one call of the host. A replay does what was recorded
/// with the addresses that were recorded: inputs are written into the same tensors before each launch, results read
/// from the same tensors after it, and numbers that change (a learning rate, a step) lie in device memory.
///
/// Memory: a capture needs a stream that belongs to it and its like (Stream::create()). What is allocated and freed
/// there while it records is used again by every replay, so nothing else may be allocated on that stream afterwards but
/// by another capture, whose replays do not overlap. The graph keeps that memory (MemoryHold). Tensors that must
/// outlive the capture are kept by whoever captures.
///
/// While it records, nothing may wait for the device: item(), to_vector() and copies to pageable memory throw, and the
/// capture is given up. Other threads may do so.
class Graph {
 public:
  /// Runs `body` with `stream` as the current stream, recording what it puts there and on streams that it makes wait
  /// for it. Throws Error, after which the stream can be used again, if body throws or does what cannot be recorded.
  static Graph capture(const Stream& stream, const std::function<void()>& body);

  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  /// Starts it, after what is on its stream so far.
  void launch() const;
  const Stream& stream() const { return stream_; }
  /// Kernels, copies and such that it holds.
  std::size_t nodes() const { return nodes_; }

 private:
  struct Handle;
  Graph(const Stream& stream, std::unique_ptr<Handle> handle, std::size_t nodes);
  Stream stream_;
  std::unique_ptr<Handle> handle_;
  std::size_t nodes_ = 0;
};

}  // namespace lockstep::cuda
