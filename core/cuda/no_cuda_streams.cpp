// Stands for streams, graphs and pinned memory in a build without CUDA. There is no device, so nothing here comes to
// its end: require_device() throws.
#include "lockstep/core/cuda/cuda.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/gather_rows.h"
#include "lockstep/core/cuda/graph.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/cuda/pinned.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/error.h"

namespace lockstep::cuda {
namespace {

[[noreturn]] void refuse() {
  require_device(0);
  throw Error(why_unavailable());
}

}  // namespace

Stream Stream::default_of(int) {
  refuse();
}
Stream Stream::current(int) {
  refuse();
}
Stream Stream::from_pool(int, bool) {
  refuse();
}
Stream Stream::create(int, bool) {
  refuse();
}
void Stream::synchronize() const {
  refuse();
}
void Stream::wait(const Event&) const {
  refuse();
}
bool Stream::is_capturing() const {
  return false;
}

void synchronize(int) {
  refuse();
}

Event::Event(int device, bool) : device_(device) {
  refuse();
}
Event::~Event() = default;
Event::Event(Event&&) noexcept = default;
Event& Event::operator=(Event&&) noexcept = default;
void Event::record(const Stream&) {
  refuse();
}
bool Event::is_done() const {
  refuse();
}
void Event::synchronize() const {
  refuse();
}
double Event::elapsed_ms(const Event&) const {
  refuse();
}

DeviceGuard::DeviceGuard(int) {
  refuse();
}
DeviceGuard::~DeviceGuard() = default;
StreamGuard::StreamGuard(const Stream& stream) : device_(stream.device()), previous_(stream) {}
StreamGuard::~StreamGuard() = default;

struct Graph::Handle {};
Graph Graph::capture(const Stream&, const std::function<void()>&) {
  refuse();
}
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;
Graph::~Graph() = default;
void Graph::launch() const {
  refuse();
}

Tensor empty_pinned(const Shape&, DType) {
  refuse();
}
bool is_pinned(const Tensor&) {
  return false;
}
void copy_async(const Tensor&, const Tensor&) {
  refuse();
}
void gather_rows(const Tensor&, const Tensor&, const Tensor&) {
  refuse();
}
void record_stream(const Tensor&, const Stream&) {
  refuse();
}

}  // namespace lockstep::cuda
