#include "lockstep/core/cpu/conv/planes.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::cpu::conv_detail {

Planes::Planes(std::int64_t channels, std::int64_t h, std::int64_t w, std::int64_t top, std::int64_t left,
               std::int64_t step_h, std::int64_t step_w, std::int64_t oh, std::int64_t ow, std::int64_t reach_h,
               std::int64_t reach_w)
    : channels(channels),
      h(h),
      w(w),
      top(top),
      left(left),
      step_h(step_h),
      step_w(step_w),
      rows(oh + reach_h / step_h),
      pitch(ow + reach_w / step_w),
      parts_h(std::min(step_h, reach_h + 1)),
      parts_w(std::min(step_w, reach_w + 1)),
      copied(true) {
  if (top == 0 && left == 0 && step_h == 1 && step_w == 1 && rows <= h && pitch <= w) {
    rows = h;
    pitch = w;
    copied = false;
  }
}

namespace {

// Calls row(part row, image row, first, end, phase): elements [first, end) of a row of a part are the image row's
// elements q * step_w + phase - left.
template <typename Row>
void for_each_row(const Planes& p, std::int64_t begin, std::int64_t end_channel, Row&& row) {
  const auto divide_up = [](std::int64_t x, std::int64_t y) { return (x + y - 1) / y; };
  for (std::int64_t c = begin; c < end_channel; ++c)  // the parts of a channel while it is in the first-level cache
    for (std::int64_t y = 0; y < p.parts_h; ++y) {    // padded row r is row r / step_h of part r % step_h
      const std::int64_t first_row = p.top > y ? divide_up(p.top - y, p.step_h) : 0;
      const std::int64_t end_row = p.h + p.top > y ? std::min(p.rows, divide_up(p.h + p.top - y, p.step_h)) : 0;
      for (std::int64_t phase = 0; phase < p.parts_w; ++phase) {
        const std::int64_t first = p.left > phase ? divide_up(p.left - phase, p.step_w) : 0;
        const std::int64_t end =
            p.w + p.left > phase ? std::min(p.pitch, divide_up(p.w + p.left - phase, p.step_w)) : 0;
        if (first >= end) continue;
        const std::int64_t part = c * p.plane() + (y * p.step_w + phase) * p.part();
        for (std::int64_t q = first_row; q < end_row; ++q)
          row(part + q * p.pitch, (c * p.h + q * p.step_h + y - p.top) * p.w, first, end, phase - p.left);
      }
    }
}

// to[q] = from[2 * q] for q < count; nothing behind the last one is read.
void copy_every_second(const float* from, std::int64_t count, float* to) {
  const auto eight = [&](std::int64_t q) {
    store8(to + q, __builtin_shufflevector(load8(from + 2 * q), load8(from + 2 * q + 7), 0, 2, 4, 6, 9, 11, 13, 15));
  };
  std::int64_t q = 0;
  for (; q + kLanes <= count; q += kLanes) eight(q);
  if (q < count && count >= kLanes) return eight(count - kLanes);
  for (; q < count; ++q) to[q] = from[2 * q];
}

void copy_every_second(const BFloat16* from, std::int64_t count, BFloat16* to) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t q = 0; q < count; ++q) to[q] = from[2 * q];
}

}  // namespace

template <typename T>
void Planes::copy(const T* image, T* to, std::int64_t begin, std::int64_t end_channel) const {
  std::fill_n(to + begin * plane(), (end_channel - begin) * plane(), T{});
  for_each_row(*this, begin, end_channel,
               [&](std::int64_t at, std::int64_t row, std::int64_t first, std::int64_t end, std::int64_t shift) {
                 if (step_w == 1)
                   std::memcpy(to + at + first, image + row + first + shift,
                               static_cast<std::size_t>(end - first) * sizeof(T));
                 else if (step_w == 2)
                   copy_every_second(image + row + 2 * first + shift, end - first, to + at + first);
                 else
                   for (std::int64_t q = first; q < end; ++q) to[at + q] = image[row + q * step_w + shift];
               });
}

template void Planes::copy(const float*, float*, std::int64_t, std::int64_t) const;
template void Planes::copy(const BFloat16*, BFloat16*, std::int64_t, std::int64_t) const;

void Planes::copy_back(const float* from, float* image) const {
  std::fill_n(image, channels * h * w, 0.0f);
  for_each_row(*this, 0, channels,
               [&](std::int64_t at, std::int64_t row, std::int64_t first, std::int64_t end, std::int64_t shift) {
                 for (std::int64_t q = first; q < end; ++q) image[row + q * step_w + shift] = from[at + q];
               });
}

}  // namespace lockstep::cpu::conv_detail
