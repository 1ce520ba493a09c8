#include "apps/gpt/token_file.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "apps/gpt/files.h"
#include "lockstep/core/check.h"
#include "lockstep/core/checksum.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/input_file.h"
#include "lockstep/core/posix.h"
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

class FileOfTokens final : public Tokens {
 public:
  FileOfTokens(std::string path, InputFile file)
      : Tokens(static_cast<std::int64_t>(file.size / 2)), path_(std::move(path)), file_(std::move(file)) {
    LOCKSTEP_CHECK(file_.size > 0 && file_.size % 2 == 0,
                   "[tokens] '{}' has {} bytes; expected two for each token, as gpt_tokenize writes them", path_,
                   file_.size);
  }
  // Not by mapped memory, which ends the process by SIGBUS if the file is cut while it is used.
  void read(std::int64_t first, std::span<std::uint16_t> out) const override {
    const auto bytes = static_cast<std::int64_t>(out.size_bytes());
    const std::int64_t came =
        read_all_at(file_.descriptor.get(), out.data(), out.size_bytes(), 2 * static_cast<std::uint64_t>(first));
    LOCKSTEP_CHECK(came >= 0, "[tokens] '{}' cannot be read: {}", path_, std::strerror(errno));
    LOCKSTEP_CHECK(came == bytes,
                   "[tokens] '{}' had {} bytes when it was opened and ends at byte {} now; restore it, and do not "
                   "change a file that is being trained on",
                   path_, file_.size, 2 * first + came);
  }

 private:
  std::string path_;
  InputFile file_;
};

class HeldTokens final : public Tokens {
 public:
  explicit HeldTokens(std::vector<std::uint16_t> tokens)
      : Tokens(static_cast<std::int64_t>(tokens.size())), held_(std::move(tokens)) {}
  void read(std::int64_t first, std::span<std::uint16_t> out) const override {
    std::copy_n(held_.begin() + first, out.size(), out.begin());
  }

 private:
  std::vector<std::uint16_t> held_;
};

}  // namespace

std::shared_ptr<const Tokens> Tokens::open(const std::string& path) {
  return std::make_shared<FileOfTokens>(path, open_input_file(path, "[tokens]"));
}

std::shared_ptr<const Tokens> Tokens::hold(const std::vector<std::int32_t>& tokens) {
  return std::make_shared<HeldTokens>(narrow(tokens));
}

void Tokens::for_each_piece(
    const std::function<void(std::int64_t first, std::span<const std::uint16_t> piece)>& body) const {
  constexpr std::int64_t kPiece = std::int64_t{1} << 16;
  static_assert(2 * kPiece % Checksum::kBlock == 0);
  std::vector<std::uint16_t> piece(static_cast<std::size_t>(std::min(kPiece, size_)));
  for (std::int64_t first = 0; first < size_; first += kPiece) {
    piece.resize(static_cast<std::size_t>(std::min(kPiece, size_ - first)));
    read(first, piece);
    body(first, piece);
  }
}

void Tokens::check(std::int64_t vocabulary, const std::string& name) const {
  for_each_piece([&](std::int64_t first, std::span<const std::uint16_t> piece) {
    for (std::size_t i = 0; i < piece.size(); ++i)
      LOCKSTEP_CHECK(piece[i] < vocabulary,
                     "[tokens] token {} of '{}' is {}, in a vocabulary of {}; use the tokenizer that made the file",
                     first + static_cast<std::int64_t>(i), name, piece[i], vocabulary);
  });
}

std::string Tokens::checksum() const {
  Checksum sum;
  for_each_piece(
      [&](std::int64_t, std::span<const std::uint16_t> piece) { sum.update(piece.data(), piece.size_bytes()); });
  return fmt::format("{:016x}", sum.value());
}

void write_tokens(const std::string& path, const Tokens& tokens) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(tokens.size()));
  tokens.read(0, values);
  write_file(path, {reinterpret_cast<const char*>(values.data()), 2 * values.size()});
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
  std::vector<std::uint16_t> from(static_cast<std::size_t>(context_) + 1);
  for (const std::int64_t index : indices) {
    tokens_->read(index * stride_, from);
    for (std::int64_t t = 0; t < context_; ++t) {
      const auto place = static_cast<std::size_t>(t);
      *x++ = from[place];
      *y++ = from[place + 1];
    }
  }
  batch.global_size = n;
  return batch;
}

std::string WindowDataset::content() const {
  return fmt::format("tokens {}, windows of {} every {}", tokens_->checksum(), context_, stride_);
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
