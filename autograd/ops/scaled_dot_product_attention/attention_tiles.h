#pragma once

// Tiles of the weights of attention on the CPU. For .cpp files only.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_heads.h"
#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_kernels.h"
#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_rows.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/cpu/philox_words.h"
#include "lockstep/core/cpu/transpose8.h"
#include "lockstep/core/factories.h"

namespace lockstep::detail {

// Note [Tiles of attention]
// Scores are computed in tiles of kQueries x kKeys by two products on the calling thread, of fixed shapes, in an order
// that follows from the sizes alone. Forward, a task is a block of queries of one head, which goes through the keys
// with a running maximum and sum. Backward, a task is a key's head with all queries that use it, so that no two tasks
// add to one gradient, key by key of kKeys. Where a causal diagonal goes through a tile, its products are cut into
// strips, which end behind the last key that one of their queries sees: what is left out are weights of zero. Keys and
// values that products need transposed are so once for all tiles of a head (TurnedRows).
inline constexpr std::int64_t kQueries = 128;
inline constexpr std::int64_t kKeys = 256;
inline constexpr std::int64_t kStrip = 16;
inline constexpr std::int64_t kWhole = 56;  // rows of a strip that sees all keys: whole tiles of products, 56 KiB
inline constexpr std::int64_t kPad = 16;    // keys that a row is completed to

template <typename C>
cpu::GemmOperand<C> plain(Rows<const C> rows) {
  return {.data = rows.data, .stride = rows.stride};
}
template <typename C>
cpu::GemmOperand<C> transposed(Rows<const C> rows) {
  return {.data = rows.data, .stride = rows.stride, .transposed = true};
}

/// The rows of one head, transposed tile by tile of kKeys rows when a product needs them.
template <typename C>
class TurnedRows {
 public:
  /// Keeps `most` tiles at most.
  TurnedRows(std::int64_t rows, std::int64_t width, std::int64_t most)
      : width_(width), stride_(std::min(rows, kKeys) + kGap) {
    const std::int64_t tiles = std::min(most, (rows + kKeys - 1) / kKeys);
    const std::int64_t slots = std::min(tiles, std::max<std::int64_t>(1, kMostElements / (width * stride_)));
    held_.resize(static_cast<std::size_t>(slots), kNone);
  }

  /// From now on it is about these.
  void take(Rows<const C> rows) {
    if (rows.data == rows_.data) return;
    rows_ = rows;
    std::fill(held_.begin(), held_.end(), kNone);
  }

  /// The transpose of `count` rows from `first`, the beginning of a tile, for a product with `with` rows. For few,
  /// transposing would take longer than the product.
  cpu::GemmOperand<C> tile(std::int64_t first, std::int64_t count, std::int64_t with) {
    if (with < kFew) return transposed<C>(rows_.from(first));
    const auto slots = static_cast<std::int64_t>(held_.size());
    if (!data_.defined()) data_ = empty({slots, width_, stride_}, {.dtype = dtype_of<C>});
    const std::int64_t slot = first / kKeys % slots;
    C* const turned = data_.template data<C>() + slot * width_ * stride_;
    Held& held = held_[static_cast<std::size_t>(slot)];
    if (held.first != first) held = {first, 0};
    if (held.count < count) {
      turn(rows_.from(first), held.count, count, turned);
      held.count = count;
    }
    return {.data = turned, .stride = stride_};
  }

 private:
  struct Held {
    std::int64_t first, count;
  };
  static constexpr Held kNone{-1, 0};
  static constexpr std::int64_t kGap = 16;  // parts the rows in a cache
  static constexpr std::int64_t kMostElements = 256 << 10;
  static constexpr std::int64_t kFew = 16;

  void turn(Rows<const C> rows, std::int64_t begin, std::int64_t end, C* to) const {
    std::int64_t j = begin;
    if constexpr (std::is_same_v<C, float>) {
      for (; j + cpu::kLanes <= end; j += cpu::kLanes) {
        std::int64_t d = 0;
        for (; d + cpu::kLanes <= width_; d += cpu::kLanes) {
          cpu::Vec8 square[cpu::kLanes];
          for (int i = 0; i < cpu::kLanes; ++i) {
            square[i] = cpu::load8(rows.at(j + i) + d);
            __builtin_prefetch(rows.at(j + cpu::kLanes + i) + d);
          }
          cpu::transpose8(square);
          for (int i = 0; i < cpu::kLanes; ++i) cpu::store8(to + (d + i) * stride_ + j, square[i]);
        }
        for (; d < width_; ++d)
          for (std::int64_t i = j; i < j + cpu::kLanes; ++i) to[d * stride_ + i] = rows.at(i)[d];
      }
    }
    for (; j < end; ++j)
      for (std::int64_t d = 0; d < width_; ++d) to[d * stride_ + j] = rows.at(j)[d];
  }

  std::int64_t width_, stride_;
  Rows<const C> rows_{nullptr, 0};
  std::vector<Held> held_;
  Tensor data_;
};

/// keep[j] for `count` neighbouring weights from number `first`: 0 or the scale of what is kept.
template <typename C>
void keep_factors(const AttentionPlan& plan, philox::Key key, std::int64_t first, std::int64_t count, C* keep) {
  const C scale = static_cast<C>(plan.keep_scale);
  cpu::for_each_words(key, first, count, [&](std::int64_t at, const std::uint32_t* words, std::int64_t found) {
    for (std::int64_t i = 0; i < found; ++i) keep[at + i] = words[i] >= plan.threshold ? scale : C(0);
  });
}

/// A tile of weights: what the plan says of its rows.
template <typename C>
class Tile {
 public:
  Tile(const AttentionPlan& plan, const HeadSizes& sizes, const MaskView<C>& mask, std::int64_t batch,
       std::int64_t head, std::int64_t first_query, std::int64_t first_key, std::int64_t keys)
      : plan_(plan),
        sizes_(sizes),
        mask_(mask),
        batch_(batch),
        head_(head),
        first_query_(first_query),
        first_key_(first_key),
        keys_(keys) {}

  /// Keys of this tile that row i sees, those of a mask not counted.
  std::int64_t seen(std::int64_t i) const {
    return plan_.causal ? std::clamp<std::int64_t>(first_query_ + i + 1 - first_key_, 0, keys_) : keys_;
  }
  /// Whether some rows see fewer keys of this tile than others, or none.
  bool diagonal() const { return seen(0) < keys_; }
  /// The first row that sees key j.
  std::int64_t first_row(std::int64_t j) const {
    return plan_.causal ? std::max<std::int64_t>(0, first_key_ + j - first_query_) : 0;
  }
  /// body(begin, end, keys) for the rows [0, rows), strip by strip: narrow ones where there is a diagonal.
  template <typename Body>
  void for_each_strip(std::int64_t rows, Body&& body) const {
    const std::int64_t strip = !diagonal() ? kWhole : seen(0) >= 128 ? 2 * kStrip : kStrip;
    for (std::int64_t i = 0; i < rows; i += strip) {
      const std::int64_t end = std::min(i + strip, rows);
      const std::int64_t keys = std::min(keys_, (seen(end - 1) + kStrip - 1) / kStrip * kStrip);
      if (keys > 0) body(i, end, keys);
    }
  }
  /// Its rows from begin to end, of which products read `across` keys.
  RowStrip<C> strip(std::int64_t begin, std::int64_t end, std::int64_t across, C* rows, std::int64_t stride) const {
    return {.rows = rows + begin * stride,
            .stride = stride,
            .count = end - begin,
            .keys = keys_,
            .seen = plan_.causal ? first_query_ + begin + 1 - first_key_ : keys_,
            .step = plan_.causal ? 1 : 0,
            .across = across};
  }
  /// body(first, count, first_row) for this tile's keys: those that all rows see, then strip by strip.
  template <typename Body>
  void for_each_strip_of_keys(std::int64_t rows, Body&& body) const {
    const std::int64_t whole = diagonal() ? seen(0) / kStrip * kStrip : keys_;
    if (whole > 0) body(0, whole, 0);
    for (std::int64_t j = whole; j < keys_ && first_row(j) < rows; j += kStrip)
      body(j, std::min(kStrip, keys_ - j), first_row(j));
  }
  /// Puts the mask on the scores of row i.
  void mask(std::int64_t i, C* scores) const {
    if (mask_) mask_.apply(batch_, head_, first_query_ + i, first_key_, keys_, scores);
  }
  /// keep_factors() of all rows, [rows][keys].
  void decide(philox::Key key, std::int64_t rows, C* keep) const {
    const std::int64_t row = plan_.head_number(batch_, head_, sizes_.heads) * sizes_.queries + first_query_;
    if (keys_ == sizes_.keys) return keep_factors(plan_, key, row * sizes_.keys, rows * keys_, keep);
    for (std::int64_t i = 0; i < rows; ++i)
      keep_factors(plan_, key, (row + i) * sizes_.keys + first_key_, keys_, keep + i * keys_);
  }

 private:
  const AttentionPlan& plan_;
  const HeadSizes& sizes_;
  const MaskView<C>& mask_;
  std::int64_t batch_, head_, first_query_, first_key_, keys_;
};

/// Elements between the rows of a tile, which are whole vectors, and have places of their own in a cache where a
/// product takes a tile by columns.
inline std::int64_t tile_stride(const HeadSizes& sizes) {
  const std::int64_t keys = (std::min(kKeys, sizes.keys) + kPad - 1) / kPad * kPad;
  return keys % 128 == 0 ? keys + kPad : keys;
}

/// Keys that a block of queries up to `end` has to go through.
inline std::int64_t keys_of(const AttentionPlan& plan, const HeadSizes& sizes, std::int64_t end) {
  return plan.causal ? std::min(sizes.keys, end) : sizes.keys;
}

}  // namespace lockstep::detail
