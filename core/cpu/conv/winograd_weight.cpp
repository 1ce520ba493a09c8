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
        elements_(x, c.in * c.h * c.w, c.h, c.w, c.padding_h, c.padding_w, tile_rows_, tile_columns_, chain_),
        gradients_(grad, c.out * c.oh * c.ow, c.oh, c.ow, 0, 0, tile_rows_, tile_columns_, chain_) {}

  // True if all elements are finite.
  bool run(float* weight_grad) const {
    const bool alone = num_threads() == 1;
    const std::int64_t all_rows = c_.n * tile_rows_, chains = divide_up(all_rows, chain_);
    const std::int64_t size = kPoints * (point_ + packed_point_);  // of a chain
    const std::int64_t shared = alone ? 1 : std::clamp<std::int64_t>(kSharedFloats / size, 1, chains);
    const Tensor transformed = empty({shared * size}), sums = empty({kPoints * c_.in * padded_out_});
    const auto rows_of = [&](std::int64_t chain) { return std::min(chain_, all_rows - chain * chain_); };
    // Panels of output channels, which are packed as products read them, then groups of input channels: who is done
    // early takes from the end of another's part, where tasks are small.
    const std::int64_t groups = divide_up(c_.in, kChannelsAtOnce), panels = divide_up(c_.out, width_);
    for (std::int64_t first = 0; first < chains; first += shared) {
      const std::int64_t count = std::min(shared, chains - first);
      parallel_for(groups + panels, alone ? groups + panels : 1, [&](std::int64_t begin, std::int64_t end) {
        const Work work(*this);
        for (std::int64_t i = 0; i < count; ++i) {
          float* const to = transformed.data<float>() + i * size;
          for (std::int64_t task = begin; task < end; ++task)
            if (task < panels)
              transform_gradients(work, first + i, rows_of(first + i), task, to + kPoints * point_);
            else
              transform_elements(work, first + i, rows_of(first + i), task - panels, to);
        }
      });
      parallel_for(kPoints, alone ? kPoints : 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t p = begin; p < end; ++p)
          for (std::int64_t i = 0; i < count; ++i) {
            const float* const from = transformed.data<float>() + i * size;
            add(from + p * point_, from + kPoints * point_ + p * packed_point_, rows_of(first + i) * tile_columns_,
                first + i > 0, sums.data<float>() + p * c_.in * padded_out_);
          }
      });
    }
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

  // One point of a chain: sums[in][out] (+)= elements[in][tile] * gradients[tile][out].
  void add(const float* elements, const float* packed, std::int64_t tiles, bool started, float* sums) const {
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
        tile.out = sums + i * padded_out_ + j;
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
  const TileRows elements_, gradients_;
};

}  // namespace

void winograd_backward_weight(const Conv& c, const float* grad, const float* x, float* weight_grad,
                              InstructionSet set) {
  if (!Gradient(c, grad, x, set).run(weight_grad)) product_backward_weight(c, grad, x, weight_grad, set);
}

}  // namespace lockstep::cpu::conv_detail
