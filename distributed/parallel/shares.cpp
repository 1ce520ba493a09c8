#include "lockstep/distributed/parallel/shares.h"

#include <algorithm>

namespace lockstep::distributed {
namespace {

data::Range samples_of_shards(std::int64_t size, std::int64_t shards, const ShardRange& range) {
  return {data::partition(size, shards, range.begin).begin, data::partition(size, shards, range.end - 1).end};
}

}  // namespace

std::vector<Share> slices_of_part(std::int64_t samples, std::int64_t slices, bool empty_too) {
  if (!empty_too) slices = std::min(slices, samples);
  std::vector<Share> shares;
  for (std::int64_t i = 0; i < slices; ++i) shares.push_back({i, data::partition(samples, slices, i)});
  return shares;
}

std::vector<Share> shards_of_part(std::int64_t size, std::int64_t shards, const ShardRange& mine) {
  const std::int64_t first = samples_of_shards(size, shards, mine).begin;
  std::vector<Share> shares;
  for (std::int64_t i = mine.begin; i < mine.end; ++i) {
    const data::Range range = data::partition(size, shards, i);
    if (range.size() == 0) break;
    shares.push_back({i, {range.begin - first, range.end - first}});
  }
  return shares;
}

data::Range samples_of_worker(std::int64_t size, std::int64_t shards, int workers, int worker) {
  return shards == 0 ? data::partition(size, workers, worker)
                     : samples_of_shards(size, shards, shards_of_worker(shards, workers, worker));
}

data::Batch rows_of(const data::Batch& batch, const data::Range& range) {
  if (range.begin == 0 && range.size() == batch.size()) return batch;
  return data::rows_of(batch, range.begin, range.size());
}

}  // namespace lockstep::distributed
