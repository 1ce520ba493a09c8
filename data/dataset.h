#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/random.h"
#include "lockstep/core/tensor.h"

namespace lockstep::data {

/// Samples with their targets, or any number of named tensors: images and captions, two inputs, a mask. All have the
/// samples along dimension 0; dtypes and other sizes are free, and any may be undefined.
///   data::Batch batch{.tensors = {{"image", image}, {"tokens", tokens}}};
///   net(batch["image"], batch["tokens"]);
struct Batch {
  Tensor x = {};  ///< float32 [N, C, H, W] for images
  Tensor y = {};  ///< int64 [N], class indices
  /// Samples in the global batch that this is a part of, from which parallel training tells what it was given: a global
  /// batch if it equals size() or is 0, and otherwise one rank's part.
  std::int64_t global_size = 0;
  std::map<std::string, Tensor> tensors = {};  ///< what else belongs to the samples, by name

  /// Samples in it: the size of dimension 0. Throws Error if its tensors differ in that, or two have one name.
  std::int64_t size() const;
  /// "x", "y" or one of `tensors`, which may also have an "x" or "y" where the member is undefined. Throws Error if
  /// there is none of that name.
  const Tensor& operator[](const std::string& name) const;
  /// f(name, tensor) for what is defined: x, y, then `tensors` by name.
  template <typename F>
  void for_each(F&& f) const;
  /// A batch of f(tensor) for what is defined.
  template <typename F>
  Batch map(F&& f) const;
};

/// A set of samples with random access. Whole batches are asked for, so that a dataset can assemble them in one go; one
/// that makes single samples is easier written as a MapDataset.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  /// The samples at `indices`, each in [0, size()), in this order; indices may repeat, and none gives a batch of size 0
  /// with the usual shape. Called from several threads at once. Throws Error for an index out of range.
  virtual Batch get_batch(std::span<const std::int64_t> indices) const = 0;
  /// A short text that differs from that of a set with other samples, as far as a set can tell without reading for
  /// long, wherever they were loaded from; empty: nobody knows. training::Run compares it between ranks, and on
  /// resumption with what the checkpoint was trained on.
  virtual std::string content() const { return {}; }
  /// The same one by one, without dimension 0: for DataLoaderOptions::collate_fn.
  virtual std::vector<Batch> get_samples(std::span<const std::int64_t> indices) const;
  /// Whether a batch is one row for each sample, whatever else is in it, and nothing is drawn at random: then logical
  /// shards need not be made one by one (DataLoaderOptions::logical_shards).
  virtual bool is_of_rows() const { return false; }
};

/// Samples held in tensors.
class TensorDataset final : public Dataset {
 public:
  /// x: [N, ...] of any dtype, y: [N, ...] or undefined; both on the CPU. They are not copied: later writes show.
  /// Throws Error if x is undefined, if one has no dimension or is on another device, or if their first sizes differ.
  explicit TensorDataset(Tensor x, Tensor y = {});
  /// The same for named tensors, of which there must be one.
  explicit TensorDataset(Batch samples);

  std::int64_t size() const override { return samples_.size(); }
  Batch get_batch(std::span<const std::int64_t> indices) const override;
  std::string content() const override;  ///< a checksum of all tensors as they are now
  bool is_of_rows() const override { return true; }

 private:
  Batch samples_;
};

/// Makes a batch of samples, such as one that pads them to the same length. Each sample is a Batch without dimension 0.
using Collate = std::function<Batch(const std::vector<Batch>& samples)>;

/// Stacks them along a new dimension 0, tensor by tensor. Throws Error if they differ in names, shapes or dtypes, or if
/// there are none.
Batch default_collate(const std::vector<Batch>& samples);

/// A data set whose samples are made one by one, as PyTorch's with __getitem__ and __len__.
class MapDataset : public Dataset {
 public:
  /// Sample `index` in [0, size()), on the CPU, without dimension 0: x is [C, H, W], say, and y a tensor of no
  /// dimension. Called from several threads at once. What it draws under a DataLoader depends on the seeds, the epoch
  /// and the index alone (SampleKeys).
  virtual Batch get(std::int64_t index) const = 0;

  Batch get_batch(std::span<const std::int64_t> indices) const final;                 ///< get() of each, stacked
  std::vector<Batch> get_samples(std::span<const std::int64_t> indices) const final;  ///< get() of each
};

/// Some samples of another set, in an order of their own. What they draw is what they draw in that set.
class Subset final : public Dataset {
 public:
  /// Of the samples at `indices`, which may repeat. Throws Error for a null set, and for an index out of range.
  Subset(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices);

  std::int64_t size() const override { return static_cast<std::int64_t>(indices_.size()); }
  Batch get_batch(std::span<const std::int64_t> indices) const override;
  std::string content() const override;  ///< of the set, with a checksum of the indices; empty if the set's is
  std::vector<Batch> get_samples(std::span<const std::int64_t> indices) const override;
  bool is_of_rows() const override { return dataset_->is_of_rows(); }
  const std::vector<std::int64_t>& indices() const { return indices_; }  ///< into the other set

 private:
  std::vector<std::int64_t> inner_of(std::span<const std::int64_t> indices) const;

  std::shared_ptr<const Dataset> dataset_;
  std::vector<std::int64_t> indices_;
};

/// Sets one behind the other. A MapDataset's sample draws by its index within its own set.
class ConcatDataset final : public Dataset {
 public:
  /// Throws Error for a null set, and if there is none.
  explicit ConcatDataset(std::vector<std::shared_ptr<const Dataset>> datasets);

  std::int64_t size() const override { return ends_.back(); }
  /// Throws Error also where the samples of two sets differ in names, shapes or dtypes.
  Batch get_batch(std::span<const std::int64_t> indices) const override;
  std::string content() const override;  ///< of all sets; empty if one's is
  std::vector<Batch> get_samples(std::span<const std::int64_t> indices) const override;

 private:
  std::vector<std::shared_ptr<const Dataset>> datasets_;
  std::vector<std::int64_t> ends_;  // where each set's samples end
};

/// Divides a set at random, each sample into one of the parts: 50000 to train on and the rest to validate with are
/// `random_split(set, {50000, set->size() - 50000}, seed)`. The same seed gives the same parts anywhere. Throws Error
/// for a null set, a negative size, and unless the sizes add up to the set's.
std::vector<std::shared_ptr<Subset>> random_split(std::shared_ptr<const Dataset> dataset,
                                                  const std::vector<std::int64_t>& sizes, std::uint64_t seed = 0);

/// Throws Error naming `dataset` unless every index lies in [0, size). For authors of datasets.
void check_indices(std::span<const std::int64_t> indices, std::int64_t size, const char* dataset);

/// While it lives, random numbers (rand(), randint(), dropout ...) that this thread draws do not depend on the thread.
/// Those of a MapDataset's get() are drawn under a key of the seed, the epoch and the sample's index: the same ones
/// with any number of workers, ranks and samples a batch, others in another epoch. What get_batch(), a Collate or a
/// Transform draws for a batch as a whole is drawn under a key of the seed, the epoch, the batch's step and `part`: the
/// rank, or in lockstep training the logical shard, each of which is made by itself. DataLoader makes one for each.
class SampleKeys {
 public:
  SampleKeys(std::uint64_t seed, std::uint64_t epoch, std::int64_t step, std::int64_t part);
  ~SampleKeys();
  SampleKeys(const SampleKeys&) = delete;
  SampleKeys& operator=(const SampleKeys&) = delete;

 private:
  std::optional<std::uint64_t> outer_;
  RandomKeyGuard batch_;
};

/// The batch that `collate_fn` makes of the samples at `indices`; for none a batch of the usual shape, with no rows.
Batch collate(const Dataset& dataset, std::span<const std::int64_t> indices, const Collate& collate_fn);

/// The rows of a batch in [begin, begin + size), as views.
Batch rows_of(const Batch& batch, std::int64_t begin, std::int64_t size);
/// The rows of the logical shards of a batch, one shard behind the other. Throws Error if they differ in names, dtypes
/// or the sizes of a row.
Batch joined_shards(const std::vector<Batch>& shards);

template <typename F>
void Batch::for_each(F&& f) const {
  if (x.defined()) f("x", x);
  if (y.defined()) f("y", y);
  for (const auto& [name, tensor] : tensors)
    if (tensor.defined()) f(name.c_str(), tensor);
}

template <typename F>
Batch Batch::map(F&& f) const {
  Batch result;
  result.global_size = global_size;
  if (x.defined()) result.x = f(x);
  if (y.defined()) result.y = f(y);
  for (const auto& [name, tensor] : tensors)
    if (tensor.defined()) result.tensors.emplace(name, f(tensor));
  return result;
}

}  // namespace lockstep::data
