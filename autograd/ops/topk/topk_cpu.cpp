#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops/topk/topk_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep::detail {
namespace {

/// An unsigned number whose order is that of the values: NaN above all, zeros equal.
template <typename C>
auto ascending_key(C value) {
  using Key = std::conditional_t<(sizeof(C) > 4), std::uint64_t, std::uint32_t>;
  constexpr Key kSign = Key{1} << (8 * sizeof(Key) - 1);
  if constexpr (std::is_floating_point_v<C>) {
    if (value != value) return std::numeric_limits<Key>::max();
    const Key bits = std::bit_cast<Key>(value == C(0) ? C(0) : value);
    return bits & kSign ? static_cast<Key>(~bits) : static_cast<Key>(bits | kSign);
  } else {
    return static_cast<Key>(static_cast<Key>(static_cast<std::make_signed_t<Key>>(value)) ^ kSign);
  }
}

template <typename Key>
struct Entry {
  Key key;
  std::uint32_t index;
};

/// Sorts by key, equal keys in the order in which they are: a byte at a time, the lowest first. The result is in
/// `entries`; `space` is as long.
template <typename Key>
void sort_by_bytes(std::vector<Entry<Key>>& entries, std::vector<Entry<Key>>& space) {
  constexpr int kBytes = sizeof(Key);
  std::array<std::array<std::uint32_t, 256>, kBytes> counts{};
  for (const Entry<Key>& entry : entries)
    for (int b = 0; b < kBytes; ++b) ++counts[static_cast<std::size_t>(b)][entry.key >> 8 * b & 255];
  for (int b = 0; b < kBytes; ++b) {
    auto& places = counts[static_cast<std::size_t>(b)];
    if (places[entries.front().key >> 8 * b & 255] == entries.size()) continue;  // all the same
    std::uint32_t next = 0;
    for (std::uint32_t& place : places) {
      const std::uint32_t count = place;
      place = next;
      next += count;
    }
    for (const Entry<Key>& entry : entries) space[places[entry.key >> 8 * b & 255]++] = entry;
    entries.swap(space);
  }
}

/// The key that has `rank` others before it in rising order, and how many of them are equal to it. Uses the keys up.
template <typename Key>
struct Selected {
  Key key;
  std::int64_t equal_before;
};
template <typename Key>
Selected<Key> select_key(std::vector<Key>& keys, std::size_t rank) {
  // Byte by byte, the highest first, those are kept that share it with the one that is looked for.
  constexpr std::size_t kFew = 64;
  for (int shift = 8 * (sizeof(Key) - 1); shift >= 0 && keys.size() > kFew; shift -= 8) {
    const auto byte_of = [shift](Key key) { return static_cast<std::size_t>(key >> shift & 255); };
    std::array<std::size_t, 256> counts{};
    for (const Key key : keys) ++counts[byte_of(key)];
    std::size_t byte = 0, kept = 0;
    while (rank >= counts[byte]) rank -= counts[byte++];
    for (const Key key : keys) {
      keys[kept] = key;
      kept += byte_of(key) == byte ? 1 : 0;
    }
    keys.resize(kept);
  }
  const auto at = keys.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(keys.begin(), at, keys.end());
  return {*at, std::count(keys.begin(), at, *at)};
}

constexpr std::int64_t kShort = 64;  // for which counting bytes takes longer than counting ranks, or comparing

/// The k best of a short row: the rank of an element is how many are before it, which is counted without branches. Keys
/// and, behind them, indices are one number each, so that no two are equal.
template <typename T>
void rank_short(const T* values, std::int64_t length, std::int64_t k, bool largest, std::int64_t* indices) {
  std::int64_t words[kShort], order[kShort];
  for (std::int64_t i = 0; i < length; ++i) {
    const std::uint64_t key = ascending_key(static_cast<compute_t<T>>(values[i]));
    const std::uint64_t first = largest ? key ^ 0xffffffffu : key;
    words[i] = static_cast<std::int64_t>((first << 32 | static_cast<std::uint64_t>(i)) ^ std::uint64_t{1} << 63);
  }
  for (std::int64_t i = 0; i < length; ++i) {
    std::int64_t rank = 0;
    for (std::int64_t j = 0; j < length; ++j) rank += words[j] < words[i];
    order[rank] = i;
  }
  std::copy_n(order, k, indices);
}

/// A key and, behind it, an index, so that no two are equal. Where 64 bits have room for both, they are one number.
template <typename Key, bool kOneNumber>
struct Place {
  using Pair = std::pair<Key, std::uint64_t>;
  using Type = std::conditional_t<kOneNumber, std::uint64_t, Pair>;
  static Type of(Key key, std::int64_t index) {
    if constexpr (kOneNumber)
      return static_cast<std::uint64_t>(key) << 32 | static_cast<std::uint64_t>(index);
    else
      return {key, static_cast<std::uint64_t>(index)};
  }
  static Key key(const Type& place) {
    if constexpr (kOneNumber)
      return static_cast<Key>(place >> 32);
    else
      return place.first;
  }
  static std::int64_t index(const Type& place) {
    if constexpr (kOneNumber)
      return static_cast<std::int64_t>(place & 0xffffffffu);
    else
      return static_cast<std::int64_t>(place.second);
  }
};

/// The k best of a row, 0 < k < length: the best 2 k or so that have come by are kept, and of what comes only what is
/// better than the k-th of them when they were last looked through. Elements are compared with that one by vectors, and
/// in a long row few are better.
template <typename T, bool kOneNumber>
void select_best(const T* values, std::int64_t length, std::int64_t k, bool largest, std::int64_t* indices) {
  using Key = decltype(ascending_key(compute_t<T>()));
  using P = Place<Key, kOneNumber>;
  constexpr std::int64_t kBlock = 64;
  const Key turn = largest ? std::numeric_limits<Key>::max() : 0;
  const auto key_at = [&](std::int64_t i) {
    return static_cast<Key>(ascending_key(static_cast<compute_t<T>>(values[i])) ^ turn);
  };
  const std::int64_t room = k + std::max<std::int64_t>(k, 16);
  std::vector<typename P::Type> kept(static_cast<std::size_t>(room + kBlock));
  std::int64_t count = std::min(room, length);
  for (std::int64_t i = 0; i < count; ++i) kept[static_cast<std::size_t>(i)] = P::of(key_at(i), i);
  Key limit = 0;
  const auto keep_best = [&] {
    const auto last = kept.begin() + (k - 1);
    std::nth_element(kept.begin(), last, kept.begin() + count);
    limit = P::key(*last);
    count = k;
  };
  keep_best();
  // An equal key that comes later is behind in the order.
  Key keys[kBlock];
  for (std::int64_t begin = std::min(room, length); begin < length; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, length - begin);
    if (n == kBlock) {
      Key least = std::numeric_limits<Key>::max();
      for (std::int64_t i = 0; i < kBlock; ++i) keys[i] = key_at(begin + i);
      for (std::int64_t i = 0; i < kBlock; ++i) least = std::min(least, keys[i]);
      if (least >= limit) continue;
    } else {
      for (std::int64_t i = 0; i < n; ++i) keys[i] = key_at(begin + i);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      kept[static_cast<std::size_t>(count)] = P::of(keys[i], begin + i);
      count += keys[i] < limit ? 1 : 0;
    }
    if (count > room) keep_best();
  }
  keep_best();
  std::sort(kept.begin(), kept.begin() + k);
  for (std::int64_t i = 0; i < k; ++i) indices[i] = P::index(kept[static_cast<std::size_t>(i)]);
}

}  // namespace

void topk_cpu(const Tensor& x, const Tensor& indices, bool largest) {
  const std::int64_t length = x.size(1), k = indices.size(1);
  if (k == 0) return;
  const bool fits = length <= std::numeric_limits<std::uint32_t>::max();
  const bool sorts = length >= kShort && 16 * k >= length && fits;
  dispatch_numeric(x.dtype(), "topk", [&]<typename T>() {
    using C = compute_t<T>;
    using Key = decltype(ascending_key(C()));
    lockstep::parallel_for(
        x.size(0), std::max<std::int64_t>(1, cpu::kElementBlock / length), [&](std::int64_t begin, std::int64_t end) {
          std::vector<Entry<Key>> entries(sorts ? static_cast<std::size_t>(length) : 0), space(entries.size());
          for (std::int64_t row = begin; row < end; ++row) {
            const T* const values = x.data<T>() + row * length;
            std::int64_t* const best = indices.data<std::int64_t>() + row * k;
            if constexpr (sizeof(Key) == 4) {
              if (length < kShort) {
                rank_short(values, length, k, largest, best);
                continue;
              }
            }
            if (!sorts) {
              if (sizeof(Key) == 4 && fits)
                select_best<T, true>(values, length, k, largest, best);
              else
                select_best<T, false>(values, length, k, largest, best);
              continue;
            }
            for (std::int64_t i = 0; i < length; ++i) {
              const Key key = ascending_key(static_cast<C>(values[i]));
              entries[static_cast<std::size_t>(i)] = {largest ? static_cast<Key>(~key) : key,
                                                      static_cast<std::uint32_t>(i)};
            }
            sort_by_bytes(entries, space);
            for (std::int64_t i = 0; i < k; ++i) best[i] = entries[static_cast<std::size_t>(i)].index;
          }
        });
  });
}

void place_in_order_cpu(const Tensor& x, std::int64_t k, bool or_nan, const Tensor& indices) {
  const std::int64_t length = x.size(1);
  dispatch_numeric(x.dtype(), "kthvalue", [&]<typename T>() {
    using C = compute_t<T>;
    using Key = decltype(ascending_key(C()));
    lockstep::parallel_for(
        x.size(0), std::max<std::int64_t>(1, cpu::kElementBlock / length), [&](std::int64_t begin, std::int64_t end) {
          std::vector<Key> keys;
          for (std::int64_t row = begin; row < end; ++row) {
            const T* const values = x.data<T>() + row * length;
            const auto key_at = [&](std::int64_t i) { return ascending_key(static_cast<C>(values[i])); };
            keys.resize(static_cast<std::size_t>(length));
            bool any_nan = false;
            for (std::int64_t i = 0; i < length; ++i) {
              keys[static_cast<std::size_t>(i)] = key_at(i);
              any_nan |= static_cast<C>(values[i]) != static_cast<C>(values[i]);
            }
            Selected<Key> found = select_key(keys, static_cast<std::size_t>(or_nan && any_nan ? length - 1 : k));
            // Of equal elements, those that come before it in the order are before it in the row too.
            std::int64_t place = 0;
            while (key_at(place) != found.key || found.equal_before-- > 0) ++place;
            indices.data<std::int64_t>()[row] = place;
          }
        });
  });
}

}  // namespace lockstep::detail
