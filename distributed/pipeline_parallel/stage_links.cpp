#include "lockstep/distributed/pipeline_parallel/stage_links.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::distributed {
namespace {

constexpr std::int64_t kMaxDims = 8, kHeader = 12 + kMaxDims + RandomPosition::kStreams;

// kind, micro-batch, chunk, tied; defined, dtype, device; dimensions, sizes; step, shard and calls of the random
// numbers; how the batch is cut.
Tensor header_of(const StageKey& key, const StageValue& value, const StageCut& cut) {
  std::vector<std::int64_t> words{static_cast<std::int64_t>(key.kind), key.micro_batch, key.chunk, key.tied};
  const Tensor& t = value.tensor;
  words.push_back(t.defined() ? 1 : 0);
  words.push_back(t.defined() ? static_cast<std::int64_t>(t.dtype()) : 0);
  words.push_back(t.defined() && t.device().is_cuda() ? 1 : 0);
  words.push_back(t.defined() ? t.dim() : 0);
  for (int d = 0; d < kMaxDims; ++d) words.push_back(t.defined() && d < t.dim() ? t.size(d) : 0);
  words.push_back(static_cast<std::int64_t>(value.random.step));
  words.push_back(value.random.shard);
  for (const std::uint32_t calls : value.random.calls) words.push_back(calls);
  words.push_back(cut.micro_batches);
  words.push_back(cut.samples);
  return tensor(words);
}

/// The value that a header announces, its tensor yet to be filled.
StageValue announced(const Tensor& header, int from, int here, const StageKey& expected, const StageCut& cut,
                     Device device) {
  const std::vector<std::int64_t> words = header.to_vector<std::int64_t>();
  const StageCut theirs{.micro_batches = words[kHeader - 2], .samples = words[kHeader - 1]};
  LOCKSTEP_CHECK(
      theirs.micro_batches == cut.micro_batches,
      "[pipeline] stage {} computes {} samples in {} micro-batches, and stage {} computes {} in {}; give all "
      "stages the same batch, and the same accumulate or logical_shards",
      from, theirs.samples, theirs.micro_batches, here, cut.samples, cut.micro_batches);
  const StageKey key{static_cast<StageKey::Kind>(words[0]), words[1], static_cast<int>(words[2]),
                     static_cast<int>(words[3])};
  LOCKSTEP_CHECK(key == expected,
                 "[pipeline] a stage sent message {}/{}/{}/{} where {}/{}/{}/{} was expected; the ranks have different "
                 "plans, schedules or numbers of micro-batches",
                 words[0], words[1], words[2], words[3], static_cast<int>(expected.kind), expected.micro_batch,
                 expected.chunk, expected.tied);
  StageValue value;
  if (words[4] != 0) {
    LOCKSTEP_CHECK(words[7] >= 0 && words[7] <= kMaxDims, "[pipeline] a stage announced a tensor of {} dimensions",
                   words[7]);
    const Shape sizes(std::span<const std::int64_t>(words).subspan(8, static_cast<std::size_t>(words[7])));
    value.tensor =
        empty(sizes, {.dtype = static_cast<DType>(words[5]), .device = words[6] != 0 ? device : Device(kCPU)});
  }
  const std::int64_t* rest = words.data() + 8 + kMaxDims;
  value.random.step = static_cast<std::uint64_t>(rest[0]);
  value.random.shard = static_cast<std::uint32_t>(rest[1]);
  for (int s = 0; s < RandomPosition::kStreams; ++s) value.random.calls[s] = static_cast<std::uint32_t>(rest[2 + s]);
  return value;
}

}  // namespace

StageLinks::StageLinks(ProcessGroupPtr group, Device device, std::function<std::string(const StageKey&)> describe)
    : group_(std::move(group)), device_(device), describe_(std::move(describe)) {}

OperationLabel StageLinks::label_of(const StageKey& key) {
  auto found = labels_.find(key);
  if (found == labels_.end()) found = labels_.emplace(key, OperationLabel(describe_(key))).first;
  return found->second;
}

void StageLinks::begin(std::vector<std::deque<StageKey>> incoming, const StageCut& cut) {
  cut_ = cut;
  arrived_.clear();
  sends_.clear();
  expected_ = std::move(incoming);
}

void StageLinks::send(int to, const StageKey& key, const StageValue& value) {
  if (to == group_->rank()) {
    arrived_[key] = value;
    return;
  }
  const LabelScope scope(label_of(key));
  sends_.push_back(group_->send(header_of(key, value, cut_), to));
  if (value.tensor.defined()) {
    bytes_sent_ += static_cast<std::int64_t>(value.tensor.nbytes());
    sends_.push_back(group_->send(value.tensor, to));
  }
  std::erase_if(sends_, [](const WorkPtr& work) { return work->is_success(); });
}

// The next message from a rank.
void StageLinks::receive(int from) {
  std::deque<StageKey>& expected = expected_[static_cast<std::size_t>(from)];
  const StageKey key = expected.front();
  const LabelScope scope(label_of(key));
  const Tensor header = empty({kHeader}, {.dtype = kInt64});
  group_->recv(header, from)->wait();
  StageValue value;
  try {
    value = announced(header, from, group_->rank(), key, cut_, device_);
  } catch (const Error& error) {
    group_->abort(error.what());  // the others wait for what does not come now
    throw;
  }
  if (value.tensor.defined()) group_->recv(value.tensor, from)->wait();
  arrived_[key] = std::move(value);
  expected.pop_front();
}

StageValue StageLinks::take(const StageKey& key) {
  for (;;) {
    if (const auto found = arrived_.find(key); found != arrived_.end()) {
      StageValue value = std::move(found->second);
      arrived_.erase(found);
      return value;
    }
    int from = -1;
    for (std::size_t s = 0; s < expected_.size(); ++s)
      if (std::ranges::find(expected_[s], key) != expected_[s].end()) from = static_cast<int>(s);
    LOCKSTEP_ASSERT(from >= 0, "nobody sends {}", describe_(key));
    receive(from);
  }
}

void StageLinks::finish() {
  for (const WorkPtr& work : std::exchange(sends_, {})) work->wait();
  for (const std::deque<StageKey>& expected : expected_)
    LOCKSTEP_ASSERT(expected.empty(), "{} was never taken", describe_(expected.front()));
}

}  // namespace lockstep::distributed
