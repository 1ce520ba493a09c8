#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/core/factories.h"
#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Note [Random keys]
/// Every random number is a pure function of a key: (seed, stream, step, shard, call) and the element's index. It never
/// depends on rank, thread, device or launch shape. `seed` is the program's; `stream` tells apart uses (initialisation,
/// dropout, data order); `step` and `shard` are set by the training step (0 outside of one); `call` counts the draws
/// made so far under the same (stream, step, shard) by this thread. So threads that set neither draw the same numbers:
/// give each a shard of its own by a RandomKeyGuard where they must differ.
enum class RandomStream : std::uint32_t { general = 0, init = 1, dropout = 2, data = 3, augment = 4 };

/// Sets the seed and sets this thread's step, shard and call counters to 0. The seed is shared by all threads.
void manual_seed(std::uint64_t seed);
std::uint64_t initial_seed();

/// Where this thread is in its random numbers, to draw the same ones again.
struct RandomPosition {
  static constexpr int kStreams = 5;
  std::uint64_t step = 0;
  std::uint32_t shard = 0;
  std::uint32_t calls[kStreams] = {};  ///< draws made, by stream
  bool guarded = false;                ///< inside of a RandomKeyGuard
};

/// Sets step and shard of this thread's random key for its lifetime, with call counters at 0; restores the previous
/// ones.
class RandomKeyGuard {
 public:
  RandomKeyGuard(std::uint64_t step, std::uint32_t shard);
  ~RandomKeyGuard();
  RandomKeyGuard(const RandomKeyGuard&) = delete;
  RandomKeyGuard& operator=(const RandomKeyGuard&) = delete;

 private:
  RandomPosition saved_;
};

/// The step that the innermost RandomKeyGuard of this thread set; none outside of a guard.
std::optional<std::uint64_t> guarded_random_step();

/// Where this thread is now.
RandomPosition random_position();
/// Puts this thread at a position, from where it goes on: after draws that other threads have made for it.
void set_random_position(const RandomPosition& position);
/// Puts this thread at a position for its lifetime; restores the previous one.
class RandomPositionGuard {
 public:
  explicit RandomPositionGuard(const RandomPosition& position);
  ~RandomPositionGuard();
  RandomPositionGuard(const RandomPositionGuard&) = delete;
  RandomPositionGuard& operator=(const RandomPositionGuard&) = delete;

 private:
  RandomPosition saved_;
};

/// The key of the next draw from a stream on this thread; counts the call.
philox::Key next_random_key(RandomStream stream = RandomStream::general);
/// Note [Random keys on devices]
/// A captured CUDA graph is recorded in one step and replayed in others. While a DeviceRandomStep lives, draws of this
/// thread for tensors on CUDA devices take the step from `step` (one int64 element there) when their kernels run; the
/// rest of the key is what it would have been.
class DeviceRandomStep {
 public:
  explicit DeviceRandomStep(const Tensor& step);
  ~DeviceRandomStep();
  DeviceRandomStep(const DeviceRandomStep&) = delete;
  /// True once something was drawn.
  bool used() const { return used_; }

 private:
  friend philox::KeySource next_random_key_source(RandomStream stream, Device device);
  const std::int64_t* step_;
  DeviceRandomStep* outer_;
  bool used_ = false;
};

/// next_random_key() for a kernel on `device`.
philox::KeySource next_random_key_source(RandomStream stream, Device device);
/// A key that depends on the given values and the seed alone.
philox::Key random_key(std::uint64_t seed, RandomStream stream, std::uint64_t step, std::uint32_t shard,
                       std::uint32_t call);

/// Uniform on [0, 1), with 24 random bits, 53 in float64; in the half types what rounds to 1 is the number below it.
/// Throws Error unless the dtype is a floating-point one, as do the next four.
Tensor rand(const Shape& sizes, TensorOptions options = {});
/// Standard normal (Box-Muller on pairs of Philox words).
Tensor randn(const Shape& sizes, TensorOptions options = {});
/// rand() and randn() with the sizes and options of a tensor.
Tensor rand_like(const Tensor& like);
Tensor randn_like(const Tensor& like);
/// Normal, with the given mean and standard deviation. Throws Error for a deviation below 0.
Tensor normal(double mean, double std, const Shape& sizes, TensorOptions options = {});
/// Integers in [low, high). Throws Error unless low < high <= low + 2^32 and the dtype has both ends.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& sizes, TensorOptions options = {.dtype = kInt64});
/// A random permutation of 0 .. n-1 (int64), a pure function of the key. Throws Error unless 0 <= n <= 2^32.
Tensor randperm(std::int64_t n);
/// The same as numbers of a dtype. Throws Error also if the dtype does not have all of them.
Tensor randperm(std::int64_t n, DType dtype);
/// Fills in place with uniform [low, high) or normal values, drawn from `stream`. Where the dtype has no number below
/// `high` and above `low`, values are `low`. Throws Error unless low <= high, the dtype has both, and their difference
/// is finite (in float32 for the half types), or unless std >= 0.
void fill_uniform(const Tensor& tensor, double low, double high, RandomStream stream = RandomStream::general);
void fill_normal(const Tensor& tensor, double mean, double std, RandomStream stream = RandomStream::general);

/// rand() of a dtype or on a device; the next ones are the same for the others.
template <TensorOption O>
Tensor rand(const Shape& sizes, O option) {
  return rand(sizes, detail::options(option));
}
/// randn() with an option.
template <TensorOption O>
Tensor randn(const Shape& sizes, O option) {
  return randn(sizes, detail::options(option));
}
/// randint() of a dtype.
template <std::same_as<DType> D>
Tensor randint(std::int64_t low, std::int64_t high, const Shape& sizes, D dtype) {
  return randint(low, high, sizes, TensorOptions{.dtype = dtype});
}
/// Integers in [0, high).
inline Tensor randint(std::int64_t high, const Shape& sizes, TensorOptions options = {.dtype = kInt64}) {
  return randint(0, high, sizes, options);
}
/// The same of a dtype.
template <std::same_as<DType> D>
Tensor randint(std::int64_t high, const Shape& sizes, D dtype) {
  return randint(0, high, sizes, TensorOptions{.dtype = dtype});
}

}  // namespace lockstep
