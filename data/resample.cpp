#include "lockstep/data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace lockstep::data {

namespace {

// The source positions that one new position is a weighted sum of.
struct Tap {
  std::int64_t first = 0;
  std::vector<float> weights;
};

Tap bilinear_tap(std::int64_t to, double scale, std::int64_t from_size) {
  const double centre = std::max(0.0, (static_cast<double>(to) + 0.5) * scale - 0.5);
  const std::int64_t first = std::min(static_cast<std::int64_t>(centre), from_size - 1);
  const double fraction = centre - static_cast<double>(first);
  if (first + 1 >= from_size) return {first, {1.0f}};
  return {first, {static_cast<float>(1.0 - fraction), static_cast<float>(fraction)}};
}

Tap area_tap(std::int64_t to, double scale, std::int64_t from_size) {
  const double begin = static_cast<double>(to) * scale;
  const double end = std::min(begin + scale, static_cast<double>(from_size));
  Tap tap{.first = std::min(static_cast<std::int64_t>(begin), from_size - 1), .weights = {}};
  for (std::int64_t i = tap.first; i < from_size; ++i) {
    const double covered = std::min(end, static_cast<double>(i + 1)) - std::max(begin, static_cast<double>(i));
    if (covered <= 1e-9 && !tap.weights.empty()) break;
    tap.weights.push_back(static_cast<float>(std::max(covered, 0.0) / (end - begin)));
  }
  return tap;
}

std::vector<Tap> make_taps(std::int64_t from_size, std::int64_t to_size, Filter filter) {
  const double scale = static_cast<double>(from_size) / static_cast<double>(to_size);
  std::vector<Tap> taps;
  taps.reserve(static_cast<std::size_t>(to_size));
  for (std::int64_t to = 0; to < to_size; ++to)
    taps.push_back(filter == Filter::area ? area_tap(to, scale, from_size) : bilinear_tap(to, scale, from_size));
  return taps;
}

// Replaces the middle one of three dimensions [outer, taps' source size, inner].
std::vector<float> apply(std::span<const float> values, std::int64_t outer, std::int64_t size, std::int64_t inner,
                         const std::vector<Tap>& taps) {
  std::vector<float> result(static_cast<std::size_t>(outer) * taps.size() * static_cast<std::size_t>(inner), 0.0f);
  float* to = result.data();
  for (std::int64_t o = 0; o < outer; ++o)
    for (const Tap& tap : taps) {
      const float* from = values.data() + (o * size + tap.first) * inner;
      for (const float weight : tap.weights) {
        for (std::int64_t i = 0; i < inner; ++i) to[i] += weight * from[i];
        from += inner;
      }
      to += inner;
    }
  return result;
}

}  // namespace

std::vector<float> resample(std::span<const float> values, Extent extent, std::int64_t height, std::int64_t width,
                            Filter filter) {
  const std::vector<float> narrowed =
      apply(values, extent.height, extent.width, extent.channels, make_taps(extent.width, width, filter));
  return apply(narrowed, 1, extent.height, width * extent.channels, make_taps(extent.height, height, filter));
}

}  // namespace lockstep::data
