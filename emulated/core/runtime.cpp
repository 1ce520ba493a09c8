// The emulated device's side of the CUDA runtime's interface.

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/emulated/core/execution.h"
#include "lockstep/emulated/core/faults.h"
#include "lockstep/emulated/core/memory.h"
#include "lockstep/emulated/core/streams.h"

using namespace lockstep::cuda::emulated;

struct CUevent_st {
  int device = 0;
  Mark mark;
  bool recorded = false;
  std::shared_ptr<Capture> capture;  // recorded under one
  std::shared_ptr<Clock::time_point> when = std::make_shared<Clock::time_point>();
};
struct CUgraph_st {
  std::shared_ptr<Recording> recording;
};
struct CUgraphExec_st {
  std::shared_ptr<Recording> recording;
};

namespace {

thread_local int present_device = 0;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
// Captures that calls of any thread may break.
std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* all = new std::vector<std::shared_ptr<Capture>>;
  return *all;
}

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int devices() {
  static const int count = [] {
    const char* text = std::getenv("LOCKSTEP_EMULATED_CUDA_DEVICES");
    return text ? std::atoi(text) : 0;
  }();
  return count;
}

Queue& queue_of(cudaStream_t stream) {
  return Streams::instance().queue_of(present_device, stream);
}

// Work and waiting need a context, and find out what has become of the device.
cudaError_t use() {
  use_device(present_device);
  return result(faults::device_error(present_device));
}
#define LOCKSTEP_EMULATED_USE() \
  if (const cudaError_t status = use(); status != cudaSuccess) return status

int get_context_state(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = is_used(device);
  return 0;
}

// Calls that wait, or take memory, break a capture: one of mode global from any thread, thread-local from its own.
bool breaks_capture() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  const std::lock_guard lock(Streams::instance().mutex);
  bool broken = false;
  for (const auto& capture : captures())
    if (capture->mode == cudaStreamCaptureModeGlobal ||
        (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread == std::this_thread::get_id()))
      capture->invalid = broken = true;
  return broken;
}

// A failure of the work itself: a GPU reports it at the next call that waits.
cudaError_t reach(Mark mark) {
  Streams::instance().reach(mark);
  return mark.queue ? result(faults::device_error(mark.queue->device)) : cudaSuccess;
}

void copy(void* target, const void* source, std::size_t bytes, Queue& queue) {
  if (bytes == 0) return;
  // Pageable memory too is read when the stream comes to it, as by a device that shares the host's page tables.
  Streams::instance().put(queue, [=] {
    std::memmove(target, source, bytes);
    return true;
  });
}

}  // namespace

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 0;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0;
  *function = known ? reinterpret_cast<void*>(&get_context_state) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = devices();
  return result(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = present_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices()) return result(cudaErrorInvalidDevice);
  present_device = device;
  use_device(device);  // since version 12
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= devices()) return result(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "emulated device (no GPU)");
  properties->uuid.bytes[0] = 'e';
  properties->uuid.bytes[15] = static_cast<char>(device);
  std::size_t free = 0;
  device_info(device, &free, &properties->totalGlobalMem);
  properties->major = 9;
  properties->multiProcessorCount = 2;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -1;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  LOCKSTEP_EMULATED_USE();
  if (breaks_capture()) return result(cudaErrorStreamCaptureUnsupported);
  Streams::instance().reach_all(present_device);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  LOCKSTEP_EMULATED_USE();
  if (breaks_capture()) return result(cudaErrorStreamCaptureUnsupported);
  *data = allocate_device(present_device, bytes);
  return result(*data ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* data) {
  if (!data) return cudaSuccess;
  if (breaks_capture()) return result(cudaErrorStreamCaptureUnsupported);
  Streams::instance().reach_all(device_of(data));
  return result(free_device(data) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  LOCKSTEP_EMULATED_USE();
  if (breaks_capture()) return result(cudaErrorStreamCaptureUnsupported);
  *data = allocate_pinned(bytes);
  return result(*data ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFreeHost(void* data) {
  if (!data) return cudaSuccess;
  for (int device = 0; device < devices(); ++device) Streams::instance().reach_all(device);
  return result(free_pinned(data) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  LOCKSTEP_EMULATED_USE();
  device_info(present_device, free, total);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  LOCKSTEP_EMULATED_USE();
  Queue& queue = queue_of(stream);
  copy(target, source, bytes, queue);
  // To pageable memory the call returns when the bytes are there. A capture keeps the address, and nothing is said.
  const bool to_pageable = !is_device(target) && !is_pinned(target);
  if (to_pageable && !queue.capture) return reach(Streams::instance().mark(queue));
  return cudaSuccess;
}

cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int, std::size_t bytes, cudaStream_t stream) {
  copy(target, source, bytes, queue_of(stream));
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind) {
  if (breaks_capture()) return result(cudaErrorStreamCaptureUnsupported);
  const cudaError_t status = cudaMemcpyAsync(target, source, bytes, kind, nullptr);
  if (status != cudaSuccess) return status;
  return reach(Streams::instance().mark(queue_of(nullptr)));
}

cudaError_t cudaMemsetAsync(void* target, int value, std::size_t bytes, cudaStream_t stream) {
  LOCKSTEP_EMULATED_USE();
  enqueue(stream, [=] {
    std::memset(target, value, bytes);
    return true;
  });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  LOCKSTEP_EMULATED_USE();
  *stream = Streams::instance().make(present_device);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  LOCKSTEP_EMULATED_USE();
  Queue& queue = queue_of(stream);
  if (queue.capture) {
    queue.capture->invalid = true;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  if (breaks_capture()) return result(cudaErrorStreamCaptureUnsupported);
  return reach(Streams::instance().mark(queue));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Queue& queue = queue_of(stream);
  if (event->capture) {
    if (event->capture->ended) return result(cudaErrorCapturedEvent);
    if (queue.capture && queue.capture != event->capture) return result(cudaErrorStreamCaptureIsolation);
    const std::lock_guard lock(Streams::instance().mutex);  // another thread may end a capture of its own
    queue.capture = event->capture;                         // joins the capture
    return cudaSuccess;
  }
  if (queue.capture && event->recorded) {
    queue.capture->invalid = true;
    return result(cudaErrorStreamCaptureIsolation);
  }
  if (!event->recorded) return cudaSuccess;
  Streams::instance().put(queue, [mark = event->mark] { return Streams::instance().try_reach(mark); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  LOCKSTEP_EMULATED_USE();
  *event = new CUevent_st;
  (*event)->device = present_device;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  LOCKSTEP_EMULATED_USE();
  Queue& queue = queue_of(stream);
  event->capture = queue.capture;
  event->recorded = true;
  if (queue.capture) return cudaSuccess;
  event->when = std::make_shared<Clock::time_point>();
  Streams::instance().put(queue, [when = event->when] {
    *when = Clock::now();
    return true;
  });
  event->mark = Streams::instance().mark(queue);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  LOCKSTEP_EMULATED_USE();
  if (event->capture) {
    event->capture->invalid = true;
    return result(cudaErrorCapturedEvent);
  }
  if (breaks_capture()) return result(cudaErrorStreamCaptureUnsupported);
  return Streams::instance().reached(event->mark) ? cudaSuccess : result(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  LOCKSTEP_EMULATED_USE();
  if (event->capture) {
    event->capture->invalid = true;
    return result(cudaErrorCapturedEvent);
  }
  if (breaks_capture()) return result(cudaErrorStreamCaptureUnsupported);
  return reach(event->mark);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!start->recorded || !end->recorded) return result(cudaErrorInvalidResourceHandle);
  if (!Streams::instance().reached(start->mark) || !Streams::instance().reached(end->mark))
    return result(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(*end->when - *start->when).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Queue& queue = queue_of(stream);
  if (!stream || queue.capture) return result(cudaErrorStreamCaptureUnsupported);  // the default stream cannot
  const auto capture = std::make_shared<Capture>();
  capture->origin = &queue;
  capture->mode = mode;
  const std::lock_guard lock(Streams::instance().mutex);
  queue.capture = capture;
  captures().push_back(capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Queue& queue = queue_of(stream);
  *graph = nullptr;
  if (!queue.capture || queue.capture->origin != &queue) return result(cudaErrorInvalidValue);
  const std::shared_ptr<Capture> capture = queue.capture;
  Streams::instance().end_capture(*capture);
  const std::lock_guard lock(Streams::instance().mutex);
  std::erase(captures(), capture);
  if (capture->invalid) return result(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{capture->recording};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Queue& queue = queue_of(stream);
  *status = !queue.capture           ? cudaStreamCaptureStatusNone
            : queue.capture->invalid ? cudaStreamCaptureStatusInvalidated
                                     : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->recording};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  LOCKSTEP_EMULATED_USE();
  Queue& queue = queue_of(stream);
  for (const Work& work : *exec->recording) Streams::instance().put(queue, work);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, void*, std::size_t* count) {
  *count = graph->recording->size();
  return cudaSuccess;
}
