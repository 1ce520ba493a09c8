#include "lockstep/core/random.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/philox_words.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/double_math_lines.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

std::atomic<std::uint64_t> global_seed{0};

thread_local RandomPosition state;

constexpr std::int64_t kRandomBlock = 8192;  // a multiple of the generator's four words

// Calls body(i, words) for each group of four elements from i.
template <typename Body>
void for_each_philox_block(philox::Key key, std::int64_t numel, Body&& body) {
  parallel_for(numel, kRandomBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += 4) body(i, philox::generate(key, static_cast<std::uint64_t>(i) / 4));
  });
}

philox::Key words_of(std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

// Fills host memory, in float32 for the half types, then casts and moves: the same key gives the same values, up to
// rounding, on every device and dtype. `fill` is called as fill(data, numel).
template <typename Fill>
void fill_through_host(const Tensor& tensor, Fill&& fill) {
  tensor.storage()->bump_version();
  const LibraryAccess access;
  const DType dtype = tensor.dtype() == kFloat64 ? kFloat64 : kFloat32;
  const bool direct = tensor.device().is_cpu() && tensor.is_contiguous() && tensor.dtype() == dtype;
  Tensor host = direct ? tensor : empty(tensor.sizes(), {.dtype = dtype});
  if (dtype == kFloat64)
    fill(host.data<double>(), host.numel());
  else
    fill(host.data<float>(), host.numel());
  if (!direct) copy_values(host, tensor);
}

// Calls body(i, uniform, count) for runs of `count` elements from i, up to cpu::kPhiloxWords of them; that many uniform
// numbers, of the precision of T, are there in any case. Those of double are those of float with 29 bits more, from the
// blocks with a third counter word of 1.
template <typename T, typename Body>
void for_each_uniform_run(philox::Key key, std::int64_t numel, Body&& body) {
  static_assert(kRandomBlock % cpu::kPhiloxWords == 0);
  parallel_for(numel, kRandomBlock, [&](std::int64_t begin, std::int64_t end) {
    std::uint32_t words[cpu::kPhiloxWords];
    T uniform[cpu::kPhiloxWords];
    for (std::int64_t i = begin; i < end; i += cpu::kPhiloxWords) {
      const auto counter = static_cast<std::uint64_t>(i) / 4;
      cpu::philox_words(key, counter, words);
      for (int j = 0; j < cpu::kPhiloxWords; ++j) uniform[j] = philox::to_uniform(words[j]);
      if constexpr (std::is_same_v<T, double>) {
        for (int group = 0; group < cpu::kPhiloxLanes; ++group) {
          const std::uint64_t index = counter + static_cast<std::uint64_t>(group);
          const philox::Block more = philox::generate(
              key, philox::Block{{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 1u, 0u}});
          for (int j = 0; j < 4; ++j) uniform[4 * group + j] += static_cast<double>(more.word[j] >> 3) * 0x1p-53;
        }
      }
      body(i, uniform, std::min<std::int64_t>(cpu::kPhiloxWords, end - i));
    }
  });
}

// The largest number below `high` that T has.
template <typename T>
double largest_below(double high) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
    const T value = static_cast<T>(high);
    return static_cast<double>(value) < high
               ? static_cast<double>(value)
               : static_cast<double>(std::nextafter(value, -std::numeric_limits<T>::infinity()));
  } else {
    T value(static_cast<float>(high));
    if (static_cast<double>(static_cast<float>(value)) >= high) {
      // One place down in the order of the bits, which is that of the magnitudes.
      value.bits = static_cast<std::uint16_t>(value.bits == 0              ? 0x8001
                                              : (value.bits & 0x8000) != 0 ? value.bits + 1
                                                                           : value.bits - 1);
    }
    return static_cast<double>(static_cast<float>(value));
  }
}

void check_fill(const Tensor& tensor, const char* op) {
  LOCKSTEP_CHECK(tensor.defined() && tensor.is_floating_point(), "[{}] expected a floating-point tensor", op);
}

// Throws Error if the dtype has no finite number for `value`, which is called `what`.
void check_has(DType dtype, Scalar value, const char* what, const char* op) {
  check_in_range(value, dtype, op);
  if (!is_floating_point(dtype)) return;
  const double number = value.to_double();
  const bool finite = dispatch_floating(dtype, op, [&]<typename T>() {
    if constexpr (std::is_same_v<T, double>) return std::isfinite(number);
    return std::isfinite(static_cast<float>(T(static_cast<float>(number))));
  });
  LOCKSTEP_CHECK(finite, "[{}] {}, {}, is out of the range of {}", op, what, number, name(dtype));
}

}  // namespace

void manual_seed(std::uint64_t seed) {
  global_seed.store(seed);
  state = RandomPosition{};
}

RandomPosition random_position() {
  return state;
}

void set_random_position(const RandomPosition& position) {
  state = position;
}

RandomPositionGuard::RandomPositionGuard(const RandomPosition& position) : saved_(std::exchange(state, position)) {}

RandomPositionGuard::~RandomPositionGuard() {
  state = saved_;
}

std::uint64_t initial_seed() {
  return global_seed.load();
}

RandomKeyGuard::RandomKeyGuard(std::uint64_t step, std::uint32_t shard)
    : saved_(std::exchange(state, {.step = step, .shard = shard, .calls = {}, .guarded = true})) {}

RandomKeyGuard::~RandomKeyGuard() {
  state = saved_;
}

std::optional<std::uint64_t> guarded_random_step() {
  if (!state.guarded) return std::nullopt;
  return state.step;
}

philox::Key random_key(std::uint64_t seed, RandomStream stream, std::uint64_t step, std::uint32_t shard,
                       std::uint32_t call) {
  return philox::derive(words_of(seed), static_cast<std::uint32_t>(stream), step, shard, call);
}

namespace {
thread_local DeviceRandomStep* device_step = nullptr;
}

DeviceRandomStep::DeviceRandomStep(const Tensor& step)
    : step_(step.data<std::int64_t>()), outer_(std::exchange(device_step, this)) {}

DeviceRandomStep::~DeviceRandomStep() {
  device_step = outer_;
}

philox::KeySource next_random_key_source(RandomStream stream, Device device) {
  if (!device_step || device.is_cpu()) {
    philox::KeySource known;
    known.key = next_random_key(stream);
    return known;
  }
  device_step->used_ = true;
  const auto index = static_cast<std::size_t>(stream);
  philox::KeySource source;
  source.device_step = device_step->step_;
  source.seed = words_of(global_seed.load(std::memory_order_relaxed));
  source.stream = static_cast<std::uint32_t>(stream);
  source.shard = state.shard;
  source.call = state.calls[index]++;
  return source;
}

philox::Key next_random_key(RandomStream stream) {
  const auto index = static_cast<std::size_t>(stream);
  return random_key(global_seed.load(std::memory_order_relaxed), stream, state.step, state.shard, state.calls[index]++);
}

void fill_uniform(const Tensor& tensor, double low, double high, RandomStream stream) {
  check_fill(tensor, "fill_uniform");
  LOCKSTEP_CHECK(std::isfinite(low) && std::isfinite(high) && low <= high,
                 "[fill_uniform] expected finite numbers low <= high, found {} and {}", low, high);
  check_has(tensor.dtype(), low, "low", "fill_uniform");
  check_has(tensor.dtype(), high, "high", "fill_uniform");
  // The half types are filled in float32.
  check_has(tensor.dtype() == kFloat64 ? kFloat64 : kFloat32, high - low, "high - low", "fill_uniform");
  const philox::Key key = next_random_key(stream);
  // Rounding may lead up to `high` itself: to the nearest number of the dtype, or in the arithmetic here.
  const double top = std::max(
      low, dispatch_floating(tensor.dtype(), "fill_uniform", [&]<typename T>() { return largest_below<T>(high); }));
  fill_through_host(tensor, [&]<typename T>(T* data, std::int64_t numel) {
    const auto scale = static_cast<T>(high - low);
    const auto base = static_cast<T>(low);
    const auto limit = static_cast<T>(top);
    for_each_uniform_run<T>(key, numel, [&](std::int64_t begin, const T* uniform, std::int64_t count) {
      for (std::int64_t j = 0; j < count; ++j) data[begin + j] = std::min(uniform[j] * scale + base, limit);
    });
  });
}

void fill_normal(const Tensor& tensor, double mean, double std, RandomStream stream) {
  check_fill(tensor, "fill_normal");
  LOCKSTEP_CHECK(std >= 0.0, "[fill_normal] expected a standard deviation of at least 0, found {}", std);
  const philox::Key key = next_random_key(stream);
  fill_through_host(tensor, [&]<typename T>(T* data, std::int64_t numel) {
    for_each_uniform_run<T>(key, numel, [&](std::int64_t begin, const T* uniform, std::int64_t count) {
      // Pairs, by Box and Muller (1958). 1 - u lies in (0, 1], so the logarithm is finite.
      // One short loop for each step, since compilers vectorise those.
      constexpr std::int64_t kPairs = cpu::kPhiloxWords / 2;
      double radius[kPairs], angle[kPairs], rest[kPairs], sine[kPairs], cosine[kPairs];
      std::uint64_t quarters[kPairs];
      for (std::int64_t p = 0; p < kPairs; ++p) {
        radius[p] = 1.0 - uniform[2 * p];
        angle[p] = 2.0 * std::numbers::pi * uniform[2 * p + 1];
      }
      LOCKSTEP_VECTORIZE
      for (std::int64_t p = 0; p < kPairs; ++p) radius[p] = std::sqrt(-2.0 * math::lines::log_of_near(radius[p]));
      LOCKSTEP_VECTORIZE
      for (std::int64_t p = 0; p < kPairs; ++p) {
        const math::lines::Angle reduced = math::lines::reduce_near(angle[p]);
        quarters[p] = math::lines::low_bits(reduced.n);
        angle[p] = reduced.high;
        rest[p] = reduced.low;
      }
      LOCKSTEP_VECTORIZE
      for (std::int64_t p = 0; p < kPairs; ++p) sine[p] = math::lines::sine_of(angle[p], rest[p]);
      LOCKSTEP_VECTORIZE
      for (std::int64_t p = 0; p < kPairs; ++p) cosine[p] = math::lines::cosine_of(angle[p], rest[p]);
      T values[cpu::kPhiloxWords];
      for (std::int64_t p = 0; p < kPairs; ++p) {
        const double first = math::lines::turned(sine[p], cosine[p], quarters[p] + 1);
        const double second = math::lines::turned(sine[p], cosine[p], quarters[p]);
        values[2 * p] = static_cast<T>(mean + std * radius[p] * first);
        values[2 * p + 1] = static_cast<T>(mean + std * radius[p] * second);
      }
      std::copy_n(values, count, data + begin);
    });
  });
}

Tensor rand(const Shape& sizes, TensorOptions options) {
  Tensor out = empty(sizes, options);
  fill_uniform(out, 0.0, 1.0);
  return out;
}

Tensor randn(const Shape& sizes, TensorOptions options) {
  Tensor out = empty(sizes, options);
  fill_normal(out, 0.0, 1.0);
  return out;
}

Tensor rand_like(const Tensor& like) {
  return rand(like.sizes(), options_of(like));
}

Tensor randn_like(const Tensor& like) {
  return randn(like.sizes(), options_of(like));
}

Tensor normal(double mean, double std, const Shape& sizes, TensorOptions options) {
  LOCKSTEP_CHECK(std >= 0.0, "[normal] expected a standard deviation of at least 0, found {}", std);
  Tensor out = empty(sizes, options);
  fill_normal(out, mean, std);
  return out;
}

Tensor randint(std::int64_t low, std::int64_t high, const Shape& sizes, TensorOptions options) {
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  LOCKSTEP_CHECK(high > low && range <= (std::uint64_t{1} << 32),
                 "[randint] expected low < high <= low + 2^32, found {} and {}", low, high);
  check_has(options.dtype, low, "low", "randint");
  check_has(options.dtype, high - 1, "high - 1", "randint");
  const philox::Key key = next_random_key(RandomStream::general);
  const LibraryAccess access;
  Tensor host = empty(sizes, {.dtype = kInt64});
  auto* data = host.data<std::int64_t>();
  for_each_philox_block(key, host.numel(), [&](std::int64_t i, philox::Block words) {
    for (std::int64_t j = 0; j < 4 && i + j < host.numel(); ++j)
      data[i + j] = low + static_cast<std::int64_t>(words.word[j] * range >> 32);
  });
  return move_values(cast_values(host, options.dtype), options.device);
}

Tensor randperm(std::int64_t n) {
  LOCKSTEP_CHECK(n >= 0 && n <= (std::int64_t{1} << 32), "[randperm] expected 0 <= n <= 2^32, found {}", n);
  const philox::Key key = next_random_key(RandomStream::general);
  const LibraryAccess access;
  Tensor out = arange(n);
  auto* data = out.data<std::int64_t>();
  // Fisher-Yates; the draw for place i is element i of the key.
  for (std::int64_t end = n; end > 1;) {
    const std::int64_t begin = (end - 1) / 4 * 4;
    const philox::Block words = philox::generate(key, static_cast<std::uint64_t>(begin) / 4);
    for (std::int64_t i = end - 1; i >= std::max<std::int64_t>(begin, 1); --i) {
      const std::uint64_t word = words.word[i - begin];
      std::swap(data[i], data[static_cast<std::int64_t>(word * static_cast<std::uint64_t>(i + 1) >> 32)]);
    }
    end = begin;
  }
  return out;
}

Tensor randperm(std::int64_t n, DType dtype) {
  if (n > 0) check_in_range(n - 1, dtype, "randperm");
  if (n > 0 && is_floating_point(dtype)) {
    const std::int64_t most = dispatch_floating(dtype, "randperm", []<typename T>() {
      return std::is_same_v<T, double>     ? std::int64_t{1} << 53
             : std::is_same_v<T, float>    ? std::int64_t{1} << 24
             : std::is_same_v<T, BFloat16> ? 256
                                           : 2048;
    });
    LOCKSTEP_CHECK(n - 1 <= most, "[randperm] {} does not have all whole numbers below {}, but up to {}; ask for int64",
                   name(dtype), n, most);
  }
  return cast_values(randperm(n), dtype);
}

}  // namespace lockstep
