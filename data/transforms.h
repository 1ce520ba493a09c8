#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep::data {

/// What a random transform may depend on: the seed, the epoch, its place in the chain, and each sample's index in the
/// dataset. Never the thread, the rank, or the batch a sample happens to be in.
class AugmentContext {
 public:
  AugmentContext(std::uint64_t seed, std::uint64_t epoch, std::span<const std::int64_t> indices)
      : seed_(seed), epoch_(epoch), indices_(indices) {}

  /// Dataset index of each sample of the batch.
  std::span<const std::int64_t> indices() const { return indices_; }
  /// The key of the next random transform in the chain. Draw sample i's numbers from philox::generate(key, index of i).
  philox::Key next_key();

 private:
  std::uint64_t seed_;
  std::uint64_t epoch_;
  std::span<const std::int64_t> indices_;
  std::uint32_t calls_ = 0;
};

/// Maps a batch's x to the x that training sees. Runs on loader threads, several at once.
using Transform = std::function<Tensor(const Tensor& x, AugmentContext& context)>;

/// Transforms of float32 [N, C, H, W] on the CPU. The factories throw Error for parameters out of range, the transforms
/// for another dtype or number of dimensions. Fills are in the units of the (already normalised) input.
namespace transforms {

/// (x - mean[c]) / std[c] for channel c; one value serves all channels.
Transform normalize(std::vector<float> mean, std::vector<float> std);
/// `padding` rows and columns of `fill` on each side.
Transform pad(std::int64_t padding, float fill = 0.0f);
/// A window of height x width at a random place in the image padded by `padding`.
Transform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding = 0, float fill = 0.0f);
/// Moves the image by -max_shift ... max_shift pixels in each direction; uncovered pixels become `fill`.
Transform random_shift(std::int64_t max_shift, float fill = 0.0f);
/// Mirrors left and right with probability p.
Transform random_horizontal_flip(double p = 0.5);
/// One after the other.
Transform compose(std::vector<Transform> chain);

}  // namespace transforms
}  // namespace lockstep::data
