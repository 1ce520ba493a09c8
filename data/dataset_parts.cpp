// Sets that are made of others.

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"
#include "lockstep/data/wanted.h"

namespace lockstep::data {

Subset::Subset(std::shared_ptr<const Dataset> dataset, std::vector<std::int64_t> indices)
    : dataset_(std::move(dataset)), indices_(std::move(indices)) {
  LOCKSTEP_CHECK(dataset_, "[Subset] the dataset is null; expected a dataset");
  check_indices(indices_, dataset_->size(), "Subset");
}

std::vector<std::int64_t> Subset::inner_of(std::span<const std::int64_t> indices) const {
  check_indices(indices, size(), "Subset");
  std::vector<std::int64_t> inner;
  for (const std::int64_t index : indices) inner.push_back(indices_[static_cast<std::size_t>(index)]);
  return inner;
}

Batch Subset::get_batch(std::span<const std::int64_t> indices) const {
  const WantedUntil wanted(*this, *dataset_);
  return dataset_->get_batch(inner_of(indices));
}

std::vector<Batch> Subset::get_samples(std::span<const std::int64_t> indices) const {
  const WantedUntil wanted(*this, *dataset_);
  return dataset_->get_samples(inner_of(indices));
}

std::string Subset::content() const {
  const std::string whole = dataset_->content();
  if (whole.empty()) return {};
  return fmt::format("{} of {} samples, {}, of: {}", indices_.size(), dataset_->size(),
                     checksum_digits(indices_.data(), indices_.size() * sizeof(std::int64_t)), whole);
}

ConcatDataset::ConcatDataset(std::vector<std::shared_ptr<const Dataset>> datasets) : datasets_(std::move(datasets)) {
  LOCKSTEP_CHECK(!datasets_.empty(), "[ConcatDataset] expected at least one dataset, found none");
  std::int64_t end = 0;
  for (std::size_t i = 0; i < datasets_.size(); ++i) {
    LOCKSTEP_CHECK(datasets_[i], "[ConcatDataset] dataset {} is null; expected a dataset", i);
    ends_.push_back(end += datasets_[i]->size());
  }
}

std::vector<Batch> ConcatDataset::get_samples(std::span<const std::int64_t> indices) const {
  check_indices(indices, size(), "ConcatDataset");
  std::vector<Batch> samples(indices.size());
  for (std::size_t set = 0; set < datasets_.size(); ++set) {
    const std::int64_t begin = set == 0 ? 0 : ends_[set - 1];
    std::vector<std::int64_t> inner;
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < indices.size(); ++i)
      if (indices[i] >= begin && indices[i] < ends_[set]) {
        inner.push_back(indices[i] - begin);
        places.push_back(i);
      }
    if (inner.empty()) continue;
    const WantedUntil wanted(*this, *datasets_[set]);
    std::vector<Batch> of_set = datasets_[set]->get_samples(inner);
    for (std::size_t i = 0; i < places.size(); ++i) samples[places[i]] = std::move(of_set[i]);
  }
  return samples;
}

Batch ConcatDataset::get_batch(std::span<const std::int64_t> indices) const {
  if (!indices.empty()) return default_collate(get_samples(indices));
  const auto found = std::ranges::find_if(datasets_, [](const auto& each) { return each->size() > 0; });
  return (found == datasets_.end() ? datasets_.front() : *found)->get_batch({});
}

std::string ConcatDataset::content() const {
  std::string text;
  for (const auto& each : datasets_) {
    const std::string one = each->content();
    if (one.empty()) return {};
    text += (text.empty() ? "" : " | ") + one;
  }
  return text;
}

std::vector<std::shared_ptr<Subset>> random_split(std::shared_ptr<const Dataset> dataset,
                                                  const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  LOCKSTEP_CHECK(dataset, "[random_split] the dataset is null; expected a dataset");
  for (const std::int64_t size : sizes)
    LOCKSTEP_CHECK(size >= 0, "[random_split] expected sizes of 0 or more, found {}", size);
  const std::int64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  LOCKSTEP_CHECK(sum == dataset->size(), "[random_split] the sizes add up to {}, expected those of the dataset, {}",
                 sum, dataset->size());
  const std::vector<std::int64_t> order = epoch_permutation(sum, seed, 0);
  std::vector<std::shared_ptr<Subset>> parts;
  auto begin = order.begin();
  for (const std::int64_t size : sizes) {
    parts.push_back(std::make_shared<Subset>(dataset, std::vector<std::int64_t>(begin, begin + size)));
    begin += size;
  }
  return parts;
}

}  // namespace lockstep::data
