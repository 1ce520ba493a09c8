#include "lockstep/data/digit_image.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/data/pixels.h"
#include "lockstep/data/resample.h"

namespace lockstep::data {

namespace {

constexpr std::int64_t kField = 28;
constexpr std::int64_t kDigit = 20;
// MNIST's centre, measured on its images: the centre of mass lies at pixel 14 of 0 ... 27, not at 13.5.
constexpr double kCentre = 14.0;
// Least difference between ink and paper, of 255.
constexpr float kLeastContrast = 12.0f;

// Grey levels 0 ... 255 as floats.
struct Plane {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<float> values;

  float& at(std::int64_t row, std::int64_t column) { return values[static_cast<std::size_t>(row * width + column)]; }
};

// Transparent pixels take the shade that the ink is not: white ink on nothing is put on black, all other ink on white.
Plane flatten_alpha(const Image& image) {
  const Image grey = to_grey(image);
  Plane plane{grey.height, grey.width, {grey.pixels.begin(), grey.pixels.end()}};
  if (image.channels != 2 && image.channels != 4) return plane;
  const auto alpha = [&](std::size_t i) {
    const auto channels = static_cast<std::size_t>(image.channels);
    return static_cast<float>(image.pixels[i * channels + channels - 1]) / 255.0f;
  };
  double weight = 0.0;
  double light = 0.0;
  for (std::size_t i = 0; i < plane.values.size(); ++i) {
    weight += alpha(i);
    light += alpha(i) * plane.values[i];
  }
  const float paper = light > 127.5 * weight ? 0.0f : 255.0f;
  for (std::size_t i = 0; i < plane.values.size(); ++i)
    plane.values[i] = alpha(i) * plane.values[i] + (1.0f - alpha(i)) * paper;
  return plane;
}

std::vector<float> border_values(Plane& plane) {
  std::vector<float> border;
  for (std::int64_t column = 0; column < plane.width; ++column) {
    border.push_back(plane.at(0, column));
    border.push_back(plane.at(plane.height - 1, column));
  }
  for (std::int64_t row = 0; row < plane.height; ++row) {
    border.push_back(plane.at(row, 0));
    border.push_back(plane.at(row, plane.width - 1));
  }
  return border;
}

// The value below which a share of the values lies.
float quantile(std::vector<float> values, double share) {
  const auto position = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), position, values.end());
  return *position;
}

// Turns grey levels into ink from 0 (paper) to 1 (darkest or brightest stroke), with the paper's grain removed.
void extract_ink(Plane& plane, const std::string& name) {
  std::vector<float> border = border_values(plane);
  const float paper = quantile(border, 0.5);
  const auto [low, high] = std::minmax_element(plane.values.begin(), plane.values.end());
  const bool dark_ink = paper - *low > *high - paper;
  const float contrast = dark_ink ? paper - *low : *high - paper;
  LOCKSTEP_CHECK(contrast >= kLeastContrast,
                 "[digit] '{}': no digit found: all pixels lie within {:.0f} of 255 grey levels of the background; "
                 "expected a digit that stands out",
                 name, contrast);
  const auto to_ink = [&](float value) {
    return std::max(0.0f, (dark_ink ? paper - value : value - paper) / contrast);
  };
  for (float& value : border) value = to_ink(value);
  // Three border pixels of four are surely paper; twice what they reach is grain, not ink.
  const float grain = std::clamp(2.0f * quantile(border, 0.75), 0.02f, 0.4f);
  for (float& value : plane.values) {
    value = to_ink(value);
    if (value < grain) value = 0.0f;
  }
}

Plane crop_to_ink(Plane& plane) {
  constexpr float kVisible = 0.1f;
  std::int64_t top = plane.height, bottom = -1, left = plane.width, right = -1;
  for (std::int64_t row = 0; row < plane.height; ++row)
    for (std::int64_t column = 0; column < plane.width; ++column)
      if (plane.at(row, column) > kVisible) {
        top = std::min(top, row);
        bottom = std::max(bottom, row);
        left = std::min(left, column);
        right = std::max(right, column);
      }
  Plane crop{bottom - top + 1, right - left + 1, {}};
  for (std::int64_t row = top; row <= bottom; ++row)
    for (std::int64_t column = left; column <= right; ++column) crop.values.push_back(plane.at(row, column));
  return crop;
}

Plane fit(const Plane& ink) {
  const double scale = static_cast<double>(kDigit) / static_cast<double>(std::max(ink.height, ink.width));
  const auto scaled = [&](std::int64_t side) {
    return std::max<std::int64_t>(1, std::llround(static_cast<double>(side) * scale));
  };
  Plane digit{scaled(ink.height), scaled(ink.width), {}};
  digit.values = resample(ink.values, {ink.height, ink.width, 1}, digit.height, digit.width,
                          scale < 1.0 ? Filter::area : Filter::bilinear);
  return digit;
}

Image centre(Plane& digit) {
  double mass = 0.0, row_moment = 0.0, column_moment = 0.0;
  for (std::int64_t row = 0; row < digit.height; ++row)
    for (std::int64_t column = 0; column < digit.width; ++column) {
      mass += digit.at(row, column);
      row_moment += static_cast<double>(row) * digit.at(row, column);
      column_moment += static_cast<double>(column) * digit.at(row, column);
    }
  const auto start = [&](double moment, std::int64_t side) {
    return std::clamp<std::int64_t>(std::llround(kCentre - moment / mass), 0, kField - side);
  };
  const std::int64_t top = start(row_moment, digit.height);
  const std::int64_t left = start(column_moment, digit.width);
  // Thin strokes lose brightness when they shrink; MNIST's reach full white.
  const float peak = *std::max_element(digit.values.begin(), digit.values.end());
  Image field{.height = kField, .width = kField, .channels = 1, .pixels = std::vector<std::uint8_t>(kField * kField)};
  for (std::int64_t row = 0; row < digit.height; ++row)
    for (std::int64_t column = 0; column < digit.width; ++column)
      field.pixels[static_cast<std::size_t>((top + row) * kField + left + column)] =
          static_cast<std::uint8_t>(std::clamp(255.0f * digit.at(row, column) / peak + 0.5f, 0.0f, 255.0f));
  return field;
}

}  // namespace

Image digit_from_image(const Image& image, const std::string& name) {
  Plane plane = flatten_alpha(image);
  extract_ink(plane, name);
  Plane ink = crop_to_ink(plane);
  Plane digit = fit(ink);
  return centre(digit);
}

Tensor digit_tensor(const Image& digit, float mean, float std) {
  LOCKSTEP_CHECK(digit.channels == 1 && !digit.pixels.empty(),
                 "[digit] expected an image with one channel, found {} x {} pixels with {} channels", digit.height,
                 digit.width, digit.channels);
  Tensor x = empty({1, 1, digit.height, digit.width});
  normalize_pixels(digit.pixels, mean, std, x.data<float>());
  return x;
}

}  // namespace lockstep::data
