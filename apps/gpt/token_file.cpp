#include "apps/gpt/token_file.h"

#include <sys/mman.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include "apps/gpt/files.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/input_file.h"
#include "lockstep/core/random.h"

namespace lockstep::gpt {
namespace {

static_assert(std::endian::native == std::endian::little, "files of tokens are read as they lie in memory");

constexpr std::int32_t kMostTokens = std::numeric_limits<std::uint16_t>::max() + 1;

std::vector<std::uint16_t> narrow(const std::vector<std::int32_t>& tokens) {
  std::vector<std::uint16_t> values;
  values.reserve(tokens.size());
  for (const std::int32_t token : tokens) {
    LOCKSTEP_CHECK(token >= 0 && token < kMostTokens,
                   "[tokens] token {} does not fit into 16 bits; expected a vocabulary of at most {}", token,
                   kMostTokens);
    values.push_back(static_cast<std::uint16_t>(token));
  }
  return values;
}

class MappedTokens final : public Tokens {
 public:
  explicit MappedTokens(const std::string& path) {
    const InputFile file = open_input_file(path, "[tokens]");
    bytes_ = static_cast<std::size_t>(file.size);
    LOCKSTEP_CHECK(bytes_ > 0 && bytes_ % 2 == 0,
                   "[tokens] '{}' has {} bytes; expected two for each token, as gpt_tokenize writes them", path,
                   bytes_);
    memory_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.descriptor.get(), 0);
    LOCKSTEP_CHECK(memory_ != MAP_FAILED, "[tokens] '{}' cannot be mapped into memory: {}", path, std::strerror(errno));
    values_ = {static_cast<const std::uint16_t*>(memory_), bytes_ / 2};
  }
  ~MappedTokens() override {
    if (memory_ != MAP_FAILED) ::munmap(memory_, bytes_);
  }
  MappedTokens(const MappedTokens&) = delete;
  MappedTokens& operator=(const MappedTokens&) = delete;

 private:
  void* memory_ = MAP_FAILED;
  std::size_t bytes_ = 0;
};

class HeldTokens final : public Tokens {
 public:
  explicit HeldTokens(std::vector<std::uint16_t> tokens) : held_(std::move(tokens)) { values_ = held_; }

 private:
  std::vector<std::uint16_t> held_;
};

}  // namespace

std::shared_ptr<const Tokens> Tokens::open(const std::string& path) {
  return std::make_shared<MappedTokens>(path);
}

std::shared_ptr<const Tokens> Tokens::hold(const std::vector<std::int32_t>& tokens) {
  return std::make_shared<HeldTokens>(narrow(tokens));
}

void Tokens::check(std::int64_t vocabulary, const std::string& name) const {
  for (std::size_t i = 0; i < values_.size(); ++i)
    LOCKSTEP_CHECK(values_[i] < vocabulary,
                   "[tokens] token {} of '{}' is {}, in a vocabulary of {}; use the tokenizer that made the file", i,
                   name, values_[i], vocabulary);
}

void write_tokens(const std::string& path, const Tokens& tokens) {
  write_file(path, {reinterpret_cast<const char*>(tokens.values().data()), tokens.values().size_bytes()});
}

WindowDataset::WindowDataset(std::shared_ptr<const Tokens> tokens, std::int64_t context, std::int64_t stride)
    : tokens_(std::move(tokens)), context_(context), stride_(stride) {
  LOCKSTEP_CHECK(context > 0 && stride > 0, "[tokens] expected a context and a stride above 0");
  LOCKSTEP_CHECK(tokens_->size() > context, "[tokens] {} tokens have no window of {} and the one that follows",
                 tokens_->size(), context);
  count_ = (tokens_->size() - context - 1) / stride + 1;
}

data::Batch WindowDataset::get_batch(std::span<const std::int64_t> indices) const {
  data::check_indices(indices, count_, "WindowDataset");
  const auto n = static_cast<std::int64_t>(indices.size());
  data::Batch batch;
  batch.x = empty({n, context_}, {.dtype = kInt64});
  batch.y = empty({n, context_}, {.dtype = kInt64});
  auto *x = batch.x.data<std::int64_t>(), *y = batch.y.data<std::int64_t>();
  for (const std::int64_t index : indices) {
    const std::uint16_t* from = tokens_->values().data() + index * stride_;
    for (std::int64_t t = 0; t < context_; ++t) {
      *x++ = from[t];
      *y++ = from[t + 1];
    }
  }
  batch.global_size = n;
  return batch;
}

DrawingSampler::DrawingSampler(std::int64_t count, std::int64_t per_epoch, std::uint64_t seed)
    : count_(count), per_epoch_(per_epoch), seed_(seed) {
  LOCKSTEP_CHECK(count > 0 && per_epoch > 0, "[tokens] nothing can be drawn: {} samples, {} an epoch", count,
                 per_epoch);
}

std::vector<std::int64_t> DrawingSampler::indices(std::uint64_t epoch) const {
  const philox::Key key = random_key(seed_, RandomStream::data, epoch, 0, 0);
  std::vector<std::int64_t> drawn(static_cast<std::size_t>(per_epoch_));
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const philox::Block words = philox::generate(key, static_cast<std::uint64_t>(i));
    const std::uint64_t word = static_cast<std::uint64_t>(words.word[0]) << 32 | words.word[1];
    drawn[i] = static_cast<std::int64_t>(word % static_cast<std::uint64_t>(count_));
  }
  return drawn;
}

}  // namespace lockstep::gpt
