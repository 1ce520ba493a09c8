#include "lockstep/data/transforms.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"

namespace lockstep::data {

philox::Key AugmentContext::next_key() {
  return random_key(seed_, RandomStream::augment, epoch_, 0, calls_++);
}

namespace transforms {

namespace {

struct ImageShape {
  std::int64_t count, channels, height, width;
};

ImageShape image_shape(const Tensor& x, const char* transform) {
  LOCKSTEP_CHECK(x.defined() && x.dtype() == kFloat32 && x.dim() == 4 && x.device().is_cpu(),
                 "[{}] expected float32 [N, C, H, W] on the CPU, found {}", transform,
                 x.defined() ? fmt::format("{} {} on {}", name(x.dtype()), to_string(x.sizes()), to_string(x.device()))
                             : std::string("an undefined tensor"));
  return {x.size(0), x.size(1), x.size(2), x.size(3)};
}

void check_batch(const ImageShape& shape, const AugmentContext& context, const char* transform) {
  LOCKSTEP_CHECK(shape.count == static_cast<std::int64_t>(context.indices().size()),
                 "[{}] the batch has {} images, but {} sample indices were given; expected the same number", transform,
                 shape.count, context.indices().size());
}

// Where a window starts, in pixels of the source; it may reach outside.
struct Corner {
  std::int64_t top, left;
};

// Integers in [0, bound).
std::int64_t below(std::uint32_t word, std::int64_t bound) {
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(word) * static_cast<std::uint64_t>(bound)) >> 32);
}

void copy_plane(const float* from, const ImageShape& shape, Corner corner, std::int64_t height, std::int64_t width,
                float fill, float* to) {
  // Columns of the window that lie inside the source.
  const std::int64_t first = std::clamp<std::int64_t>(-corner.left, 0, width);
  const std::int64_t last = std::clamp<std::int64_t>(shape.width - corner.left, first, width);
  for (std::int64_t row = 0; row < height; ++row, to += width) {
    const std::int64_t source_row = row + corner.top;
    if (source_row < 0 || source_row >= shape.height) {
      std::fill_n(to, width, fill);
      continue;
    }
    const float* source = from + source_row * shape.width + corner.left;
    std::fill(to, to + first, fill);
    std::copy(source + first, source + last, to + first);
    std::fill(to + last, to + width, fill);
  }
}

// Cuts a window of height x width out of each image at corner_of(i).
template <typename CornerOf>
Tensor cut_windows(const Tensor& x, const ImageShape& shape, std::int64_t height, std::int64_t width, float fill,
                   CornerOf&& corner_of) {
  Tensor source = as_contiguous(x);
  Tensor result = empty({shape.count, shape.channels, height, width});
  const LibraryAccess access;
  const float* from = source.data<float>();
  float* to = result.data<float>();
  for (std::int64_t i = 0; i < shape.count; ++i) {
    const Corner corner = corner_of(i);
    for (std::int64_t c = 0; c < shape.channels; ++c) {
      copy_plane(from, shape, corner, height, width, fill, to);
      from += shape.height * shape.width;
      to += height * width;
    }
  }
  return result;
}

philox::Block draw(philox::Key key, const AugmentContext& context, std::int64_t i) {
  return philox::generate(key, static_cast<std::uint64_t>(context.indices()[static_cast<std::size_t>(i)]));
}

}  // namespace

Transform normalize(std::vector<float> mean, std::vector<float> std) {
  LOCKSTEP_CHECK(!mean.empty() && mean.size() == std.size(),
                 "[normalize] mean has {} values and std has {}; expected one of each a channel", mean.size(),
                 std.size());
  for (const float value : std) LOCKSTEP_CHECK(value > 0.0f, "[normalize] std must be above 0, found {}", value);
  return [mean = std::move(mean), std = std::move(std)](const Tensor& x, AugmentContext&) {
    const ImageShape shape = image_shape(x, "normalize");
    const auto channels = static_cast<std::int64_t>(mean.size());
    LOCKSTEP_CHECK(channels == 1 || channels == shape.channels,
                   "[normalize] mean and std have {} values, the images have {} channels", channels, shape.channels);
    Tensor source = as_contiguous(x);
    Tensor result = empty(source.sizes());
    const LibraryAccess access;
    const float* from = source.data<float>();
    float* to = result.data<float>();
    const std::int64_t pixels = shape.height * shape.width;
    for (std::int64_t plane = 0; plane < shape.count * shape.channels; ++plane, from += pixels, to += pixels) {
      const auto c = static_cast<std::size_t>(channels == 1 ? 0 : plane % shape.channels);
      for (std::int64_t i = 0; i < pixels; ++i) to[i] = (from[i] - mean[c]) / std[c];
    }
    return result;
  };
}

Transform pad(std::int64_t padding, float fill) {
  LOCKSTEP_CHECK(padding >= 0, "[pad] padding must not be negative, found {}", padding);
  return [=](const Tensor& x, AugmentContext&) {
    const ImageShape shape = image_shape(x, "pad");
    return cut_windows(x, shape, shape.height + 2 * padding, shape.width + 2 * padding, fill, [&](std::int64_t) {
      return Corner{-padding, -padding};
    });
  };
}

Transform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding, float fill) {
  LOCKSTEP_CHECK(height > 0 && width > 0, "[random_crop] the window must have pixels, found {} x {}", height, width);
  LOCKSTEP_CHECK(padding >= 0, "[random_crop] padding must not be negative, found {}", padding);
  return [=](const Tensor& x, AugmentContext& context) {
    const ImageShape shape = image_shape(x, "random_crop");
    check_batch(shape, context, "random_crop");
    const std::int64_t rows = shape.height + 2 * padding - height + 1;
    const std::int64_t columns = shape.width + 2 * padding - width + 1;
    LOCKSTEP_CHECK(rows > 0 && columns > 0,
                   "[random_crop] a window of {} x {} does not fit images of {} x {} padded by {}", height, width,
                   shape.height, shape.width, padding);
    const philox::Key key = context.next_key();
    return cut_windows(x, shape, height, width, fill, [&](std::int64_t i) {
      const philox::Block block = draw(key, context, i);
      return Corner{below(block.word[0], rows) - padding, below(block.word[1], columns) - padding};
    });
  };
}

Transform random_shift(std::int64_t max_shift, float fill) {
  LOCKSTEP_CHECK(max_shift >= 0, "[random_shift] max_shift must not be negative, found {}", max_shift);
  return [=](const Tensor& x, AugmentContext& context) {
    const ImageShape shape = image_shape(x, "random_shift");
    check_batch(shape, context, "random_shift");
    const philox::Key key = context.next_key();
    return cut_windows(x, shape, shape.height, shape.width, fill, [&](std::int64_t i) {
      const philox::Block block = draw(key, context, i);
      return Corner{below(block.word[0], 2 * max_shift + 1) - max_shift,
                    below(block.word[1], 2 * max_shift + 1) - max_shift};
    });
  };
}

Transform random_horizontal_flip(double p) {
  LOCKSTEP_CHECK(p >= 0.0 && p <= 1.0, "[random_horizontal_flip] p must be between 0 and 1, found {}", p);
  return [=](const Tensor& x, AugmentContext& context) {
    const ImageShape shape = image_shape(x, "random_horizontal_flip");
    check_batch(shape, context, "random_horizontal_flip");
    const philox::Key key = context.next_key();
    Tensor result = copy_contiguous(x);
    const LibraryAccess access;
    float* row = result.data<float>();
    for (std::int64_t i = 0; i < shape.count; ++i) {
      const bool flip = philox::to_uniform(draw(key, context, i).word[0]) < p;
      for (std::int64_t r = 0; r < shape.channels * shape.height; ++r, row += shape.width)
        if (flip) std::reverse(row, row + shape.width);
    }
    return result;
  };
}

Transform compose(std::vector<Transform> chain) {
  for (const Transform& transform : chain) LOCKSTEP_CHECK(transform != nullptr, "[compose] a transform is empty");
  return [chain = std::move(chain)](const Tensor& x, AugmentContext& context) {
    Tensor result = x;
    for (const Transform& transform : chain) result = transform(result, context);
    return result;
  };
}

}  // namespace transforms
}  // namespace lockstep::data
