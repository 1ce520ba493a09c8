#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// A whole data set in the memory of a CUDA device, and batches of it gathered there: nothing is copied from the host
/// in a step. All calls are queued on the calling thread's current stream.
class ResidentDataset {
 public:
  /// Asks `dataset` for all its samples once, in pieces. Throws Error if the device has too little memory.
  ResidentDataset(const Dataset& dataset, Device device);

  /// Indices into the set, on the device.
  Tensor upload(std::span<const std::int64_t> indices) const;
  /// The samples of `indices`, int64 [N] from upload(), which nobody checks again.
  Batch get_batch(const Tensor& indices) const;

 private:
  Batch samples_;
  Device device_;
};

}  // namespace lockstep::data
