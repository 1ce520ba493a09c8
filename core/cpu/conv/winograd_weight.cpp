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
        point_(point_stride_for((c.in + c.out) * stride_)),
        elements_(x, c.in * c.h * c.w, c.h, c.w, c.padding_h, c.padding_w, tile_rows_, tile_columns_, chain_),
        gradients_(grad, c.out * c.oh * c.ow, c.oh, c.ow, 0, 0, tile_rows_, tile_columns_, chain_) {}

  // True if all elements are finite.
  bool run(float* weight_grad) const {
    const std::int64_t chains = divide_up(c_.n * tile_rows_, chain_), channels = c_.in + c_.out;
    const std::int64_t size = kPoints * point_;  // of a chain
    const std::int64_t shared =
        num_threads() == 1 ? 1 : std::clamp<std::int64_t>(kSharedFloats / size, 1, chains);  // chains at a time
    const Tensor transformed = empty({shared * size}), sums = empty({kPoints * c_.in * padded_out_});
    float* const all = transformed.data<float>();
    for (std::int64_t first = 0; first < chains; first += shared) {
      const std::int64_t count = std::min(shared, chains - first);
      parallel_for(
          channels, num_threads() == 1 ? channels : kChannelsAtOnce, [&](std::int64_t begin, std::int64_t end) {
            const Tensor space = zeros({elements_.space() + gradients_.space()});
            float* const parts = space.data<float>();
            for (std::int64_t i = 0; i < count; ++i) {
              const std::int64_t top = (first + i) * chain_, bottom = std::min(top + chain_, c_.n * tile_rows_);
              for (std::int64_t c = begin; c < end; ++c) {
                float* const to = all + i * size + c * stride_;
                if (c < c_.in)
                  elements_.elements(top, bottom, c, parts, to, point_);
                else
                  gradients_.gradients(top, bottom, c - c_.in, parts + elements_.space(), to, point_);
              }
            }
          });
      parallel_for(kPoints, num_threads() == 1 ? kPoints : 1, [&](std::int64_t begin, std::int64_t end) {
        const Tensor packed = empty({stride_ * padded_out_});
        for (std::int64_t p = begin; p < end; ++p)
          for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t top = (first + i) * chain_, rows = std::min(chain_, c_.n * tile_rows_ - top);
            add(all + i * size + p * point_, rows * tile_columns_, first + i > 0, packed.data<float>(),
                sums.data<float>() + p * c_.in * padded_out_);
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
  // One point of a chain: sums[in][out] (+)= elements[in][tile] * gradients[out][tile].
  void add(const float* elements, std::int64_t tiles, bool started, float* packed, float* sums) const {
    const float* const gradients = elements + c_.in * stride_;
    for (std::int64_t j = 0; j < c_.out; j += width_) {
      const std::int64_t columns = std::min(width_, c_.out - j);
      kernels_.pack_columns(gradients + j * stride_, stride_, tiles, columns, packed + j * tiles,
                            divide_up(columns, kernels_.lanes) * kernels_.lanes);
    }
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
  const std::int64_t point_;  // floats from one point to the next
  const TileRows elements_, gradients_;
};

}  // namespace

void winograd_backward_weight(const Conv& c, const float* grad, const float* x, float* weight_grad,
                              InstructionSet set) {
  if (!Gradient(c, grad, x, set).run(weight_grad)) product_backward_weight(c, grad, x, weight_grad, set);
}

}  // namespace lockstep::cpu::conv_detail
