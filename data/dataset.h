#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/core/tensor.h"

namespace lockstep::data {

/// Samples with their targets.
struct Batch {
  Tensor x;  ///< float32 [N, C, H, W] for images
  Tensor y;  ///< int64 [N], class indices
  /// Samples in the global batch that this is a part of, from which parallel training tells what it was given: a global
  /// batch if it equals size() or is 0, and otherwise one rank's part.
  std::int64_t global_size = 0;

  std::int64_t size() const { return y.defined() ? y.size(0) : 0; }
};

/// A set of samples with random access. Whole batches are asked for, so that a dataset can assemble them in one go.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// The samples at `indices`, each in [0, size()), in this order; indices may repeat, and none gives a batch of size 0
  /// with the usual shape. Called from several threads at once. Throws Error for an index out of range.
  virtual Batch get_batch(std::span<const std::int64_t> indices) const = 0;
};

/// Samples held in two tensors.
class TensorDataset final : public Dataset {
 public:
  /// x: [N, ...] of any dtype, y: [N, ...]; both on the CPU. They are not copied: later writes show.
  /// Throws Error if one is undefined, has no dimension, is on another device, or if their first sizes differ.
  TensorDataset(Tensor x, Tensor y);

  std::int64_t size() const override { return x_.size(0); }
  Batch get_batch(std::span<const std::int64_t> indices) const override;

 private:
  Tensor x_;
  Tensor y_;
};

/// Throws Error naming `dataset` unless every index lies in [0, size). For authors of datasets.
void check_indices(std::span<const std::int64_t> indices, std::int64_t size, const char* dataset);

}  // namespace lockstep::data
