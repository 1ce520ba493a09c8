#include "lockstep/core/cpu/conv/winograd_tiles.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/cpu/transpose8.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::cpu::conv_detail {
namespace {

// Elements 0, 2, ... and 1, 3, ... of sixteen, and back.
[[gnu::always_inline]] inline Vec8 evens(Vec8 a, Vec8 b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
}
[[gnu::always_inline]] inline Vec8 odds(Vec8 a, Vec8 b) {
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
}
[[gnu::always_inline]] inline Vec8 zip_low(Vec8 a, Vec8 b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
[[gnu::always_inline]] inline Vec8 zip_high(Vec8 a, Vec8 b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

// The first `count` lanes, and 0.
[[gnu::always_inline]] inline Vec8 first_lanes(Vec8 v, std::int64_t count) {
  const IntVec8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto n = static_cast<std::int32_t>(count);
  return lane < IntVec8{n, n, n, n, n, n, n, n} ? v : Vec8{};
}
[[gnu::always_inline]] inline void store_first(float* to, Vec8 v, std::int64_t count) {
  float lanes[kLanes];
  store8(lanes, v);
  std::copy_n(lanes, count, to);
}

}  // namespace

TileRows::TileRows(const float* images, std::int64_t stride, std::int64_t h, std::int64_t w, std::int64_t top,
                   std::int64_t left, std::int64_t rows, std::int64_t columns, std::int64_t most)
    : images_(images),
      stride_(stride),
      h_(h),
      w_(w),
      top_(top),
      left_(left),
      rows_(rows),
      columns_(columns),
      // A row of a part, and what a vector reads behind it.
      pitch_(std::max(columns + 1, (w + left + 1) / 2) + kLanes),
      part_((std::min(rows, most) + 1) * pitch_) {}

// Rows [first, first + 2 * count) of the padded plane. Only columns of the image are written.
void TileRows::part(const float* plane, std::int64_t first, std::int64_t count, float* space) const {
  for (std::int64_t r = 0; r < 2 * count; ++r) {
    const std::int64_t y = first + r - top_;
    float* const even = space + r % 2 * 2 * part_ + r / 2 * pitch_;  // of the padded row's columns
    float* const odd = even + part_;
    // Columns of the image, where its element 0 belongs to `low` and its element 1 to `high`.
    float* const low = left_ % 2 == 0 ? even + left_ / 2 : odd + left_ / 2;
    float* const high = left_ % 2 == 0 ? odd + left_ / 2 : even + left_ / 2 + 1;
    const std::int64_t pairs = w_ / 2;
    if (y < 0 || y >= h_) {
      std::fill_n(low, pairs + w_ % 2, 0.0f);
      std::fill_n(high, pairs, 0.0f);
      continue;
    }
    const float* const row = plane + y * w_;
    std::int64_t q = 0;
    for (; q + kLanes <= pairs; q += kLanes) {
      const Vec8 a = load8(row + 2 * q), b = load8(row + 2 * q + kLanes);
      store8(low + q, evens(a, b));
      store8(high + q, odds(a, b));
    }
    for (; q < pairs; ++q) low[q] = row[2 * q], high[q] = row[2 * q + 1];
    if (w_ % 2 != 0) low[q] = row[2 * q];
  }
}

// Vectors of a row of tiles run over its end; the next row's are stored over what they leave there.
template <typename Transform>
void TileRows::transform(std::int64_t begin, std::int64_t end, std::int64_t channel, std::int64_t reach, float* space,
                         float* to, std::int64_t point_stride, const Transform& each) const {
  while (begin < end) {
    const std::int64_t image = begin / rows_, first = begin % rows_, count = std::min(rows_ - first, end - begin);
    part(images_ + image * stride_ + channel * h_ * w_, kTileSide * first, count + reach / 2 - 1, space);
    for (std::int64_t y = 0; y < count; ++y, to += columns_) {
      const float* const row = space + y * pitch_;
      const Parts parts{{{row, row + part_}, {row + 2 * part_, row + 3 * part_}}, pitch_};
      for (std::int64_t x = 0; x < columns_; x += kLanes) each(parts, x, to + x, point_stride);
    }
    begin += count;
  }
}

void TileRows::elements(std::int64_t begin, std::int64_t end, std::int64_t channel, float* space, float* to,
                        std::int64_t point_stride) const {
  const auto each = [](const Parts& parts, std::int64_t x, float* out, std::int64_t stride) {
    const auto column = [&](int j, Vec8(&d)[kReach]) {
      for (int i = 0; i < kReach; ++i) d[i] = load8(parts.part[i % 2][j % 2] + i / 2 * parts.pitch + x + j / 2);
    };
    const auto store = [&](int j, const Vec8(&d)[kReach]) {
      store8(out + (0 + j) * stride, d[0] - d[2]);
      store8(out + (4 + j) * stride, d[1] + d[2]);
      store8(out + (8 + j) * stride, d[2] - d[1]);
      store8(out + (12 + j) * stride, d[1] - d[3]);
    };
    Vec8 a[kReach], b[kReach], r[kReach];
    column(0, a), column(2, b);
    for (int i = 0; i < kReach; ++i) r[i] = a[i] - b[i];
    store(0, r);
    column(1, a);
    for (int i = 0; i < kReach; ++i) r[i] = a[i] + b[i];
    store(1, r);
    for (int i = 0; i < kReach; ++i) r[i] = b[i] - a[i];
    store(2, r);
    column(3, b);
    for (int i = 0; i < kReach; ++i) r[i] = a[i] - b[i];
    store(3, r);
  };
  transform(begin, end, channel, kReach, space, to, point_stride, each);
}

void TileRows::gradients(std::int64_t begin, std::int64_t end, std::int64_t channel, float* space, float* to,
                         std::int64_t point_stride) const {
  const auto each = [](const Parts& parts, std::int64_t x, float* out, std::int64_t stride) {
    const auto store = [&](int j, Vec8 upper, Vec8 lower) {
      store8(out + (0 + j) * stride, upper);
      store8(out + (4 + j) * stride, upper + lower);
      store8(out + (8 + j) * stride, upper - lower);
      store8(out + (12 + j) * stride, -lower);
    };
    const Vec8 a = load8(parts.part[0][0] + x), b = load8(parts.part[0][1] + x);
    const Vec8 c = load8(parts.part[1][0] + x), d = load8(parts.part[1][1] + x);
    store(0, a, c);
    store(1, a + b, c + d);
    store(2, a - b, c - d);
    store(3, -b, -d);
  };
  transform(begin, end, channel, kTileSide, space, to, point_stride, each);
}

void transform_weights(const float* weight, std::int64_t row, std::int64_t channel, bool turned, std::int64_t rows,
                       std::int64_t channels, float* to, std::int64_t point_stride) {
  // Two groups of eight rows overlap; what a single one has too much is stored over by the next channel's.
  const std::int64_t groups = rows > kLanes ? 2 : 1;
  for (std::int64_t c = 0; c < channels; ++c)
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t first = g * (rows - kLanes);
      Vec8 w[kTaps], square[kLanes];
      const float* from[kLanes];
      for (std::int64_t i = 0; i < kLanes; ++i) from[i] = weight + std::min(first + i, rows - 1) * row + c * channel;
      for (std::int64_t i = 0; i < kLanes; ++i) square[i] = load8(from[i]);
      transpose8(square);
      for (std::int64_t i = 0; i < kLanes; ++i) w[i] = square[i];
      w[8] = Vec8{from[0][8], from[1][8], from[2][8], from[3][8], from[4][8], from[5][8], from[6][8], from[7][8]};
      if (turned)
        for (int i = 0; i < 4; ++i) std::swap(w[i], w[8 - i]);
      const Vec8 half = broadcast8(0.5f);
      Vec8 t[3][4];  // along a row
      for (int i = 0; i < 3; ++i) {
        const Vec8 ends = w[3 * i] + w[3 * i + 2];
        t[i][0] = w[3 * i];
        t[i][1] = half * (ends + w[3 * i + 1]);
        t[i][2] = half * (ends - w[3 * i + 1]);
        t[i][3] = w[3 * i + 2];
      }
      float* const out = to + c * rows + first;
      for (int j = 0; j < 4; ++j) {
        const Vec8 ends = t[0][j] + t[2][j];
        store8(out + j * point_stride, t[0][j]);
        store8(out + (4 + j) * point_stride, half * (ends + t[1][j]));
        store8(out + (8 + j) * point_stride, half * (ends - t[1][j]));
        store8(out + (12 + j) * point_stride, t[2][j]);
      }
    }
}

bool results_of_tiles(const float* sums, std::int64_t point_stride, float bias, bool relu, std::int64_t height,
                      std::int64_t width, std::int64_t pitch, float* out) {
  const Vec8 term = broadcast8(bias);
  Vec8 strange{};  // x - x: 0, or NaN if x is not finite
  for (std::int64_t x = 0; x < width; x += 2 * kLanes, sums += kLanes, out += 2 * kLanes) {
    Vec8 upper[4], lower[4];
    for (int j = 0; j < 4; ++j) {
      const float* const p = sums + j * point_stride;
      const Vec8 m1 = load8(p + 4 * point_stride), m2 = load8(p + 8 * point_stride);
      upper[j] = load8(p) + m1 + m2;
      lower[j] = m1 - m2 - load8(p + 12 * point_stride);
    }
    for (std::int64_t y = 0; y < height; ++y) {
      const Vec8(&m)[4] = y == 0 ? upper : lower;
      const Vec8 even = m[0] + m[1] + m[2] + term, odd = m[1] - m[2] - m[3] + term;
      Vec8 low = zip_low(even, odd), high = zip_high(even, odd);
      const std::int64_t left = width - x;
      if (left >= 2 * kLanes)
        strange += (even - even) + (odd - odd);
      else  // what lies behind the last result may be anything
        strange += first_lanes(even - even, (left + 1) / 2) + first_lanes(odd - odd, left / 2);
      if (relu) {
        low = low < Vec8{} ? Vec8{} : low;
        high = high < Vec8{} ? Vec8{} : high;
      }
      float* const to = out + y * pitch;
      if (left >= kLanes)
        store8(to, low);
      else
        store_first(to, low, left);
      if (left >= 2 * kLanes)
        store8(to + kLanes, high);
      else if (left > kLanes)
        store_first(to + kLanes, high, left - kLanes);
    }
  }
  return sum8(strange) == 0.0f;
}

bool weights_of_sums(const float* sums, std::int64_t point_stride, std::int64_t count, float* weight,
                     std::int64_t weight_stride) {
  const Vec8 half = broadcast8(0.5f);
  Vec8 strange{};  // as above
  for (std::int64_t o = 0; o < count; o += kLanes, sums += kLanes) {
    Vec8 t[3][4];
    for (int j = 0; j < 4; ++j) {
      const float* const p = sums + j * point_stride;
      const Vec8 s1 = load8(p + 4 * point_stride), s2 = load8(p + 8 * point_stride);
      const Vec8 middle = half * (s1 + s2);
      t[0][j] = load8(p) + middle;
      t[1][j] = half * (s1 - s2);
      t[2][j] = middle + load8(p + 12 * point_stride);
    }
    Vec8 w[kTaps];
    for (int i = 0; i < 3; ++i) {
      const Vec8 middle = half * (t[i][1] + t[i][2]);
      w[3 * i] = t[i][0] + middle;
      w[3 * i + 1] = half * (t[i][1] - t[i][2]);
      w[3 * i + 2] = middle + t[i][3];
    }
    Vec8 square[kLanes];
    for (std::int64_t i = 0; i < kLanes; ++i) square[i] = w[i];
    transpose8(square);
    for (std::int64_t i = 0; i < std::min(kLanes, count - o); ++i) {
      float* const to = weight + (o + i) * weight_stride;
      store8(to, square[i]);
      to[8] = w[8][i];
      strange += square[i] - square[i];
      strange[0] += to[8] - to[8];
    }
  }
  return sum8(strange) == 0.0f;
}

}  // namespace lockstep::cpu::conv_detail
