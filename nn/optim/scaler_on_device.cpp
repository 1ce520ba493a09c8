#include "lockstep/nn/optim/scaler_on_device.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/core/computation.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/cuda/pinned.h"
#include "lockstep/core/factories.h"

namespace lockstep::optim::detail {

ScalerOnDevice::ScalerOnDevice(const Device& device)
    : words_(zeros({kScalerWords}, {.dtype = kFloat64, .device = device})) {
  for (Slot& slot : slots_) {
    slot.pinned = cuda::empty_pinned({kScalerWords}, kFloat64);
    slot.done.emplace(device.index);
  }
  cuda::Stream::current(device.index).synchronize();  // other streams use the words
}

ScalerOnDevice::~ScalerOnDevice() {
  try {
    if (launches_ > 0) read();  // copies into pinned memory are under way until then
  } catch (const Error&) {
    // Of a failure on the device the caller has been told.
  }
}

void ScalerOnDevice::put(double scale, std::int64_t good_steps) {
  if (launches_ > 0) read();
  launches_ = 0;
  last_ = {};
  last_[kScale] = scale;
  last_[kGoodSteps] = static_cast<double>(good_steps);
  last_[kSkipped] = static_cast<double>(skips_);
  const LibraryAccess access;
  cuda::store(last_.data(), words_.raw_data(), sizeof(last_), device().index);
}

std::array<double, kScalerWords> ScalerOnDevice::words_in(const Slot& slot) const {
  slot.done->synchronize();
  const LibraryAccess access;
  std::array<double, kScalerWords> words;
  std::copy_n(static_cast<const double*>(slot.pinned.raw_data()), words.size(), words.begin());
  return words;
}

void ScalerOnDevice::wait_for_turn() {
  if (launches_ < kMostAhead) return;
  const double skips = words_in(slots_[launches_ % kMostAhead])[kSkipped];
  skips_ = std::max(skips_, static_cast<std::int64_t>(skips));  // read() may have told of later ones
}

void ScalerOnDevice::launched(const cuda::Stream& stream) {
  Slot& slot = slots_[launches_++ % kMostAhead];
  {
    const LibraryAccess access;
    cuda::copy_async(words_, slot.pinned);
  }
  slot.done->record(stream);
}

std::array<double, kScalerWords> ScalerOnDevice::read() {
  if (launches_ > 0) last_ = words_in(slots_[(launches_ - 1) % kMostAhead]);
  skips_ = static_cast<std::int64_t>(last_[kSkipped]);
  return last_;
}

}  // namespace lockstep::optim::detail
