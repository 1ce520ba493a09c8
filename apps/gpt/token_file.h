#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/sampler.h"

namespace lockstep::gpt {

/// Tokens of a corpus, as numbers of 16 bits: in a file of which windows are read when they are needed, so that it may
/// be larger than memory (nanoGPT's train.bin: little-endian, nothing else), or held.
class Tokens {
 public:
  /// Opens the file. Throws Error if it cannot be read, is empty, or has an odd number of bytes.
  static std::shared_ptr<const Tokens> open(const std::string& path);
  /// Throws Error for numbers that 16 bits do not hold.
  static std::shared_ptr<const Tokens> hold(const std::vector<std::int32_t>& tokens);

  virtual ~Tokens() = default;
  std::int64_t size() const { return size_; }
  /// Tokens `first` and those that follow. Throws Error if the file does not hold them any more.
  virtual void read(std::int64_t first, std::span<std::uint16_t> out) const = 0;
  /// Throws Error naming the place if a token is not below `vocabulary`.
  void check(std::int64_t vocabulary, const std::string& name) const;
  /// Of all of them.
  std::string checksum() const;
  /// Calls body(first, tokens) for pieces of them, in order.
  void for_each_piece(const std::function<void(std::int64_t first, std::span<const std::uint16_t> piece)>& body) const;

 protected:
  explicit Tokens(std::int64_t size) : size_(size) {}

 private:
  std::int64_t size_;
};

/// Writes such a file. Throws Error for a path that cannot be written.
void write_tokens(const std::string& path, const Tokens& tokens);

/// Windows of a corpus: sample i is x = tokens i * stride ... + context - 1 and y the tokens that follow each, int64
/// [N, context].
class WindowDataset final : public data::Dataset {
 public:
  /// Throws Error if the corpus has no whole window.
  WindowDataset(std::shared_ptr<const Tokens> tokens, std::int64_t context, std::int64_t stride = 1);
  std::int64_t size() const override { return count_; }
  data::Batch get_batch(std::span<const std::int64_t> indices) const override;
  std::string content() const override;

 private:
  std::shared_ptr<const Tokens> tokens_;
  std::int64_t context_, stride_, count_;
};

/// `per_epoch` samples an epoch, drawn with replacement: a function of seed, epoch and place alone. What an "epoch" of
/// a corpus is that nobody reads to its end.
class DrawingSampler final : public data::Sampler {
 public:
  DrawingSampler(std::int64_t count, std::int64_t per_epoch, std::uint64_t seed);
  std::int64_t size() const override { return per_epoch_; }
  std::vector<std::int64_t> indices(std::uint64_t epoch) const override;

 private:
  std::int64_t count_, per_epoch_;
  std::uint64_t seed_;
};

}  // namespace lockstep::gpt
