#include "lockstep/data/sampler.h"

#include <cstddef>
#include <numeric>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/random.h"

namespace lockstep::data {

namespace {

void check_count(std::int64_t count, const char* sampler) {
  LOCKSTEP_CHECK(count >= 0, "[{}] the number of samples must not be negative, found {}", sampler, count);
}

std::vector<std::int64_t> sequence(std::int64_t count) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return order;
}

// Scales a 64-bit word to [0, bound) by the high half of the product: a bias below bound / 2^64.
std::uint64_t below(std::uint64_t word, std::uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(word) * bound) >> 64);
}

}  // namespace

std::vector<std::int64_t> epoch_permutation(std::int64_t count, std::uint64_t seed, std::uint64_t epoch) {
  check_count(count, "epoch_permutation");
  std::vector<std::int64_t> order = sequence(count);
  const philox::Key key = random_key(seed, RandomStream::data, epoch, 0, 0);
  philox::Block block = {};
  for (std::int64_t i = count - 1; i > 0; --i) {
    // A block holds the draws of positions 2k and 2k + 1.
    const auto position = static_cast<std::uint64_t>(i);
    if ((i & 1) != 0 || i == count - 1) block = philox::generate(key, position >> 1);
    const int word = (i & 1) != 0 ? 2 : 0;
    const std::uint64_t draw = std::uint64_t{block.word[word]} << 32 | block.word[word + 1];
    std::swap(order[position], order[below(draw, position + 1)]);
  }
  return order;
}

SequentialSampler::SequentialSampler(std::int64_t count) : count_(count) {
  check_count(count, "SequentialSampler");
}

std::vector<std::int64_t> SequentialSampler::indices(std::uint64_t /*epoch*/) const {
  return sequence(count_);
}

RandomSampler::RandomSampler(std::int64_t count, std::uint64_t seed) : count_(count), seed_(seed) {
  check_count(count, "RandomSampler");
}

std::vector<std::int64_t> RandomSampler::indices(std::uint64_t epoch) const {
  return epoch_permutation(count_, seed_, epoch);
}

DistributedSampler::DistributedSampler(std::int64_t count, DistributedSamplerOptions options)
    : count_(count), options_(options) {
  check_count(count, "DistributedSampler");
  LOCKSTEP_CHECK(options.world_size > 0 && options.rank >= 0 && options.rank < options.world_size,
                 "[DistributedSampler] rank {} of world size {} does not exist; expected 0 <= rank < world size",
                 options.rank, options.world_size);
  const std::int64_t world = options.world_size;
  size_ = options.drop_last ? count / world : (count + world - 1) / world;
}

std::vector<std::int64_t> DistributedSampler::indices(std::uint64_t epoch) const {
  const std::vector<std::int64_t> order =
      options_.shuffle ? epoch_permutation(count_, options_.seed, epoch) : sequence(count_);
  std::vector<std::int64_t> mine(static_cast<std::size_t>(size_));
  for (std::int64_t i = 0; i < size_; ++i)
    mine[static_cast<std::size_t>(i)] =
        order[static_cast<std::size_t>((options_.rank + i * options_.world_size) % count_)];
  return mine;
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  LOCKSTEP_CHECK(epoch >= 0, "[DistributedSampler] epoch {} does not exist; the first is 0", epoch);
  epoch_ = static_cast<std::uint64_t>(epoch);
}

}  // namespace lockstep::data
