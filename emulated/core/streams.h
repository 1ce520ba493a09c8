#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep::cuda::emulated {

using Clock = std::chrono::steady_clock;
/// True when it is done; false: it waits for another process or thread, ask again.
using Work = std::function<bool()>;

struct Queue;

/// A point in a queue.
struct Mark {
  Queue* queue = nullptr;
  std::uint64_t position = 0;  ///< reached when this many pieces of work are done
};

/// What a graph holds, in the order in which it was captured.
using Recording = std::vector<Work>;

/// A stream under capture.
struct Capture {
  Queue* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread = std::this_thread::get_id();
  std::shared_ptr<Recording> recording = std::make_shared<Recording>();
  bool invalid = false;
  bool ended = false;
};

struct Piece {
  Work work;
  Clock::time_point queued;
  bool begun = false, fails = false;
};

struct Queue {
  int device = 0;
  std::deque<Piece> pieces;
  std::uint64_t put = 0, done = 0;
  std::shared_ptr<Capture> capture;
};

/// All streams of this process.
class Streams {
 public:
  static Streams& instance();

  Queue& queue_of(int device, cudaStream_t stream);
  cudaStream_t make(int device);
  /// Puts work on a queue, or into its capture.
  void put(Queue& queue, Work work);
  Mark mark(Queue& queue) {
    const std::lock_guard lock(mutex);
    return {&queue, queue.put};
  }
  bool reached(Mark mark);
  /// Does what has to be done for it; nothing is done that the mark does not wait for. Throws what the work threw.
  void reach(Mark mark);
  void reach_all(int device);
  /// The same without waiting for other processes or threads; false if one is waited for.
  bool try_reach(Mark mark);
  /// Its streams take work again.
  void end_capture(Capture& capture);

  std::recursive_mutex mutex;

 private:
  Streams() = default;
  void work_beside();
  std::map<std::pair<int, cudaStream_t>, std::unique_ptr<Queue>> queues_;
  std::uintptr_t next_handle_ = 1;
  bool beside_ = false;
  std::exception_ptr failure_;  // of work that was done beside
};

}  // namespace lockstep::cuda::emulated
