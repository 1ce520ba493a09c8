#pragma once

// What the 2-D pools' kernels share. For .cu files only.

#include "lockstep/autograd/ops/support/pool2d_geometry.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/quotient.cuh"

namespace lockstep::cuda {

/// [begin, end) along one side.
struct Range {
  std::int64_t begin, end;
  __device__ std::int64_t length() const { return end > begin ? end - begin : 0; }
};

/// Which of `out` windows can reach element `at` of a side: those that begin at index * stride - padding and are
/// `reach` long.
__device__ inline Range windows_over(std::int64_t at, std::int64_t reach, std::int64_t stride, std::int64_t padding,
                                     std::int64_t out) {
  const std::int64_t last = quotient(at + padding, stride), before = at + padding - reach;
  return {before < 0 ? 0 : quotient(before, stride) + 1, last < out ? last + 1 : out};
}

/// Element `index` of planes of height x width.
struct PlanePosition {
  std::int64_t plane, y, x;
  __device__ PlanePosition(std::int64_t index, std::int64_t height, std::int64_t width) {
    const std::int64_t row = quotient(index, width);
    x = index - row * width;
    plane = quotient(row, height);
    y = row - plane * height;
  }
};

/// The same of images [n, height, width, channels], or of planes where channels is 1.
struct ImagePosition {
  std::int64_t image, y, x, channel, channels;
  __device__ ImagePosition(std::int64_t index, std::int64_t channels, std::int64_t height, std::int64_t width)
      : channels(channels) {
    const std::int64_t pixel = quotient(index, channels);
    channel = index - pixel * channels;
    const PlanePosition at(pixel, height, width);
    image = at.plane, y = at.y, x = at.x;
  }
  /// Where this channel's values of images of another size begin; pixels lie `channels` apart.
  __device__ std::int64_t begin(std::int64_t height, std::int64_t width) const {
    return image * height * width * channels + channel;
  }
};

}  // namespace lockstep::cuda
