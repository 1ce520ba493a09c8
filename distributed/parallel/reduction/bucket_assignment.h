#pragma once

#include <cstddef>
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

/// "bucket 2: fc1.weight, fc1.bias".
OperationLabel bucket_label(std::size_t bucket, const std::vector<std::string>& names);

}  // namespace lockstep::distributed
