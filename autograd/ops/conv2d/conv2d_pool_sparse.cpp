#include "lockstep/autograd/ops/conv2d/conv2d_pool_sparse.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "lockstep/autograd/ops/conv2d/conv2d_pool_sums.h"
#include "lockstep/core/cpu/all_finite.h"
#include "lockstep/core/cpu/transpose8.h"
#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/factories.h"

namespace lockstep::conv2d_pool {
namespace {

using cpu::load8;
using cpu::store8;
using cpu::sum8;
using cpu::transpose8;
using Vec = cpu::Vec8;

// Lane i is lane order[i] of `from`.
template <typename V>
[[gnu::always_inline]] inline V pick(V from, cpu::IntVec8 order) {
#ifdef __clang__  // which has no shuffle by variable lanes
  V to{};
  for (int i = 0; i < 8; ++i) to[i] = from[order[i]];
  return to;
#else
  return __builtin_shuffle(from, order);
#endif
}

// to[j * to_pitch + i] = from[i * from_pitch + j] for i < rows, j < columns.
void transpose(const float* from, std::int64_t from_pitch, std::int64_t rows, std::int64_t columns, float* to,
               std::int64_t to_pitch) {
  const std::int64_t whole = columns >= kLanes ? rows / kLanes * kLanes : 0;
  for (std::int64_t i = 0; i < whole; i += kLanes)
    for (std::int64_t j = 0; j < columns; j += kLanes) {
      const std::int64_t column = std::min(j, columns - kLanes);  // the last block may repeat columns
      Vec m[8];
      for (int k = 0; k < 8; ++k) m[k] = load8(from + (i + k) * from_pitch + column);
      transpose8(m);
      for (int k = 0; k < 8; ++k) store8(to + (column + k) * to_pitch + i, m[k]);
    }
  for (std::int64_t i = whole; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j) to[j * to_pitch + i] = from[i * from_pitch + j];
}

bool counts(float value) {
  return value != 0.0f;
}

}  // namespace

Layout::Layout(const Conv2dGeometry& geometry) : g(geometry), ph(g.oh / 2), pw(g.ow / 2) {
  const SumOrder order(g);
  pitch = (g.w + 2 * g.padding.w) * g.in;
  size = (g.h + 2 * g.padding.h) * pitch + kLanes;
  vectors = order.vectors;
  row = vectors * kLanes;
  band_rows = order.band_rows;
}

void to_channels_last(const Layout& layout, const float* image, float* to) {
  const Conv2dGeometry& g = layout.g;
  for (std::int64_t y = 0; y < g.h; ++y)
    transpose(image + y * g.w, g.h * g.w, g.in, g.w, to + (y + g.padding.h) * layout.pitch + g.padding.w * g.in, g.in);
}

void to_channels_first(const Layout& layout, const float* image, float* to) {
  const Conv2dGeometry& g = layout.g;
  for (std::int64_t y = 0; y < g.h; ++y)
    transpose(image + (y + g.padding.h) * layout.pitch + g.padding.w * g.in, g.in, g.w, g.in, to + y * g.w, g.h * g.w);
}

Tensor pack_weights(const Layout& layout, const float* weight) {
  const Conv2dGeometry& g = layout.g;
  const Tensor result = zeros({g.kh * g.out * layout.row});
  float* const packed = result.data<float>();
  for (std::int64_t o = 0; o < g.out; ++o)
    for (std::int64_t c = 0; c < g.in; ++c)
      for (std::int64_t ky = 0; ky < g.kh; ++ky)
        for (std::int64_t kx = 0; kx < g.kw; ++kx)
          packed[(ky * g.out + o) * layout.row + kx * g.in + c] = weight[((o * g.in + c) * g.kh + ky) * g.kw + kx];
  return result;
}

void unpack_sums(const Layout& layout, const float* sums, float* weight) {
  const Conv2dGeometry& g = layout.g;
  for (std::int64_t o = 0; o < g.out; ++o)
    for (std::int64_t c = 0; c < g.in; ++c)
      for (std::int64_t ky = 0; ky < g.kh; ++ky)
        for (std::int64_t kx = 0; kx < g.kw; ++kx)
          weight[((o * g.in + c) * g.kh + ky) * g.kw + kx] = sums[(o * g.kh + ky) * layout.row + kx * g.in + c];
}

// kPacking[mask] moves the lanes of the mask's bits to the front.
constexpr auto kPacking = [] {
  std::array<std::array<std::uint8_t, kLanes>, 256> table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    std::size_t count = 0;
    for (std::uint8_t lane = 0; lane < kLanes; ++lane)
      if (mask >> lane & 1) table[mask][count++] = lane;
  }
  return table;
}();

WeightGradient::WeightGradient(const Layout& layout)
    : layout_(layout),
      values_(static_cast<std::size_t>(layout.band_rows * layout.pw + kLanes)),
      places_(static_cast<std::size_t>(layout.band_rows * layout.pw + kLanes)) {
  for (std::int64_t y = 0; y < layout.ph; ++y)
    for (std::int64_t x = 0; x < layout.pw; ++x)
      corners_.push_back(static_cast<std::int32_t>(2 * y * layout.pitch + 2 * x * layout.g.in));
}

std::int64_t WeightGradient::gather(const float* grad, const std::uint8_t* positions, std::int64_t begin,
                                    std::int64_t end, float* bias) {
  const auto in = static_cast<std::int32_t>(layout_.g.in), pitch = static_cast<std::int32_t>(layout_.pitch);
  std::int64_t count = 0, i = begin;
  Vec total{};
  for (; i + kLanes <= end; i += kLanes) {
    const Vec value = load8(grad + i);
    const cpu::IntVec8 position = cpu::widen8(positions + i) & 3;
    const cpu::IntVec8 place = load8(corners_.data() + i) + (position & 1) * in + (position >> 1) * pitch;
    const cpu::IntVec8 alive = value != Vec{};
    total += value;
    const unsigned mask = cpu::mask8(alive);
    const cpu::IntVec8 order = cpu::widen8(kPacking[mask].data());
    store8(values_.data() + count, pick(value, order));
    store8(places_.data() + count, pick(place, order));
    count += std::popcount(mask);
  }
  float rest = 0;
  for (; i < end; ++i) {
    if (!counts(grad[i])) continue;
    const auto at = static_cast<std::size_t>(count++);
    values_[at] = grad[i];
    places_[at] = corners_[static_cast<std::size_t>(i)] + (positions[i] & 1) * in + (positions[i] >> 1 & 1) * pitch;
    rest += grad[i];
  }
  *bias += sum8(total) + rest;
  return count;
}

void WeightGradient::add(const float* grad, const std::uint8_t* positions, const float* image, float* sums,
                         float* bias) {
  const Conv2dGeometry& g = layout_.g;
  const SparseSums& by = sparse_sums_in_use();
  const std::int64_t plane = layout_.ph * layout_.pw;
  for (std::int64_t top = 0; top < layout_.ph; top += layout_.band_rows) {
    const std::int64_t bottom = std::min(layout_.ph, top + layout_.band_rows);
    for (std::int64_t o = 0; o < g.out; ++o) {
      const std::int64_t count =
          gather(grad + o * plane, positions + o * plane, top * layout_.pw, bottom * layout_.pw, bias + o);
      float* own = sums + o * g.kh * layout_.row;
      for (std::int64_t v = 0; v < layout_.vectors; v += kTile) {
        const std::int64_t width = std::min<std::int64_t>(kTile, layout_.vectors - v);
        const auto runs = static_cast<std::size_t>(width - 1);
        for (std::int64_t ky = 0; ky < g.kh; ky += by.rows[runs]) {
          const std::int64_t rows = std::min<std::int64_t>(by.rows[runs], g.kh - ky);
          by.patches[runs][rows - 1]({values_.data(), places_.data(), count}, image + ky * layout_.pitch + v * kLanes,
                                     layout_.pitch, own + ky * layout_.row + v * kLanes, layout_.row);
        }
      }
    }
  }
}

InputGradient::InputGradient(const Layout& layout, const float* packed_weights)
    : layout_(layout),
      weights_(packed_weights),
      // Where patches overlap by half a vector of sixteen, those of eight are faster: see add().
      sums_(layout.g.in % kLanes == 0 && layout.g.in % sparse_sums_in_use().lanes != 0 ? kSparseSums
                                                                                       : sparse_sums_in_use()),
      counts_(static_cast<std::size_t>(4 * layout.pw)),
      values_(static_cast<std::size_t>(4 * layout.pw * layout.g.out)),
      places_(static_cast<std::size_t>(4 * layout.pw * layout.g.out)) {}

void InputGradient::gather_row(const float* grad, const std::uint8_t* positions) {
  std::fill(counts_.begin(), counts_.end(), 0);
  const auto out = static_cast<std::size_t>(layout_.g.out);
  for (std::size_t o = 0; o < out; ++o, grad += layout_.ph * layout_.pw, positions += layout_.ph * layout_.pw)
    for (std::int64_t x = 0; x < layout_.pw; ++x) {
      const std::size_t slot = static_cast<std::size_t>(4 * x + (positions[x] & 3));
      const std::size_t at = slot * out + static_cast<std::size_t>(counts_[slot]);
      values_[at] = grad[x];
      places_[at] = static_cast<std::int32_t>(static_cast<std::int64_t>(o) * layout_.row);
      counts_[slot] += counts(grad[x]);
    }
}

// Rows [ky, ky + rows) of a weight.
void InputGradient::spread(std::int64_t slot, std::int64_t ky, std::int64_t rows, float* image) const {
  const std::int64_t count = counts_[static_cast<std::size_t>(slot)];
  if (count == 0) return;
  const std::int64_t weights_pitch = layout_.g.out * layout_.row, first = slot * layout_.g.out;
  float* to = corner_of(slot, ky, image);
  for (std::int64_t v = 0; v < layout_.vectors; v += kTile) {
    const std::int64_t width = std::min<std::int64_t>(kTile, layout_.vectors - v);
    sums_.weights[width - 1]({.entries = {values_.data() + first, places_.data() + first, count},
                              .weights = weights_ + ky * weights_pitch + v * kLanes,
                              .weights_pitch = weights_pitch,
                              .to = to + v * kLanes,
                              .pitch = layout_.pitch,
                              .rows = rows});
  }
}

// The same of a gradient that may not be finite: behind a row of a patch are elements of others, which a product of
// zero would not leave as they are.
void InputGradient::spread_alone(std::int64_t slot, std::int64_t ky, std::int64_t rows, float* image) const {
  const std::int64_t patch = layout_.g.kw * layout_.g.in;
  std::array<float, kLanes> kept;
  for (const std::int64_t end = ky + rows; ky < end; ++ky) {
    float* const behind = corner_of(slot, ky, image) + patch;
    std::copy_n(behind, layout_.row - patch, kept.begin());
    spread(slot, ky, 1, image);
    std::copy_n(kept.begin(), layout_.row - patch, behind);
  }
}

// A processor forwards a store to a load of the same vector, but a load that covers parts of two recent stores waits
// for both. So where neighbouring patches do not start on whole vectors, patches that overlap follow at some distance:
// all rows of one position's patch, then of the position below, then the next column. Else one row of weights at a time
// passes over all positions, and stays in the first-level cache.
void InputGradient::add(const float* grad, const std::uint8_t* positions, float* image) {
  const std::int64_t kh = layout_.g.kh, columns = 2 * layout_.pw;
  const bool whole_vectors = layout_.g.in % kLanes == 0;
  const bool alone =
      layout_.row != layout_.g.kw * layout_.g.in && !cpu::all_finite(grad, layout_.g.out * layout_.ph * layout_.pw);
  const std::int64_t at_once = whole_vectors ? 1 : kh;
  const auto slot_at = [](std::int64_t column, std::int64_t row) { return column / 2 * 4 + row * 2 + column % 2; };
  for (std::int64_t y = 0; y < layout_.ph; ++y) {
    gather_row(grad + y * layout_.pw, positions + y * layout_.pw);
    float* corner = image + 2 * y * layout_.pitch;
    for (std::int64_t ky = 0; ky < kh; ky += at_once)
      if (whole_vectors) {
        // The two rows write apart, so that the sums of one need not wait for the other's.
        for (std::int64_t column = 0; column < columns; ++column)
          for (std::int64_t row = 0; row < 2; ++row) spread(slot_at(column, row), ky, 1, corner);
      } else {
        for (std::int64_t column = 0; column < columns; ++column)
          for (std::int64_t row = 0; row < 2; ++row)
            alone ? spread_alone(slot_at(column, row), ky, kh, corner) : spread(slot_at(column, row), ky, kh, corner);
      }
  }
}

}  // namespace lockstep::conv2d_pool
