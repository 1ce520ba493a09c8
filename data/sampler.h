#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// The order of samples in each epoch. A pure function of the sampler's parameters and the epoch: nothing is carried
/// from one epoch to the next, so any position of a training run can be found again without replaying it.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Samples an epoch.
  virtual std::int64_t size() const = 0;
  /// size() indices into the dataset. Thread-safe.
  virtual std::vector<std::int64_t> indices(std::uint64_t epoch) const = 0;
  /// Ranks that share an epoch, each with size() samples of its own from a sampler of its own. 1: the order is that of
  /// all ranks together.
  virtual int world_size() const { return 1; }
};

/// 0, 1, ... count - 1, in every epoch.
class SequentialSampler final : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t count);
  std::int64_t size() const override { return count_; }
  std::vector<std::int64_t> indices(std::uint64_t epoch = 0) const override;

 private:
  std::int64_t count_;
};

/// A random permutation for each epoch: epoch_permutation(count, seed, epoch).
class RandomSampler final : public Sampler {
 public:
  explicit RandomSampler(std::int64_t count, std::uint64_t seed = 0);
  std::int64_t size() const override { return count_; }
  std::vector<std::int64_t> indices(std::uint64_t epoch) const override;

 private:
  std::int64_t count_;
  std::uint64_t seed_;
};

/// Options of DistributedSampler.
struct DistributedSamplerOptions {
  int rank = 0;            ///< whose share it is
  int world_size = 1;      ///< number of shares
  bool shuffle = true;     ///< epoch_permutation(), or the data set's order
  std::uint64_t seed = 0;  ///< of the permutation
  /// True: leave out the samples that do not divide evenly. False: repeat some from the start, so that they do.
  bool drop_last = false;
};

/// One rank's share of each epoch with the semantics of torch.utils.data.DistributedSampler: all ranks get the same
/// number of samples, every world_size-th one of a common order. The order itself is lockstep's (epoch_permutation).
/// A DataLoader with this sampler delivers batches of batch_size samples to each rank, world_size times as many in all,
/// as PyTorch's does; steps of parallel training take them as this rank's part of the global batch. For training that
/// must see the same global batches on any number of ranks, give DataLoader rank and world_size
/// instead; for evaluation, too: this sampler may count samples twice.
class DistributedSampler final : public Sampler {
 public:
  /// Throws Error unless count >= 0 and 0 <= rank < world_size.
  DistributedSampler(std::int64_t count, DistributedSamplerOptions options);

  std::int64_t size() const override { return size_; }
  std::vector<std::int64_t> indices(std::uint64_t epoch) const override;
  int world_size() const override { return options_.world_size; }

  /// Chooses the epoch of the next indices(). Throws Error if it is negative.
  void set_epoch(std::int64_t epoch);
  std::vector<std::int64_t> indices() const { return indices(epoch_); }  ///< of the epoch that set_epoch() chose

 private:
  std::int64_t count_;
  std::int64_t size_;
  DistributedSamplerOptions options_;
  std::uint64_t epoch_ = 0;
};

/// A uniformly random permutation of 0 ... count - 1 that depends on the arguments alone (Fisher-Yates on Philox words
/// of the stream RandomStream::data). About 15 ns an element.
std::vector<std::int64_t> epoch_permutation(std::int64_t count, std::uint64_t seed, std::uint64_t epoch);

}  // namespace lockstep::data
