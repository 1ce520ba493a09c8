#include "lockstep/core/storage.h"

#include <utility>

#include "lockstep/core/allocator.h"
#include "lockstep/core/check.h"
#include "lockstep/core/computation.h"
#include "lockstep/core/free_list.h"

namespace lockstep {

void* Storage::operator new(std::size_t bytes) {
  return FreeList<sizeof(Storage)>::allocate(bytes);
}
void Storage::operator delete(void* pointer) noexcept {
  FreeList<sizeof(Storage)>::release(pointer);
}

Storage::Storage(std::size_t bytes, Device device)
    : data_(allocator(device.type).allocate(bytes, device)), bytes_(bytes), device_(device) {}

Storage::Storage(void* data, std::size_t bytes, Device device, std::function<void()> release)
    : data_(data), bytes_(bytes), device_(device), lent_(true), owned_(false), release_(std::move(release)) {}

Storage::Storage(std::size_t bytes, Device device, IntrusivePtr<Computation> computation)
    : bytes_(bytes), device_(device), ready_(false), owned_(false), computation_(std::move(computation)) {}

Storage::~Storage() {
  if (computation_) computation_->forget(*this);
  if (owned_) {
    allocator(device_.type).deallocate(data_, bytes_, device_);
  } else if (release_) {
    release_();
  }
}

void Storage::compute() const {
  computation_->settle();
  computation_->order_after();
  LOCKSTEP_ASSERT(!is_pending(), "a computation left a result of {} bytes out", bytes_);
}

void Storage::lend() const {
  before_change();
  if (!is_lent()) lent_.store(true, std::memory_order_relaxed);
}

void Storage::settle_readers() const {
  Computation::settle_readers(*this);
}

void Storage::adopt(Storage& values) {
  LOCKSTEP_ASSERT(values.bytes_ == bytes_ && values.owned_ && values.device_ == device_,
                  "a computation gave {} bytes for {}", values.bytes_, bytes_);
  data_ = std::exchange(values.data_, nullptr);
  values.owned_ = false;
  owned_ = true;
  ready_.store(true, std::memory_order_release);
}

}  // namespace lockstep
