#pragma once

struct CUstream_st;
struct CUevent_st;

namespace lockstep::cuda {

class Event;

/// A device's queue of work, as a cheap handle. Streams are never destroyed: memory that is cached for a stream would
/// be taken for that of a later one with the same handle.
class Stream {
 public:
  /// The device's default stream: all work goes there unless a StreamGuard says otherwise.
  static Stream default_of(int device);
  /// Where this thread's work on the device goes.
  static Stream current(int device);
  /// One of the device's own streams, which do not wait for the default stream; 16 of each priority are made as they
  /// are asked for and then handed out in turn.
  static Stream from_pool(int device, bool high_priority = false);

  /// A stream that from_pool() hands out to nobody else.
  static Stream create(int device, bool high_priority = false);

  CUstream_st* handle() const { return handle_; }  ///< CUDA's own; null for the default stream
  int device() const { return device_; }           ///< number of the device
  /// Blocks until all work put here so far is done. Throws Error if any of it failed.
  void synchronize() const;
  /// What is put here from now on waits for the event.
  void wait(const Event& event) const;
  /// True while what is put here is recorded for a graph instead of done.
  bool is_capturing() const;
  friend bool operator==(const Stream&, const Stream&) = default;

 private:
  friend class StreamGuard;
  Stream(int device, CUstream_st* handle) : device_(device), handle_(handle) {}
  int device_;
  CUstream_st* handle_;
};

/// A point in a stream's work.
class Event {
 public:
  /// `timing`: elapsed_ms() may be asked, at some cost.
  explicit Event(int device, bool timing = false);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  void record(const Stream& stream);  ///< stands behind all that has been put on the stream so far
  bool is_done() const;               ///< whether that is done
  void synchronize() const;           ///< blocks until it is
  /// Milliseconds from `start` to this event; both recorded and done.
  double elapsed_ms(const Event& start) const;
  CUevent_st* handle() const { return handle_; }  ///< CUDA's own

 private:
  int device_;
  CUevent_st* handle_ = nullptr;
};

/// Makes `device` the CUDA runtime's present device of this thread. Afterwards the one before is it again, if it is in
/// use (Note [Contexts]).
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;

 private:
  int previous_ = -1;  // -1: nothing to restore
};

/// Sends this thread's work on the stream's device to that stream.
class StreamGuard {
 public:
  explicit StreamGuard(const Stream& stream);
  ~StreamGuard();
  StreamGuard(const StreamGuard&) = delete;

 private:
  DeviceGuard device_;
  Stream previous_;
};

}  // namespace lockstep::cuda
