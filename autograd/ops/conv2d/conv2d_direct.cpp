// Direct convolution in the plain layout, for stride 1: no columns, no other layouts, and the small images of small
// nets stay in the cache from one output channel to the next. Each task convolves whole images.

#include "lockstep/autograd/ops/conv2d/conv2d_direct.h"

#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops/conv2d/conv2d_blocks.h"
#include "lockstep/autograd/ops/conv2d/conv2d_direct_sums.h"
#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace conv2d_direct {
namespace {

constexpr std::int64_t kStepsOfCopy = 3;  // multiply-adds in whose time a vector is copied, by measurement
constexpr std::int64_t kBlock = 4;        // output channels of a correlation's tile, at most

std::int64_t divide_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

}  // namespace

PaddedImage padded_image(std::int64_t channels, std::int64_t h, std::int64_t w, std::int64_t top, std::int64_t left) {
  PaddedImage image{channels, h + 2 * top, w + 2 * left, 0};
  image.plane = image.rows * image.pitch + kLanes;
  return image;
}

void copy_into_padded(const PaddedImage& to, const float* image, std::int64_t h, std::int64_t w, std::int64_t top,
                      std::int64_t left, float* padded) {
  for (std::int64_t c = 0; c < to.channels; ++c)
    for (std::int64_t y = 0; y < h; ++y)
      std::copy_n(image + (c * h + y) * w, w, padded + c * to.plane + (y + top) * to.pitch + left);
}

std::vector<int> channel_blocks(std::int64_t channels, std::int64_t most) {
  const std::int64_t count = divide_up(channels, most);
  std::vector<int> blocks;
  for (std::int64_t i = 0; i < count; ++i)
    blocks.push_back(static_cast<int>(channels * (i + 1) / count - channels * i / count));
  return blocks;
}

Correlation::Correlation(const PaddedImage& image, std::int64_t out, std::int64_t kh, std::int64_t kw, std::int64_t oh,
                         std::int64_t ow)
    : image_(image),
      out_(out),
      kh_(kh),
      kw_(kw),
      oh_(oh),
      ow_(ow),
      tiles_(&kTiles),
      blocks_(channel_blocks(out, kBlock)) {
  const std::int64_t flat_vectors = divide_up(oh * image.pitch - (image.pitch - ow), kLanes);
  const std::int64_t row_vectors = oh * divide_up(ow, kLanes);
  // Flat vectors are fewer, but what they compute is copied after.
  const std::int64_t saved = (row_vectors - flat_vectors) * kh * kw * image.channels;
  flat_ = ow < kLanes || saved > kStepsOfCopy * divide_up(oh * ow, kLanes);
  flat_plane_ = flat_vectors * kLanes;
  std::int64_t rows = 1;  // of a vector
#if defined(__x86_64__)
  if (cpu::has_wide_functions()) {
    const std::int64_t wide = kTilesOfSixteen.lanes, wide_vectors = oh * divide_up(ow, wide);
    // Most loads of a long vector touch two lines of the cache, so a few vectors less do not pay (24 columns: 0.75).
    const bool serves = ow >= wide && 5 * wide_vectors <= 3 * std::min(flat_vectors, row_vectors);
    // The same for rows of 8 to 15 columns, two at a time.
    const std::int64_t pairs = divide_up(oh, 2) * divide_up(ow, kLanes);
    const bool by_two = !serves && oh > 1 && ow >= kLanes && 5 * pairs <= 3 * std::min(flat_vectors, row_vectors);
    tiles_ = serves ? &kTilesOfSixteen : by_two ? &kTilesOfTwoRows : &kTilesAvx512;
    if (serves || by_two) flat_ = false;
    if (by_two) rows = 2;
  }
#endif
  const std::int64_t lanes = tiles_->lanes;
  constexpr std::int64_t kFirstLevel = 5 * 1024;  // floats of image rows to a group: 20 KiB of a cache of 32
  const std::int64_t positions = kFirstLevel / image.channels - (kh - 1) * image.pitch;
  group_ = std::max<std::int64_t>(positions / (3 * lanes), 1) * 3;
  if (flat_) {
    for (std::int64_t v = 0; v < flat_vectors; ++v) in_offsets_.push_back(static_cast<std::int32_t>(v * kLanes));
    out_offsets_ = in_offsets_;
    return;
  }
  const std::int64_t columns = lanes / rows;
  for (std::int64_t y = 0; y < oh; y += rows)
    for (std::int64_t x = 0; x < ow; x += columns) {
      // The last vector of a row, and the last rows, may repeat positions.
      const std::int64_t start = std::min(x, ow - columns), row = std::min(y, oh - rows);
      in_offsets_.push_back(static_cast<std::int32_t>(row * image.pitch + start));
      out_offsets_.push_back(static_cast<std::int32_t>(row * ow + start));
    }
}

}  // namespace conv2d_direct

namespace {

using conv2d_direct::Correlation;
using conv2d_direct::kLanes;
using conv2d_direct::PaddedImage;

// Convolves each image of [n, image.channels, h, w] with zeros around it. With a sink, `result` is not used.
void correlate(const Correlation& correlation, const PaddedImage& image, std::int64_t n, std::int64_t block,
               const float* x, std::int64_t h, std::int64_t w, std::int64_t top, std::int64_t left,
               const std::vector<float>& weights, const float* bias, bool relu, float* result,
               std::int64_t result_stride, const Conv2dSink* sink = nullptr) {
  const bool copy = top > 0 || left > 0 || !correlation.stays_inside();
  const PaddedImage layout = copy ? image : PaddedImage{image.channels, h, w, h * w};
  parallel_for(n, block, [&](std::int64_t begin, std::int64_t end) {
    const Tensor padded = zeros({copy ? layout.size() : 0}), space = empty({correlation.space()});
    const Tensor values = empty({sink ? result_stride : 0});
    for (std::int64_t i = begin; i < end; ++i) {
      const float* in = x + i * image.channels * h * w;
      if (copy) {
        conv2d_direct::copy_into_padded(layout, in, h, w, top, left, padded.data<float>());
        in = padded.data<float>();
      }
      float* out = sink ? values.data<float>() : result + i * result_stride;
      correlation.run(in, weights.data(), bias, relu, out, space.data<float>());
      if (sink) (*sink)(i, 1, out);
    }
  });
}

PaddedImage layout_for(std::int64_t channels, std::int64_t h, std::int64_t w, std::int64_t top, std::int64_t left,
                       std::int64_t oh, std::int64_t ow, std::int64_t kh, std::int64_t kw) {
  const PaddedImage image = conv2d_direct::padded_image(channels, h, w, top, left);
  if (top == 0 && left == 0 && Correlation(image, 1, kh, kw, oh, ow).stays_inside()) return {channels, h, w, h * w};
  return image;
}

}  // namespace

bool conv2d_direct_supports(const Conv2dGeometry& g) {
  constexpr std::int64_t kMaxPlane = 1 << 24;
  return g.groups == 1 && g.stride == Size2d(1) && g.dilation == Size2d(1) && g.padding.h < g.kh &&
         g.padding.w < g.kw && (g.h + 2 * g.kh) * (g.w + 2 * g.kw) <= kMaxPlane;
}

bool conv2d_direct_scatters(const Conv2dGeometry& g) {
  return g.ow % kLanes == 0 && g.out >= 8 && 8 * g.h * g.w > 9 * g.oh * g.ow;
}

namespace {

void forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias, float* out, bool relu,
             const Conv2dSink* sink) {
  const PaddedImage image = layout_for(g.in, g.h, g.w, g.padding.h, g.padding.w, g.oh, g.ow, g.kh, g.kw);
  const Correlation correlation(image, g.out, g.kh, g.kw, g.oh, g.ow);
  const float* w = weight.data<float>();
  const std::vector<float> packed =
      correlation.pack([&](std::int64_t o, std::int64_t c, std::int64_t ky, std::int64_t kx) {
        return w[((o * g.in + c) * g.kh + ky) * g.kw + kx];
      });
  correlate(correlation, image, g.n, conv2d_blocks::images_per_block(g), x.data<float>(), g.h, g.w, g.padding.h,
            g.padding.w, packed, bias.defined() ? bias.data<float>() : nullptr, relu, out, g.out * g.oh * g.ow, sink);
}

}  // namespace

void conv2d_forward_direct(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& out, bool relu) {
  forward(g, x, weight, bias, out.data<float>(), relu, nullptr);
}

void conv2d_forward_direct_to_sink(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                   const Conv2dSink& sink) {
  forward(g, x, weight, bias, nullptr, false, &sink);
}

namespace {

// The gradient of x is a correlation of the result's gradient, with zeros around it, and the kernel turned by half a
// turn.
void backward_data_by_correlation(const Conv2dGeometry& g, const float* grad, const float* w, float* x_grad) {
  const std::int64_t top = g.kh - 1 - g.padding.h, left = g.kw - 1 - g.padding.w;
  const PaddedImage image = layout_for(g.out, g.oh, g.ow, top, left, g.h, g.w, g.kh, g.kw);
  const Correlation correlation(image, g.in, g.kh, g.kw, g.h, g.w);
  const std::vector<float> packed =
      correlation.pack([&](std::int64_t c, std::int64_t o, std::int64_t ky, std::int64_t kx) {
        return w[((o * g.in + c) * g.kh + g.kh - 1 - ky) * g.kw + g.kw - 1 - kx];
      });
  correlate(correlation, image, g.n, conv2d_blocks::images_per_block(g), grad, g.oh, g.ow, top, left, packed, nullptr,
            false, x_grad, g.in * g.h * g.w);
}

// For each tap, the sum over output channels of weight * gradient at every position, added to x's gradient there. No
// product with a zero around the gradient is computed, which would be most of them for a small image and a wide kernel.
void backward_data_by_scatter(const Conv2dGeometry& g, const float* grad, const float* w, float* x_grad) {
  const std::int64_t taps = g.kh * g.kw;
  const conv2d_direct::Scatter scatter{g.out,
                                       conv2d_direct::channel_blocks(g.in, conv2d_direct::sums_in_use().channels),
                                       g.oh,
                                       g.ow,
                                       g.h + 2 * g.padding.h,
                                       g.w + 2 * g.padding.w,
                                       g.kh,
                                       g.kw};
  std::vector<float> packed(static_cast<std::size_t>(g.out * g.in * taps));  // [taps][block][out][channels of a block]
  for (std::int64_t first = 0; const int channels : scatter.blocks) {
    for (std::int64_t o = 0; o < g.out; ++o)
      for (std::int64_t c = 0; c < channels; ++c)
        for (std::int64_t tap = 0; tap < taps; ++tap)
          packed[static_cast<std::size_t>((tap * g.in + first) * g.out + o * channels + c)] =
              w[(o * g.in + first + c) * taps + tap];
    first += channels;
  }
  const bool padded = g.padding.h > 0 || g.padding.w > 0;
  const std::int64_t image = g.in * g.h * g.w, padded_image = g.in * scatter.rows * scatter.pitch;
  parallel_for(g.n, conv2d_blocks::images_per_block(g), [&](std::int64_t begin, std::int64_t end) {
    const Tensor space = empty({padded ? padded_image : 0});
    for (std::int64_t i = begin; i < end; ++i) {
      float* result = padded ? space.data<float>() : x_grad + i * image;
      std::fill_n(result, padded_image, 0.0f);
      scatter.add(grad + i * g.out * g.oh * g.ow, packed.data(), result);
      if (!padded) continue;
      for (std::int64_t row = 0; row < g.in * g.h; ++row) {
        const std::int64_t from = (row / g.h * scatter.rows + row % g.h + g.padding.h) * scatter.pitch + g.padding.w;
        std::copy_n(result + from, g.w, x_grad + i * image + row * g.w);
      }
    }
  });
}

}  // namespace

void conv2d_backward_data_direct(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight,
                                 const Tensor& x_grad) {
  const auto run = conv2d_direct_scatters(g) ? backward_data_by_scatter : backward_data_by_correlation;
  run(g, grad.data<float>(), weight.data<float>(), x_grad.data<float>());
}

void conv2d_backward_weight_direct(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x,
                                   const Tensor& weight_grad, const Tensor& bias_grad) {
  constexpr std::int64_t kCache = 96 * 1024;  // floats of images at a time
  constexpr std::int64_t kChannels = 16;      // output channels to a task
  const bool rows_fit = g.ow % kLanes == 0;   // else gradients are copied with the images' pitch and zeros between
  const bool copy_images = !rows_fit || g.padding.h > 0 || g.padding.w > 0;
  const PaddedImage image = copy_images ? conv2d_direct::padded_image(g.in, g.h, g.w, g.padding.h, g.padding.w)
                                        : PaddedImage{g.in, g.h, g.w, g.h * g.w};
  conv2d_direct::WeightGradient gradient{};
  gradient.image = image;
  gradient.image_stride = image.size();
  gradient.kh = g.kh, gradient.kw = g.kw;
  if (rows_fit) {
    gradient.rows = g.oh, gradient.row_vecs = g.ow / kLanes;
    gradient.grad_pitch = g.ow, gradient.grad_plane = g.oh * g.ow;
  } else {
    gradient.rows = 1, gradient.row_vecs = (g.oh * image.pitch - (image.pitch - g.ow) + kLanes - 1) / kLanes;
    gradient.grad_pitch = image.pitch, gradient.grad_plane = g.oh * image.pitch + kLanes;
  }
  gradient.grad_stride = g.out * gradient.grad_plane;

  const std::int64_t per_group = conv2d_blocks::images_per_group(g), groups = conv2d_blocks::group_count(g);
  const std::int64_t chunks = (g.out + kChannels - 1) / kChannels, size = weight_grad.numel();
  const std::int64_t at_once = std::clamp<std::int64_t>(kCache / image.size(), 1, per_group);
  const Tensor partial = zeros({groups, size + g.out});
  parallel_for(groups * chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    const Tensor images = zeros({copy_images ? at_once * image.size() : 0});
    const Tensor grads = zeros({rows_fit ? 0 : at_once * gradient.grad_stride});
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t group = task / chunks, first = task % chunks * kChannels;
      const std::int64_t last = std::min(g.out, first + kChannels);
      float* sums = partial.data<float>() + group * (size + g.out);
      const std::int64_t stop = std::min(g.n, (group + 1) * per_group);
      for (std::int64_t i = group * per_group; i < stop; i += at_once) {
        const std::int64_t count = std::min(at_once, stop - i);
        const float* in = x.data<float>() + i * g.in * g.h * g.w;
        const float* d = grad.data<float>() + i * g.out * g.oh * g.ow;
        if (bias_grad.defined())
          for (std::int64_t j = 0; j < count; ++j)
            conv2d_blocks::add_plane_sums(d + (j * g.out + first) * g.oh * g.ow, last - first, g.oh * g.ow,
                                          sums + size + first);
        if (copy_images) {
          for (std::int64_t j = 0; j < count; ++j)
            conv2d_direct::copy_into_padded(image, in + j * g.in * g.h * g.w, g.h, g.w, g.padding.h, g.padding.w,
                                            images.data<float>() + j * image.size());
          in = images.data<float>();
        }
        if (!rows_fit) {
          const PaddedImage layout{last - first, g.oh, image.pitch, gradient.grad_plane};
          for (std::int64_t j = 0; j < count; ++j)
            conv2d_direct::copy_into_padded(
                layout, d + (j * g.out + first) * g.oh * g.ow, g.oh, g.ow, 0, 0,
                grads.data<float>() + j * gradient.grad_stride + first * gradient.grad_plane);
          d = grads.data<float>();
        }
        gradient.add(d, in, count, first, last, sums);
      }
    }
  });
  conv2d_blocks::add_groups(partial.data<float>(), groups, size + g.out, size, weight_grad.data<float>(),
                            bias_grad.defined() ? bias_grad.data<float>() : nullptr);
  // Vectors run over the ends of rows, where the gradient is zero but the image need not be finite: 0 * inf would reach
  // taps that never see the pixel.
  const float* sums = weight_grad.data<float>();
  if (!rows_fit && !std::all_of(sums, sums + size, [](float value) { return std::isfinite(value); }))
    conv2d_backward_weight_im2col(g, grad, x, weight_grad, bias_grad);
}

}  // namespace lockstep
