#include "lockstep/data/dataset.h"

#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/data/wanted.h"

namespace lockstep::data {

namespace {

// Rows of a contiguous tensor.
Tensor take_rows(const Tensor& source, std::span<const std::int64_t> indices) {
  Shape sizes = source.sizes();
  sizes[0] = static_cast<std::int64_t>(indices.size());
  Tensor rows = empty(sizes, options_of(source));
  if (rows.numel() == 0) return rows;
  const LibraryAccess access;
  const std::size_t row_bytes = source.nbytes() / static_cast<std::size_t>(source.size(0));
  const auto* from = static_cast<const std::byte*>(source.raw_data());
  auto* to = static_cast<std::byte*>(rows.raw_data());
  for (const std::int64_t index : indices) {
    std::memcpy(to, from + static_cast<std::size_t>(index) * row_bytes, row_bytes);
    to += row_bytes;
  }
  return rows;
}

// A row, without dimension 0.
Tensor sample_of(const Tensor& tensor, std::int64_t index) {
  const Tensor row = rows(tensor, index, 1);
  Shape sizes = row.sizes(), strides = row.strides();
  sizes.erase(0);
  strides.erase(0);
  return row.as_strided(sizes, strides, row.offset());
}

void check_source(const Tensor& tensor, const char* name) {
  LOCKSTEP_CHECK(tensor.dim() > 0, "[TensorDataset] {} has no dimension; expected samples along dimension 0", name);
  LOCKSTEP_CHECK(tensor.device().type == DeviceType::cpu, "[TensorDataset] {} is on {}; expected a tensor on the CPU",
                 name, to_string(tensor.device()));
}

std::string names_in(const Batch& batch) {
  std::string names;
  batch.for_each([&](const char* name, const Tensor&) { names += (names.empty() ? "" : ", ") + std::string(name); });
  return names.empty() ? "nothing" : names;
}

std::string description(const Tensor* tensor) {
  return tensor ? fmt::format("{} {}", name(tensor->dtype()), to_string(tensor->sizes())) : "missing";
}

// Null if there is none.
const Tensor* find(const Batch& batch, const std::string& name) {
  if (name == "x" && batch.x.defined()) return &batch.x;
  if (name == "y" && batch.y.defined()) return &batch.y;
  const auto found = batch.tensors.find(name);
  return found != batch.tensors.end() && found->second.defined() ? &found->second : nullptr;
}

/// The sizes of a row.
Shape sizes_of_row(const Tensor& tensor) {
  Shape sizes = tensor.sizes();
  sizes[0] = 1;
  return sizes;
}

/// check(name, of a, of b) for each name that is in one of them; null where it is not.
template <typename Check>
void for_each_pair(const Batch& a, const Batch& b, Check&& check) {
  for (const Batch* from : {&a, &b})
    from->for_each([&](const char* name, const Tensor&) { check(name, find(a, name), find(b, name)); });
}

void check_alike(const Batch& sample, const Batch& first, std::size_t number) {
  for_each_pair(first, sample, [&](const char* name, const Tensor* a, const Tensor* b) {
    LOCKSTEP_CHECK(a && b && a->sizes() == b->sizes() && a->dtype() == b->dtype(),
                   "[default_collate] '{}' is {} in sample {} of the batch and {} in sample 0; give the DataLoader a "
                   "collate_fn that makes them alike",
                   name, description(b), number, description(a));
  });
}

}  // namespace

std::int64_t Batch::size() const {
  const Tensor* first = nullptr;
  const char* first_name = nullptr;
  for (const auto& [name, tensor] : {std::pair("x", &x), std::pair("y", &y)})
    LOCKSTEP_CHECK(!tensor->defined() || !tensors.contains(name),
                   "[Batch] '{}' is both a member and in `tensors`; keep one of them", name);
  for_each([&](const char* name, const Tensor& tensor) {
    LOCKSTEP_CHECK(tensor.dim() > 0, "[Batch] '{}' has no dimension; expected samples along dimension 0", name);
    if (!first) {
      first = &tensor;
      first_name = name;
    }
    LOCKSTEP_CHECK(tensor.size(0) == first->size(0), "[Batch] '{}' has {} samples and '{}' has {}", name,
                   tensor.size(0), first_name, first->size(0));
  });
  return first ? first->size(0) : 0;
}

const Tensor& Batch::operator[](const std::string& name) const {
  const Tensor* tensor = find(*this, name);
  LOCKSTEP_CHECK(tensor, "[Batch] there is no tensor '{}'; this batch has {}", name, names_in(*this));
  return *tensor;
}

Batch rows_of(const Batch& batch, std::int64_t begin, std::int64_t size) {
  return batch.map([&](const Tensor& tensor) { return rows(tensor, begin, size); });
}

void check_indices(std::span<const std::int64_t> indices, std::int64_t size, const char* dataset) {
  for (const std::int64_t index : indices)
    LOCKSTEP_CHECK(index >= 0 && index < size, "[{}] index {} is out of range; expected 0 to {}", dataset, index,
                   size - 1);
}

std::vector<Batch> Dataset::get_samples(std::span<const std::int64_t> indices) const {
  const Batch batch = get_batch(indices);
  std::vector<Batch> samples;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(indices.size()); ++i)
    samples.push_back(batch.map([i](const Tensor& tensor) { return sample_of(tensor, i); }));
  return samples;
}

TensorDataset::TensorDataset(Tensor x, Tensor y) : TensorDataset(Batch{.x = std::move(x), .y = std::move(y)}) {
  LOCKSTEP_CHECK(samples_.x.defined(),
                 "[TensorDataset] x is undefined; expected a tensor with samples along dimension 0");
}

TensorDataset::TensorDataset(Batch samples) {
  const Tensor* first = nullptr;
  std::string first_name;
  samples.for_each([&](const char* name, const Tensor& tensor) {
    check_source(tensor, name);
    if (!first) {
      first = &tensor;
      first_name = name;
    }
    LOCKSTEP_CHECK(tensor.size(0) == first->size(0),
                   "[TensorDataset] {} has {} samples and {} has {}; expected the same number", first_name,
                   first->size(0), name, tensor.size(0));
  });
  samples_ = samples.map([](const Tensor& tensor) { return as_contiguous(tensor.detach()); });
}

std::string TensorDataset::content() const {
  std::string text;
  samples_.for_each([&](const char* name, const Tensor& tensor) {
    const LibraryAccess access;
    text += fmt::format("{}{} {} {} {}", text.empty() ? "" : "; ", name, lockstep::name(tensor.dtype()),
                        to_string(tensor.sizes()), checksum_digits(tensor.raw_data(), tensor.nbytes()));
  });
  return text;
}

Batch TensorDataset::get_batch(std::span<const std::int64_t> indices) const {
  check_indices(indices, size(), "TensorDataset");
  Batch batch = samples_.map([&](const Tensor& tensor) { return take_rows(tensor, indices); });
  batch.global_size = static_cast<std::int64_t>(indices.size());
  return batch;
}

Batch default_collate(const std::vector<Batch>& samples) {
  LOCKSTEP_CHECK(!samples.empty(), "[default_collate] expected at least one sample");
  for (std::size_t i = 1; i < samples.size(); ++i) check_alike(samples[i], samples[0], i);
  Batch batch = samples[0].map([&](const Tensor& tensor) {
    Shape sizes = tensor.sizes();
    sizes.insert(0, static_cast<std::int64_t>(samples.size()));
    return empty(sizes, options_of(tensor));
  });
  for (std::size_t i = 0; i < samples.size(); ++i)
    batch.for_each([&](const char* name, const Tensor& all) {
      const Tensor& one = samples[i][name];
      copy_values(one, sample_of(all, static_cast<std::int64_t>(i)));
    });
  batch.global_size = static_cast<std::int64_t>(samples.size());
  return batch;
}

Batch joined_shards(const std::vector<Batch>& shards) {
  std::int64_t count = 0;
  for (const Batch& shard : shards) {
    for_each_pair(shards[0], shard, [&](const char* name, const Tensor* a, const Tensor* b) {
      if (a && b && a->dtype() == b->dtype() && sizes_of_row(*a) == sizes_of_row(*b)) return;
      const char* what = !a || !b                   ? "make the same tensors for every shard"
                         : a->dtype() != b->dtype() ? "give the tensor one dtype for every shard"
                                                    : "pad to a length that does not depend on the batch";
      LOCKSTEP_CHECK(false,
                     "[DataLoader] with logical_shards each shard of a batch is made of its own samples alone, so that "
                     "it does not depend on the number of workers; '{}' is {} in one shard and {} in another; {}",
                     name, description(a), description(b), what);
    });
    count += shard.size();
  }
  Batch batch = shards[0].map([&](const Tensor& tensor) {
    Shape sizes = tensor.sizes();
    sizes[0] = count;
    return empty(sizes, options_of(tensor));
  });
  std::int64_t begin = 0;
  for (const Batch& shard : shards) {
    batch.for_each(
        [&](const char* name, const Tensor& all) { copy_values(shard[name], rows(all, begin, shard.size())); });
    begin += shard.size();
  }
  return batch;
}

namespace {

// Steps of random keys have a bit that no training step has.
constexpr std::uint64_t kOfData = std::uint64_t{1} << 63;

// Of the innermost SampleKeys: the step of the samples' keys.
thread_local std::optional<std::uint64_t> sample_step;

std::uint64_t mixed(std::uint64_t value) {  // Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

SampleKeys::SampleKeys(std::uint64_t seed, std::uint64_t epoch, std::int64_t step, std::int64_t part)
    : outer_(std::exchange(sample_step, mixed(mixed(seed) ^ epoch) | kOfData)),
      batch_(mixed(*sample_step + static_cast<std::uint64_t>(step) + 1) | kOfData, static_cast<std::uint32_t>(part)) {}

SampleKeys::~SampleKeys() {
  sample_step = outer_;
}

std::vector<Batch> MapDataset::get_samples(std::span<const std::int64_t> indices) const {
  check_indices(indices, size(), "MapDataset");
  std::vector<Batch> samples;
  for (const std::int64_t index : indices) {
    WantedUntil::check(*this);
    std::optional<RandomKeyGuard> key;
    if (sample_step) {
      const auto number = static_cast<std::uint64_t>(index);
      key.emplace(*sample_step ^ (number >> 32), static_cast<std::uint32_t>(number));
    }
    samples.push_back(get(index));
  }
  return samples;
}

Batch MapDataset::get_batch(std::span<const std::int64_t> indices) const {
  return collate(*this, indices, default_collate);
}

Batch collate(const Dataset& dataset, std::span<const std::int64_t> indices, const Collate& collate_fn) {
  if (!indices.empty()) return collate_fn(dataset.get_samples(indices));
  // The part of a rank without samples: of the usual shape, with no rows.
  if (dataset.size() == 0) return {};
  const std::int64_t first = 0;
  return rows_of(collate_fn(dataset.get_samples({&first, 1})), 0, 0);
}

}  // namespace lockstep::data
