#include "lockstep/core/storage.h"

#include <utility>

#include "lockstep/core/allocator.h"

namespace lockstep {

Storage::Storage(std::size_t bytes, Device device)
    : data_(allocator(device.type).allocate(bytes, device)), bytes_(bytes), device_(device) {}

Storage::Storage(void* data, std::size_t bytes, Device device, std::function<void()> release)
    : data_(data), bytes_(bytes), device_(device), owned_(false), release_(std::move(release)) {}

Storage::~Storage() {
  if (owned_) {
    allocator(device_.type).deallocate(data_, bytes_, device_);
  } else if (release_) {
    release_();
  }
}

}  // namespace lockstep
