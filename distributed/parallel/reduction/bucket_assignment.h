#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/distributed/operation/operation.h"

namespace lockstep::distributed {

/// What decides a parameter's bucket.
struct BucketItem {
  std::size_t bytes = 0;
  DType dtype = kFloat32;
  Device device = {};
};

/// Groups parameters into buckets whose gradients are reduced together. Walks the parameters from last to first, since
/// backward produces gradients in about that order; a bucket is closed once it holds at least `first_bucket_bytes` (the
/// first one) or `bucket_bytes`, and holds one dtype on one device. Returns indices into `items`, in launch order. A
/// pure function: every rank finds the same buckets. After Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2.3.
std::vector<std::vector<std::size_t>> assign_buckets(const std::vector<BucketItem>& items,
                                                     std::size_t first_bucket_bytes, std::size_t bucket_bytes);

/// The room of a tensor of so many elements in memory that it shares with others: up to where the next may begin so
/// that CUDA kernels load 16 bytes of it at once.
constexpr std::int64_t packed_elements(std::int64_t elements, DType dtype) {
  const auto together = static_cast<std::int64_t>(16 / element_size(dtype));
  return (elements + together - 1) / together * together;
}

/// "bucket 2: fc1.weight, fc1.bias".
OperationLabel bucket_label(std::size_t bucket, const std::vector<std::string>& names);

}  // namespace lockstep::distributed
