// Gradient of the weights.

#include <algorithm>
#include <atomic>

#include "lockstep/core/cpu/conv/winograd.h"
#include "lockstep/core/cpu/conv/winograd_tiles.h"
#include "lockstep/core/cpu/gemm/micro_kernels.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::conv_detail {
namespace {

using gemm_detail::MicroKernels;
using gemm_detail::Tile;

constexpr std::int64_t kChainTiles = 96;         // of a chain, about
constexpr std::int64_t kSharedFloats = 1 << 21;  // transformed at a time by several threads, about
constexpr std::int64_t kSumsFloats = 1 << 20;    // of sums of chains at a time, about
constexpr std::int64_t kSumBlock = 1 << 12;      // of them that a task adds up
constexpr std::int64_t kChannelsAtOnce = 4;
constexpr std::int64_t kRoom = 8;  // behind what vectors write

std::int64_t divide_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

// Rows of tiles of a chain; depends on the width of the result alone.
std::int64_t chain_rows(std::int64_t tile_columns) {
  return std::max<std::int64_t>(1, kChainTiles / tile_columns);
}

class Gradient {
 public:
  Gradient(const Conv& c, const float* grad, const float* x, InstructionSet set)
      : c_(c),
        kernels_(gemm_detail::micro_kernels<float>(set)),
        tile_rows_(divide_up(c.oh, kTileSide)),
        tile_columns_(divide_up(c.ow, kTileSide)),
        chain_(std::min(chain_rows(tile_columns_), c.n * tile_rows_)),
        stride_(divide_up(chain_ * tile_columns_ + kRoom, kernels_.lanes) * kernels_.lanes),
        width_(2 * kernels_.lanes),
        row_panels_(divide_up(c.in, kernels_.rows[2])),
        panel_rows_(divide_up(c.in, row_panels_)),
        padded_out_(divide_up(c.out, kernels_.lanes) * kernels_.lanes),
        point_(point_stride_for(c.in * stride_)),
        panel_point_(point_stride_for(width_ * stride_)),
        packed_point_(point_stride_for(padded_out_ * chain_ * tile_columns_)),
        chains_(divide_up(c.n * tile_rows_, chain_)),
        groups_(divide_up(c.in, kChannelsAtOnce)),
        panels_(divide_up(c.out, width_)),
        size_(kPoints * (point_ + packed_point_)),
        sum_size_(kPoints * c.in * padded_out_),
        elements_(x, c.in * c.h * c.w, c.h, c.w, c.padding_h, c.padding_w, tile_rows_, tile_columns_, chain_),
        gradients_(grad, c.out * c.oh * c.ow, c.oh, c.ow, 0, 0, tile_rows_, tile_columns_, chain_) {}

  // True if all elements are finite.
  bool run(float* weight_grad) const {
    const Tensor sums = empty({sum_size_});
    // Of few channels, what chains leave is little beside what they are computed from.
    if (num_threads() > 1 && chains_ >= 4 * num_threads() && 4 * sum_size_ <= size_)
      add_chains_apart(sums.data<float>());
    else
      add_chains_together(sums.data<float>());
    const float* const from = sums.data<float>();
    std::atomic<bool> finite = true;
    parallel_for(c_.in, std::max<std::int64_t>(1, 4096 / c_.out), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        if (!weights_of_sums(from + i * padded_out_, c_.in * padded_out_, c_.out, weight_grad + i * kTaps,
                             c_.in * kTaps))
          finite.store(false, std::memory_order_relaxed);
    });
    return finite;
  }

 private:
  struct Work {
    explicit Work(const Gradient& g)
        : space(zeros({g.elements_.space() + g.gradients_.space()})),
          panel(empty({kPoints * g.panel_point_})),
          element_parts(space.data<float>()),
          gradient_parts(element_parts + g.elements_.space()),
          gradients(panel.data<float>()) {}
    Tensor space, panel;
    float *element_parts, *gradient_parts, *gradients;
  };

  std::int64_t rows_of(std::int64_t chain) const { return std::min(chain_, c_.n * tile_rows_ - chain * chain_); }

  // Threads share what is transformed of some chains, and each has points of its own.
  void add_chains_together(float* sums) const {
    const bool alone = num_threads() == 1;
    const std::int64_t shared = alone ? 1 : std::clamp<std::int64_t>(kSharedFloats / size_, 1, chains_);
    const Tensor transformed = empty({shared * size_});
    for (std::int64_t first = 0; first < chains_; first += shared) {
      const std::int64_t count = std::min(shared, chains_ - first), tasks = panels_ + groups_;
      parallel_for(tasks, alone ? tasks : 1, [&](std::int64_t begin, std::int64_t end) {
        const Work work(*this);
        for (std::int64_t i = 0; i < count; ++i)
          transform(work, first + i, begin, end, transformed.data<float>() + i * size_);
      });
      parallel_for(kPoints, alone ? kPoints : 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p)
          for (std::int64_t i = 0; i < count; ++i)
            add(transformed.data<float>() + i * size_, p, first + i, first + i > 0, sums);
      });
    }
  }

  // A thread transforms and sums up whole chains, so that what is transformed never leaves its cache. The sums of some
  // chains are then added in order, each to the total before, as a product that goes on from it does.
  void add_chains_apart(float* sums) const {
    const std::int64_t threads = num_threads();
    const std::int64_t most = std::clamp<std::int64_t>(kSumsFloats / sum_size_, threads, 4 * threads);
    const std::int64_t rounds = divide_up(chains_, most), round = divide_up(chains_, rounds);
    const Tensor parts = empty({round * sum_size_});
    for (std::int64_t first = 0; first < chains_; first += round) {
      const std::int64_t count = std::min(round, chains_ - first);
      parallel_for(count, std::max<std::int64_t>(1, count / (2 * threads)), [&](std::int64_t begin, std::int64_t end) {
        const Work work(*this);
        const Tensor transformed = empty({size_});
        for (std::int64_t i = begin; i < end; ++i) {
          transform(work, first + i, 0, panels_ + groups_, transformed.data<float>());
          for (std::int64_t p = 0; p < kPoints; ++p)
            add(transformed.data<float>(), p, first + i, false, parts.data<float>() + i * sum_size_);
        }
      });
      parallel_for(sum_size_, kSumBlock, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = 0; i < count; ++i) {
          const float* const part = parts.data<float>() + i * sum_size_;
          if (first + i == 0)
            std::copy(part + begin, part + end, sums + begin);
          else
            for (std::int64_t j = begin; j < end; ++j) sums[j] += part[j];
        }
      });
    }
  }

  // Tasks of a chain: panels of output channels, which are packed as products read them and take longest, then groups
  // of input channels.
  void transform(const Work& work, std::int64_t chain, std::int64_t begin, std::int64_t end, float* to) const {
    for (std::int64_t task = begin; task < end; ++task)
      if (task < panels_)
        transform_gradients(work, chain, rows_of(chain), task, to + kPoints * point_);
      else
        transform_elements(work, chain, rows_of(chain), task - panels_, to);
  }

  void transform_elements(const Work& work, std::int64_t chain, std::int64_t rows, std::int64_t group,
                          float* to) const {
    const std::int64_t top = chain * chain_, first = group * kChannelsAtOnce;
    for (std::int64_t c = first; c < std::min(first + kChannelsAtOnce, c_.in); ++c)
      elements_.elements(top, top + rows, c, work.element_parts, to + c * stride_, point_);
  }

  void transform_gradients(const Work& work, std::int64_t chain, std::int64_t rows, std::int64_t panel,
                           float* to) const {
    const std::int64_t top = chain * chain_, first = panel * width_, columns = std::min(width_, c_.out - first);
    const std::int64_t tiles = rows * tile_columns_;
    for (std::int64_t c = 0; c < columns; ++c)
      gradients_.gradients(top, top + rows, first + c, work.gradient_parts, work.gradients + c * stride_, panel_point_);
    for (std::int64_t p = 0; p < kPoints; ++p)
      kernels_.pack_columns(work.gradients + p * panel_point_, stride_, tiles, columns,
                            to + p * packed_point_ + first * tiles,
                            divide_up(columns, kernels_.lanes) * kernels_.lanes);
  }

  // One point of a chain: sums[point][in][out] (+)= elements[in][tile] * gradients[tile][out].
  void add(const float* transformed, std::int64_t point, std::int64_t chain, bool started, float* sums) const {
    const float* const elements = transformed + point * point_;
    const float* const packed = transformed + kPoints * point_ + point * packed_point_;
    const std::int64_t tiles = rows_of(chain) * tile_columns_;
    Tile<float> tile{};
    tile.a_row = stride_;
    tile.a_step = 1;
    tile.k = tiles;
    tile.out_stride = padded_out_;
    tile.alpha = 1;
    tile.beta = started ? 1.0f : 0.0f;
    for (std::int64_t i = 0; i < c_.in; i += panel_rows_) {
      const std::int64_t rows = std::min(panel_rows_, c_.in - i);
      tile.a = elements + i * stride_;
      for (std::int64_t j = 0; j < c_.out; j += width_) {
        tile.columns = std::min(width_, c_.out - j);
        const std::int64_t vectors = divide_up(tile.columns, kernels_.lanes);
        tile.b = packed + j * tiles;
        tile.b_step = vectors * kernels_.lanes;
        tile.out = sums + (point * c_.in + i) * padded_out_ + j;
        kernels_.table[1][vectors][rows](tile);
      }
    }
  }

  const Conv& c_;
  const MicroKernels<float>& kernels_;
  const std::int64_t tile_rows_, tile_columns_;
  const std::int64_t chain_;   // rows of tiles
  const std::int64_t stride_;  // floats from a channel's tiles to the next one's
  const std::int64_t width_, row_panels_, panel_rows_, padded_out_;
  // Floats from one point to the next: of elements, of a panel's gradients, of packed gradients.
  const std::int64_t point_, panel_point_, packed_point_;
  const std::int64_t chains_, groups_, panels_;
  const std::int64_t size_, sum_size_;  // floats that are transformed for a chain, and of its sums
  const TileRows elements_, gradients_;
};

}  // namespace

void winograd_backward_weight(const Conv& c, const float* grad, const float* x, float* weight_grad,
                              InstructionSet set) {
  if (!Gradient(c, grad, x, set).run(weight_grad)) product_backward_weight(c, grad, x, weight_grad, set);
}

}  // namespace lockstep::cpu::conv_detail
