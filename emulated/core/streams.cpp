// The order of work on the emulated device.

#include "lockstep/emulated/core/streams.h"

#include <thread>
#include <utility>

#include "lockstep/core/cuda/check.h"
#include "lockstep/emulated/core/execution.h"
#include "lockstep/emulated/core/faults.h"
#include "lockstep/emulated/core/memory.h"

namespace lockstep::cuda::emulated {
namespace {

// Long enough that a test which forgets to wait sees it, short against every deadline.
constexpr auto kPatience = std::chrono::milliseconds(20);
constexpr auto kRetry = std::chrono::microseconds(200);

}  // namespace

Streams& Streams::instance() {
  static auto* streams = new Streams;
  return *streams;
}

Queue& Streams::queue_of(int device, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  auto& queue = queues_[{stream ? 0 : device, stream}];
  if (!queue) {
    queue = std::make_unique<Queue>();
    queue->device = device;
  }
  return *queue;
}

cudaStream_t Streams::make(int device) {
  const std::lock_guard lock(mutex);
  auto* const handle = reinterpret_cast<cudaStream_t>(next_handle_++ << 8);
  queue_of(device, handle);
  return handle;
}

void Streams::put(Queue& queue, Work work) {
  const std::lock_guard lock(mutex);
  if (queue.capture) {
    queue.capture->recording->push_back(std::move(work));
    return;
  }
  queue.pieces.push_back({std::move(work), Clock::now()});
  ++queue.put;
  if (!beside_) {
    beside_ = true;
    std::thread([this] { work_beside(); }).detach();
  }
}

bool Streams::reached(Mark mark) {
  const std::lock_guard lock(mutex);
  return !mark.queue || mark.queue->done >= mark.position;
}

bool Streams::try_reach(Mark mark) {
  if (reached(mark)) return true;
  Queue& queue = *mark.queue;
  const DeviceAccess access;
  while (queue.done < mark.position) {
    bool done = true;
    std::exception_ptr failure;
    try {
      // Asked once for a piece: what waits for somebody is asked again.
      Piece& piece = queue.pieces.front();
      if (!std::exchange(piece.begun, true)) piece.fails = faults::work_fails(queue.device);
      done = piece.fails || piece.work();
    } catch (...) {
      failure = std::current_exception();
    }
    if (!done) return false;
    queue.pieces.pop_front();
    ++queue.done;
    if (failure) std::rethrow_exception(failure);
  }
  return true;
}

void Streams::reach(Mark mark) {
  while (true) {
    {
      const std::lock_guard lock(mutex);
      if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
      if (try_reach(mark)) return;
    }
    std::this_thread::sleep_for(kRetry);
  }
}

void Streams::end_capture(Capture& capture) {
  const std::lock_guard lock(mutex);
  capture.ended = true;
  for (const auto& [key, queue] : queues_)
    if (queue->capture.get() == &capture) queue->capture = nullptr;
}

void Streams::reach_all(int device) {
  std::vector<Mark> marks;
  {
    const std::lock_guard lock(mutex);
    for (const auto& [key, queue] : queues_)
      if (queue->device == device) marks.push_back(mark(*queue));
  }
  for (const Mark& mark : marks) reach(mark);
}

void Streams::work_beside() {
  while (true) {
    std::this_thread::sleep_for(kPatience / 4);
    const std::lock_guard lock(mutex);
    const auto now = Clock::now();
    for (const auto& [key, queue] : queues_) {
      if (queue->pieces.empty() || now - queue->pieces.front().queued < kPatience) continue;
      try {
        try_reach(mark(*queue));
      } catch (...) {
        failure_ = std::current_exception();
      }
    }
  }
}

void enqueue(CUstream_st* stream, std::function<bool()> work) {
  int device = 0;
  cudaGetDevice(&device);
  LOCKSTEP_CUDA_CHECK(faults::device_error(device));  // a launch on a device that has failed says so
  enqueue(device, stream, std::move(work));
}

void enqueue(int device, CUstream_st* stream, std::function<bool()> work) {
  use_device(device);
  Streams& streams = Streams::instance();
  streams.put(streams.queue_of(device, stream), std::move(work));
}

}  // namespace lockstep::cuda::emulated
