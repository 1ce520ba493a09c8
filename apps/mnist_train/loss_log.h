#pragma once

#include <cstdint>
#include <vector>

#include "apps/mnist_train/reporter.h"
#include "lockstep/core/tensor.h"

namespace lockstep::apps {

/// Losses on their way from a device to the reporter: they are read together, a few times a second at most, so that
/// steps need not wait for each other.
class LossLog {
 public:
  explicit LossLog(Reporter& reporter) : reporter_(reporter) {}

  /// `loss`: one float64 element on any device; it is copied there.
  void add(std::int64_t step, std::int64_t epoch, const Tensor& loss, std::int64_t images);
  /// Hands on what there is; waits for the device.
  void flush();

 private:
  struct Entry {
    std::int64_t step, epoch, images;
  };
  Reporter& reporter_;
  std::vector<Entry> entries_;
  Tensor losses_;
};

}  // namespace lockstep::apps
