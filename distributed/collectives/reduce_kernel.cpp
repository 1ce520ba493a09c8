#include "lockstep/distributed/collectives/reduce_kernel.h"

#include <algorithm>
#include <array>

#include "lockstep/core/check.h"
#include "lockstep/core/dispatch.h"

namespace lockstep::distributed {
namespace {

constexpr std::int64_t kTile = 1024;

template <typename T, typename Combine>
void reduce_tiles(T* output, std::span<const void* const> parts, std::int64_t count, Combine combine, double divisor) {
  using C = compute_t<T>;
  // A tile at a time in the compute type: one pass over memory however many parts there are.
  std::array<C, kTile> tile;
  for (std::int64_t start = 0; start < count; start += kTile) {
    const std::int64_t n = std::min(kTile, count - start);
    const T* first = static_cast<const T*>(parts[0]) + start;
    for (std::int64_t i = 0; i < n; ++i) tile[static_cast<std::size_t>(i)] = static_cast<C>(first[i]);
    for (const void* part : parts.subspan(1)) {
      const T* next = static_cast<const T*>(part) + start;
      for (std::int64_t i = 0; i < n; ++i) {
        C& value = tile[static_cast<std::size_t>(i)];
        value = combine(value, static_cast<C>(next[i]));
      }
    }
    T* target = output + start;
    if (divisor != 1.0) {
      const C by = static_cast<C>(divisor);
      for (std::int64_t i = 0; i < n; ++i)
        target[i] = static_cast<T>(static_cast<C>(tile[static_cast<std::size_t>(i)] / by));
    } else {
      for (std::int64_t i = 0; i < n; ++i) target[i] = static_cast<T>(tile[static_cast<std::size_t>(i)]);
    }
  }
}

/// Sums of integers wrap around, as they do in hardware and in PyTorch; done unsigned, where that is defined.
template <typename C>
C wrapping(C a, C b, bool multiply) {
  if constexpr (std::is_integral_v<C>) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    return static_cast<C>(multiply ? x * y : x + y);
  } else {
    return multiply ? a * b : a + b;
  }
}

template <typename T>
void reduce_typed(ReduceOp op, T* output, std::span<const void* const> parts, std::int64_t count, double divisor) {
  using C = compute_t<T>;
  const auto reduce = [&](auto combine) { reduce_tiles(output, parts, count, combine, divisor); };
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return reduce([](C a, C b) { return wrapping(a, b, false); });
    case ReduceOp::product:
      return reduce([](C a, C b) { return wrapping(a, b, true); });
    // A NaN in any part makes the result NaN, as in PyTorch.
    case ReduceOp::min:
      return reduce([](C a, C b) { return a < b || a != a ? a : b; });
    case ReduceOp::max:
      return reduce([](C a, C b) { return a > b || a != a ? a : b; });
    case ReduceOp::band:
    case ReduceOp::bor:
    case ReduceOp::bxor:
      if constexpr (std::is_integral_v<C>) {
        if (op == ReduceOp::band) return reduce([](C a, C b) { return static_cast<C>(a & b); });
        if (op == ReduceOp::bor) return reduce([](C a, C b) { return static_cast<C>(a | b); });
        return reduce([](C a, C b) { return static_cast<C>(a ^ b); });
      } else {
        LOCKSTEP_ASSERT(false, "{} of floating-point values", name(op));
      }
  }
}

void reduce_bool(ReduceOp op, bool* output, std::span<const void* const> parts, std::int64_t count) {
  if (op == ReduceOp::bxor)
    return reduce_tiles(
        output, parts, count, [](bool a, bool b) { return a != b; }, 1.0);
  const bool any = op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bor;
  reduce_tiles(
      output, parts, count, [any](bool a, bool b) { return any ? a || b : a && b; }, 1.0);
}

}  // namespace

void reduce_parts(DType dtype, ReduceOp op, void* output, std::span<const void* const> parts, std::int64_t count,
                  double divisor) {
  if (dtype == kBool) return reduce_bool(op, static_cast<bool*>(output), parts, count);
  dispatch_numeric(dtype, "reduce",
                   [&]<typename T>() { reduce_typed<T>(op, static_cast<T*>(output), parts, count, divisor); });
}

}  // namespace lockstep::distributed
