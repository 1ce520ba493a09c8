// Forward pass and gradient of the image.

#include "lockstep/core/cpu/conv/winograd.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

#include "lockstep/core/cpu/conv/winograd_tiles.h"
#include "lockstep/core/cpu/gemm/micro_kernels.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::conv_detail {
namespace {

using gemm_detail::MicroKernels;
using gemm_detail::Tile;

constexpr std::int64_t kBlockFloats = 1 << 17;               // of transformed elements: half of a second-level cache
constexpr std::int64_t kFewestTiles = 32, kMostTiles = 128;  // of a block
constexpr std::int64_t kTasksPerThread = 3;
constexpr std::int64_t kRoom = 8;  // behind what vectors write

std::int64_t divide_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

// result[row] = sum over channels of image[channel] correlated with weight(row, channel).
struct Correlated {
  std::int64_t n, channels, h, w, padding_h, padding_w;
  std::int64_t rows, oh, ow;
  const float *images, *weight;
  std::int64_t image_stride, out_stride;    // floats from one image, or one image's results, to the next
  std::int64_t weight_row, weight_channel;  // floats from one to the next
  bool turned;
  const float* bias;
  bool relu;
  float* out;
  std::function<void(std::int64_t image, float* out)> again;  // computes one image in another way
};

class Runner {
 public:
  Runner(const Correlated& c, InstructionSet set)
      : c_(c),
        kernels_(gemm_detail::micro_kernels<float>(set)),
        tile_rows_(divide_up(c.oh, kTileSide)),
        tile_columns_(divide_up(c.ow, kTileSide)),
        width_(2 * kernels_.lanes),
        row_panels_(divide_up(c.rows, kernels_.rows[2])),
        panel_rows_(divide_up(c.rows, row_panels_)),
        panel_(kPoints * point()),
        strange_(static_cast<std::size_t>(c.n)) {
    const std::int64_t tiles =
        std::clamp<std::int64_t>(kBlockFloats / (kPoints * c.channels), kFewestTiles, kMostTiles);
    block_rows_ = std::max<std::int64_t>(1, tiles / tile_columns_);
    if (block_rows_ > tile_rows_) block_rows_ = block_rows_ / tile_rows_ * tile_rows_;
    block_rows_ = std::min(block_rows_, c.n * tile_rows_);
    stride_ = divide_up(block_rows_ * tile_columns_ + kRoom, kernels_.lanes) * kernels_.lanes;
    elements_point_ = point_stride_for(c.channels * stride_);
    sums_point_ = point_stride_for(panel_rows_ * stride_);
  }

  // Tasks are some rows of tiles; with a sink, whole images.
  void run(const ConvSink* sink) {
    const std::int64_t all = c_.n * tile_rows_, blocks = divide_up(all, block_rows_);
    if (!sink && blocks == 1) return run_by_panels(all);
    weights_ = empty({row_panels_ * panel_});
    parallel_for(row_panels_, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) transform_panel(i, weights_.data<float>() + i * panel_);
    });
    if (!sink) {
      // As many for each thread, and as long as blocks can be divided.
      const std::int64_t tasks = std::min(blocks, kTasksPerThread * num_threads());
      parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
        Work work(*this, 0);
        for (std::int64_t b = begin * blocks / tasks; b < end * blocks / tasks; ++b)
          block(work, b * block_rows_, std::min(all, (b + 1) * block_rows_), c_.out);
      });
      return compute_again(0, c_.n, c_.out);
    }
    const std::int64_t images = std::max<std::int64_t>(1, block_rows_ / tile_rows_), size = c_.out_stride;
    parallel_for(c_.n, images, [&](std::int64_t begin, std::int64_t end) {
      Work work(*this, images * size);
      for (std::int64_t image = begin; image < end; image += images) {
        const std::int64_t count = std::min(images, end - image), last = (image + count) * tile_rows_;
        for (std::int64_t first = image * tile_rows_; first < last; first += block_rows_)
          block(work, first, std::min(last, first + block_rows_), work.values - image * size);
        compute_again(image, image + count, work.values);
        (*sink)(image, count, work.values);
      }
    });
  }

 private:
  struct Work {
    Work(const Runner& r, std::int64_t size_values)
        : tiles(r.c_.images, r.c_.image_stride, r.c_.h, r.c_.w, r.c_.padding_h, r.c_.padding_w, r.tile_rows_,
                r.tile_columns_, r.block_rows_) {
      const std::int64_t size_elements = kPoints * r.elements_point_;
      const std::int64_t size_sums = kPoints * r.sums_point_;
      space = empty({size_elements + size_sums + tiles.space() + size_values + kRoom});
      elements = space.data<float>();
      sums = elements + size_elements;
      parts = sums + size_sums;
      values = parts + tiles.space();
      std::fill_n(parts, tiles.space(), 0.0f);
    }
    TileRows tiles;
    Tensor space;
    float *elements, *sums, *parts, *values;
  };

  // One block. The weights of a panel serve it once, while they are near: those of many channels, whose transforms
  // would be written to memory and read from there, are more than all there is to compute of a small image.
  void run_by_panels(std::int64_t tile_rows) const {
    const Work work(*this, 0);
    const std::int64_t tasks = std::min<std::int64_t>(c_.channels, kTasksPerThread * num_threads());
    parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      const Tensor space = zeros({work.tiles.space()});
      for (std::int64_t c = begin * c_.channels / tasks; c < end * c_.channels / tasks; ++c)
        work.tiles.elements(0, tile_rows, c, space.data<float>(), work.elements + c * stride_, elements_point_);
    });
    parallel_for(row_panels_, 1, [&](std::int64_t begin, std::int64_t end) {
      const Tensor space = empty({panel_ + kPoints * sums_point_ + kRoom});
      float* const weights = space.data<float>();
      for (std::int64_t i = begin; i < end; ++i) {
        transform_panel(i, weights);
        panel(i, 0, tile_rows, work.elements, weights, weights + panel_, c_.out);
      }
    });
    compute_again(0, c_.n, c_.out);
  }

  void transform_panel(std::int64_t i, float* weights) const {
    transform_weights(c_.weight + i * panel_rows_ * c_.weight_row, c_.weight_row, c_.weight_channel, c_.turned, rows(i),
                      c_.channels, weights, point());
  }

  std::int64_t point() const { return c_.channels * panel_rows_ + kRoom; }
  std::int64_t rows(std::int64_t panel) const { return std::min(panel_rows_, c_.rows - panel * panel_rows_); }

  void block(Work& work, std::int64_t begin, std::int64_t end, float* out) const {
    for (std::int64_t c = 0; c < c_.channels; ++c)
      work.tiles.elements(begin, end, c, work.parts, work.elements + c * stride_, elements_point_);
    for (std::int64_t i = 0; i < row_panels_; ++i)
      panel(i, begin, end, work.elements, weights_.data<float>() + i * panel_, work.sums, out);
  }

  void panel(std::int64_t i, std::int64_t begin, std::int64_t end, const float* elements, const float* weights,
             float* sums, float* out) const {
    multiply(i, (end - begin) * tile_columns_, elements, weights, sums);
    for (std::int64_t r = 0; r < rows(i); ++r) {
      const std::int64_t row = i * panel_rows_ + r;
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t image = t / tile_rows_, y = t % tile_rows_ * kTileSide;
        if (!results_of_tiles(sums + r * stride_ + (t - begin) * tile_columns_, sums_point_,
                              c_.bias ? c_.bias[row] : 0.0f, c_.relu, std::min(kTileSide, c_.oh - y), c_.ow, c_.ow,
                              out + image * c_.out_stride + (row * c_.oh + y) * c_.ow))
          strange_[static_cast<std::size_t>(image)].store(true, std::memory_order_relaxed);
      }
    }
  }

  // Of the images [first, last), whose results are at `out`, those with one that is not finite.
  void compute_again(std::int64_t first, std::int64_t last, float* out) const {
    for (std::int64_t image = first; image < last; ++image)
      if (strange_[static_cast<std::size_t>(image)].load(std::memory_order_relaxed))
        c_.again(image, out + (image - first) * c_.out_stride);
  }

  void multiply(std::int64_t i, std::int64_t tiles, const float* elements, const float* weights, float* sums) const {
    const std::int64_t inner = gemm_detail::inner_block(c_.channels);
    Tile<float> tile{};
    tile.a_row = 1;
    tile.a_step = rows(i);
    tile.b_step = stride_;
    tile.out_stride = stride_;
    tile.alpha = 1;
    for (std::int64_t p = 0; p < kPoints; ++p)
      for (std::int64_t j = 0; j < tiles; j += width_) {
        tile.columns = std::min(width_, tiles - j);
        tile.out = sums + p * sums_point_ + j;
        const auto kernel = kernels_.table[0][divide_up(tile.columns, kernels_.lanes)][tile.a_step];
        for (std::int64_t k = 0; k < c_.channels; k += inner) {
          tile.k = std::min(inner, c_.channels - k);
          tile.beta = k == 0 ? 0.0f : 1.0f;
          tile.a = weights + p * point() + k * tile.a_step;
          tile.b = elements + p * elements_point_ + k * stride_ + j;
          kernel(tile);
        }
      }
  }

  const Correlated& c_;
  const MicroKernels<float>& kernels_;
  const std::int64_t tile_rows_, tile_columns_, width_, row_panels_, panel_rows_, panel_;
  std::int64_t block_rows_;                         // of tiles
  std::int64_t stride_;                             // floats from a channel's tiles to the next one's
  std::int64_t elements_point_, sums_point_;        // floats from one point to the next
  Tensor weights_;                                  // [panel][point][channel][row of the panel]
  mutable std::vector<std::atomic<bool>> strange_;  // by image: a result is not finite
};

}  // namespace

bool winograd_serves(const Conv& c) {
  constexpr std::int64_t kFewest = 16;
  const auto worth = [](std::int64_t h, std::int64_t w) {  // tiles that hang over the edges are work as well
    const std::int64_t tiles = divide_up(h, kTileSide) * divide_up(w, kTileSide);
    return 10 * kPoints * tiles <= 6 * kTaps * h * w;
  };
  return c.kh == 3 && c.kw == 3 && c.stride_h == 1 && c.stride_w == 1 && c.dilation_h == 1 && c.dilation_w == 1 &&
         c.padding_h <= 2 && c.padding_w <= 2 && c.group_in() >= kFewest && c.group_out() >= kFewest &&
         worth(c.h, c.w) && worth(c.oh, c.ow);
}

namespace {

// One image of one group of channels.
Conv one_of(const Conv& c) {
  Conv one = c;
  one.n = one.groups = 1;
  one.in = c.group_in();
  one.out = c.group_out();
  return one;
}

}  // namespace

void winograd_forward(const Conv& c, const float* x, const float* weight, const float* bias, bool relu, float* out,
                      const ConvSink* sink, InstructionSet set) {
  const Conv one = one_of(c);
  for (std::int64_t group = 0; group < c.groups; ++group) {
    const float* const images = x + group * one.in * c.h * c.w;
    const float* const weights = weight + group * one.out * one.in * kTaps;
    const float* const terms = bias ? bias + group * one.out : nullptr;
    const Correlated correlated{.n = c.n,
                                .channels = one.in,
                                .h = c.h,
                                .w = c.w,
                                .padding_h = c.padding_h,
                                .padding_w = c.padding_w,
                                .rows = one.out,
                                .oh = c.oh,
                                .ow = c.ow,
                                .images = images,
                                .weight = weights,
                                .image_stride = c.in * c.h * c.w,
                                .out_stride = c.out * c.oh * c.ow,
                                .weight_row = one.in * kTaps,
                                .weight_channel = kTaps,
                                .turned = false,
                                .bias = terms,
                                .relu = relu,
                                .out = out ? out + group * one.out * c.oh * c.ow : nullptr,
                                .again = [&](std::int64_t image, float* result) {
                                  product_forward(one, images + image * c.in * c.h * c.w, weights, terms, relu, result,
                                                  nullptr, set);
                                }};
    Runner(correlated, set).run(sink);
  }
}

void winograd_backward_data(const Conv& c, const float* grad, const float* weight, float* x_grad, InstructionSet set) {
  const Conv one = one_of(c);
  for (std::int64_t group = 0; group < c.groups; ++group) {
    const float* const images = grad + group * one.out * c.oh * c.ow;
    const float* const weights = weight + group * one.out * one.in * kTaps;
    const Correlated correlated{.n = c.n,
                                .channels = one.out,
                                .h = c.oh,
                                .w = c.ow,
                                .padding_h = 2 - c.padding_h,
                                .padding_w = 2 - c.padding_w,
                                .rows = one.in,
                                .oh = c.h,
                                .ow = c.w,
                                .images = images,
                                .weight = weights,
                                .image_stride = c.out * c.oh * c.ow,
                                .out_stride = c.in * c.h * c.w,
                                .weight_row = kTaps,
                                .weight_channel = one.in * kTaps,
                                .turned = true,
                                .bias = nullptr,
                                .relu = false,
                                .out = x_grad + group * one.in * c.h * c.w,
                                .again = [&](std::int64_t image, float* result) {
                                  product_backward_data(one, images + image * c.out * c.oh * c.ow, weights, result,
                                                        set);
                                }};
    Runner(correlated, set).run(nullptr);
  }
}

}  // namespace lockstep::cpu::conv_detail
