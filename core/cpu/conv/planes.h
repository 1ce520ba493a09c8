#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::cpu::conv_detail {

/// Planes of images as the kernels read them: with zeros around, and, for a stride above 1, parted by the remainders of
/// row and column, so that neighbouring results read neighbouring elements.
struct Planes {
  std::int64_t channels;          ///< of one group
  std::int64_t h, w;              ///< of the image
  std::int64_t top, left;         ///< zeros before row and column 0; negative: so many are left out
  std::int64_t step_h, step_w;    ///< the stride
  std::int64_t rows, pitch;       ///< of a part of a plane
  std::int64_t parts_h, parts_w;  ///< of step_h and step_w, those that are read; the others hold no elements
  bool copied;                    ///< false: the image is read as it lies

  /// For `oh` x `ow` results that read rows y * step + ky - top for the offsets 0 ... reach_h, and so columns.
  Planes(std::int64_t channels, std::int64_t h, std::int64_t w, std::int64_t top, std::int64_t left,
         std::int64_t step_h, std::int64_t step_w, std::int64_t oh, std::int64_t ow, std::int64_t reach_h,
         std::int64_t reach_w);

  std::int64_t part() const { return rows * pitch; }
  std::int64_t plane() const { return step_h * step_w * part(); }
  std::int64_t size() const { return channels * plane(); }
  /// Of the element that result (0, 0) reads at offset (ky, kx), in a plane.
  std::int64_t offset(std::int64_t ky, std::int64_t kx) const {
    return ((ky % step_h) * step_w + kx % step_w) * part() + ky / step_h * pitch + kx / step_w;
  }
  /// Copies the channels of one image, or those in [begin, end), of float or BFloat16.
  template <typename T>
  void copy(const T* image, T* to) const {
    copy(image, to, 0, channels);
  }
  template <typename T>
  void copy(const T* image, T* to, std::int64_t begin, std::int64_t end) const;
  /// The way back, for the elements that planes hold; others of the image become 0.
  void copy_back(const float* from, float* image) const;
};

}  // namespace lockstep::cpu::conv_detail
