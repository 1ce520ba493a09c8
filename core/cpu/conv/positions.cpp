#include "lockstep/core/cpu/conv/positions.h"

#include <algorithm>

#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::conv_detail {
namespace {

// Without a call.
[[gnu::always_inline]] inline void copy_short(const float* from, std::int64_t count, float* to) {
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) store8(to + j, load8(from + j));
  if (j == count) return;
  if (count >= kLanes) return store8(to + count - kLanes, load8(from + count - kLanes));
  for (; j < count; ++j) to[j] = from[j];
}

}  // namespace

Positions::Positions(const Correlation& correlation, std::int64_t images, bool by_rows, std::int64_t width, bool wide)
    : c_(correlation), images_(images), count_(images * correlation.oh * correlation.ow), by_rows_(by_rows) {
  const std::int64_t padded = (count_ + width - 1) / width * width;
  bases_.resize(static_cast<std::size_t>(padded), -1);
  outs_.resize(static_cast<std::size_t>(count_));
  reads_.resize(padded, wide);
  constexpr std::int64_t kVectors = 256;  // to a task
  parallel_for(padded / width, kVectors, [&](std::int64_t begin, std::int64_t end) {
    locate(begin * width, std::min(count_, end * width));
    reads_.set(begin * width, bases_.data() + begin * width, (end - begin) * width);
  });
}

void Positions::locate(std::int64_t first, std::int64_t end) {
  const std::int64_t image_size = c_.planes.copied ? c_.planes.size() : c_.image_stride;
  std::int32_t* const bases = bases_.data();
  std::int64_t* const outs = outs_.data();
  std::int64_t x = first % c_.ow, y = row_of(first);
  std::int64_t image = by_rows_ ? first / c_.ow % images_ : first / (c_.oh * c_.ow);
  for (std::int64_t j = first; j < end;) {  // what is left of a row
    const std::int64_t stop = std::min(end, j + c_.ow - x), from = image * image_size + y * c_.planes.pitch + x - j;
    const std::int64_t out = image * c_.out_image + y * c_.out_row + (x - j) * c_.out_column;
    for (; j < stop; ++j) {
      bases[j] = static_cast<std::int32_t>(from + j);
      outs[j] = out + j * c_.out_column;
    }
    x = 0;
    std::int64_t& inner = by_rows_ ? image : y;
    std::int64_t& outer = by_rows_ ? y : image;
    if (++inner == (by_rows_ ? images_ : c_.oh)) inner = 0, ++outer;
  }
}

bool Positions::in_place(std::int64_t first, std::int64_t count) const {
  const std::int64_t* const outs = outs_.data() + first;
  for (std::int64_t j = 1; j < count; ++j)
    if (outs[j] != outs[0] + j) return false;
  return true;
}

void Positions::scatter(std::int64_t first, std::int64_t count, const float* tile, std::int64_t width,
                        float* out) const {
  const std::int64_t* const outs = outs_.data() + first;
  for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {  // neighbours are copied together
    for (end = begin + 1; end < count && outs[end] == outs[begin] + end - begin;) ++end;
    const float* from = tile + begin;
    float* to = out + outs[begin];
    for (std::int64_t m = 0; m < c_.rows; ++m, from += width, to += c_.out_plane) copy_short(from, end - begin, to);
  }
}

}  // namespace lockstep::cpu::conv_detail
