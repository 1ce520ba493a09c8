#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/transforms.h"

namespace lockstep::data {

class ResidentDataset;

/// Options of DataLoader.
struct DataLoaderOptions {
  /// Samples a step, over all ranks together; of each rank if the sampler divides the samples (DistributedSampler).
  std::int64_t batch_size = 64;
  bool shuffle = true;  ///< a new order in each epoch; otherwise that of the data set
  /// Of the order, of the transforms, and of what the samples of a MapDataset draw.
  std::uint64_t seed = 0;
  /// Leaves out the last batch of an epoch if it is short.
  bool drop_last = false;
  /// Makes a batch of samples, on the workers: to pad them, say. Null: as the data set does.
  Collate collate_fn = nullptr;
  /// Threads that assemble batches; 0 assembles them in the caller's thread, when asked for.
  int num_workers = 1;
  /// Batches a worker may have ready before they are asked for.
  int prefetch = 2;
  /// Delivers only this rank's contiguous part of each global batch: partition(size of the batch, world_size, rank).
  /// The parts of a short batch may be empty; the number of steps is the same on every rank.
  int rank = 0;
  int world_size = 1;  ///< see rank
  /// Of lockstep training: the batch is cut into so many shards first, and a rank gets the samples of its consecutive
  /// shards, partition(logical_shards, world_size, rank). Each shard is collated and transformed by itself, since what
  /// is padded or drawn for it must not depend on the number of ranks; their rows must have one size. The loader throws
  /// Error for shards of this rank that differ in names, dtypes or sizes of a row, and a lockstep step for those of
  /// different ranks. 0: off.
  std::int64_t logical_shards = 0;
  std::vector<Transform> transforms = {};  ///< applied to each batch's x, in order, on the workers
  /// A CUDA device: the whole set is copied there once, if it has no transforms and no collate_fn, and takes at most
  /// `resident_bytes`, and batches are gathered and delivered there, on the caller's current stream; else they are
  /// delivered on the CPU.
  Device device = {};
  std::size_t resident_bytes = std::size_t{4} << 30;  ///< see device
  /// Gives the order instead of `shuffle`.
  std::shared_ptr<const Sampler> sampler = nullptr;
  /// The longest wait for one batch.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// One pass over a dataset; made by DataLoader::epoch(). Its workers end with it, wherever the loop over it stops, and
/// give up what nobody wants any more; one that hangs is left behind after the loader's timeout, or two seconds where
/// an exception ends the loop. For one thread at a time.
class Epoch {
 public:
  /// An input iterator over the batches: for range loops, once.
  class Iterator {
   public:
    using iterator_concept = std::input_iterator_tag;  ///< single pass
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    Batch& operator*() const { return *epoch_->current_; }
    Batch* operator->() const { return epoch_->current_; }
    Iterator& operator++() {
      epoch_->advance();
      return *this;
    }
    void operator++(int) { epoch_->advance(); }
    bool operator==(std::default_sentinel_t) const { return epoch_->current_ == nullptr; }

   private:
    friend class Epoch;
    explicit Iterator(Epoch* epoch) : epoch_(epoch) {}
    Epoch* epoch_;
  };

  ~Epoch();
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

  /// The next batch, valid until the one after it is asked for. Single pass: a second begin() goes on where the first
  /// stopped. Rethrows what a dataset or transform threw while making this batch, and throws TimeoutError if it was not
  /// ready within the loader's timeout; either ends the epoch.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// Steps of the whole epoch, and the step of the current batch.
  std::int64_t steps() const;
  std::int64_t step() const;  ///< number of the next batch, from 0

 private:
  friend class DataLoader;
  struct Impl;
  struct Deleter {
    void operator()(Impl* impl) const;
  };
  explicit Epoch(std::unique_ptr<Impl, Deleter> impl);
  void advance();

  std::unique_ptr<Impl, Deleter> impl_;
  Batch* current_ = nullptr;
};

/// Batches of a dataset in an order that depends on (seed, epoch) alone, made ahead of need by worker threads and
/// delivered in order whatever their number.
/// ```
/// DataLoader loader(mnist(), {.batch_size = 64, .seed = 1});
/// for (int epoch = 0; epoch < 3; ++epoch)
///   for (auto& batch : loader.epoch(epoch)) train(batch.x, batch.y);
/// ```
class DataLoader {
 public:
  /// Throws Error for options out of range, or a DistributedSampler together with a world_size above 1 or logical
  /// shards.
  explicit DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options = {});

  /// Starts epoch `epoch`, a number that enters the order, at step `first_step`: a run that stopped there goes on with
  /// the very batches it would have seen. Throws Error for a negative epoch, and unless 0 <= first_step <=
  /// steps_per_epoch().
  Epoch epoch(std::int64_t epoch, std::int64_t first_step = 0) const;

  /// Global batches an epoch; the same on every rank.
  std::int64_t steps_per_epoch() const;
  const Dataset& dataset() const { return *dataset_; }           ///< what it was made from
  const DataLoaderOptions& options() const { return options_; }  ///< what it was made with

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::shared_ptr<const Sampler> sampler_;
  DataLoaderOptions options_;
  std::shared_ptr<const ResidentDataset> resident_;
};

}  // namespace lockstep::data
