#pragma once

// Resizing of float images. Internal to data/.

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::data {

enum class Filter {
  bilinear,  ///< between the two nearest pixel centres
  area,      ///< mean over the area covered
};

struct Extent {
  std::int64_t height, width, channels;
};

/// Values in image order (rows, columns, channels) at a new size.
std::vector<float> resample(std::span<const float> values, Extent extent, std::int64_t height, std::int64_t width,
                            Filter filter);

}  // namespace lockstep::data
