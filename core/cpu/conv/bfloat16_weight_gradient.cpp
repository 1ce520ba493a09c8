// The gradient of the weights by pairs: see Note [Convolutions of bfloat16] and Note [Order of a weight gradient].

#include <algorithm>

#include "lockstep/core/cpu/conv/bfloat16_conv.h"
#include "lockstep/core/cpu/conv/bfloat16_correlation.h"
#include "lockstep/core/cpu/conv/weight_chains.h"
#include "lockstep/core/cpu/gemm/bfloat16_kernels.h"
#include "lockstep/core/cpu/gemm/bfloat16_product.h"
#include "lockstep/core/cpu/gemm/operand.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace {

using conv_detail::Bfloat16Images;
using conv_detail::Planes;
using conv_detail::WeightChains;
using gemm_detail::Bfloat16Kernels;
using gemm_detail::divide_up;
using gemm_detail::kBfloat16Columns;
using gemm_detail::kBfloat16Rows;

/// Planes of x with pairs of neighbours swapped, as chains read them: those that begin at even elements, and in another
/// copy those that begin at odd ones.
class SwappedPlanes {
 public:
  SwappedPlanes(const Bfloat16Kernels& kernels, const Planes& planes, const BFloat16* x, std::int64_t images,
                bool has_even, bool has_odd)
      : plane_(divide_up(planes.plane(), 2) * 2) {
    const std::int64_t count = images * planes.channels, image = planes.h * planes.w;
    if (has_even) copies_[0] = empty({count * plane_}, {.dtype = kBFloat16});
    if (has_odd) copies_[1] = empty({count * plane_}, {.dtype = kBFloat16});
    range_ = conv_detail::bfloat16_range(
        count, std::max<std::int64_t>(1, 32768 / plane_), [&](std::int64_t begin, std::int64_t end) {
          gemm_detail::Bfloat16Range range;
          const Tensor padded = empty({planes.copied ? planes.plane() : 0}, {.dtype = kBFloat16});
          for (std::int64_t i = begin; i < end; ++i) {
            const BFloat16* from = x + i * image;
            if (planes.copied) {
              planes.copy(from, padded.data<BFloat16>(), 0, 1);
              from = padded.data<BFloat16>();
            }
            range.add(kernels.range(from, planes.plane()));
            if (has_even) kernels.swap_pairs(from, planes.plane(), copies_[0].data<BFloat16>() + i * plane_);
            if (has_odd) kernels.swap_pairs(from + 1, planes.plane() - 1, copies_[1].data<BFloat16>() + i * plane_);
          }
          return range;
        });
  }

  const gemm_detail::Bfloat16Range& range() const { return range_; }
  std::int64_t plane() const { return plane_; }
  /// Where the pairs from `element` of plane `number` on lie.
  const BFloat16* at(std::int64_t number, std::int64_t element) const {
    return copies_[element % 2].data<BFloat16>() + number * plane_ + element / 2 * 2;
  }

 private:
  std::int64_t plane_;
  gemm_detail::Bfloat16Range range_;
  Tensor copies_[2];
};

class Gradient {
 public:
  Gradient(const Conv& c, const BFloat16* grad, const BFloat16* x)
      : c_(c),
        kernels_(*gemm_detail::bfloat16_kernels()),
        planes_(c.group_in(), c.h, c.w, c.padding_h, c.padding_w, c.stride_h, c.stride_w, c.oh, c.ow,
                c.dilation_h * (c.kh - 1), c.dilation_w * (c.kw - 1)),
        by_rows_(c.ow % 2 == 0 && planes_.pitch % 2 == 0),
        grad_planes_(c.group_out(), c.oh, c.ow, 0, 0, 1, 1, c.oh, c.ow, 0, by_rows_ ? 0 : planes_.pitch - c.ow),
        chains_(c),
        images_(kernels_, planes_, x, c.n * c.groups, has_offset(0), has_offset(1)),
        grads_(conv_detail::bfloat16_images(grad_planes_, grad, c.n, c.groups)),
        column_panels_(divide_up(c.group_out(), kBfloat16Columns)),
        row_panels_(divide_up(c.group_in(), kBfloat16Rows)) {}

  bool fits() const { return gemm_detail::fits(images_.range(), grads_.range); }

  void run(BFloat16* weight_grad) const {
    // Tasks are panels of output channels, then of input channels: each element is summed by one of them.
    const std::int64_t wanted = num_threads() == 1 ? 1 : divide_up(2 * num_threads(), c_.groups);
    const std::int64_t column_tasks = std::clamp<std::int64_t>(wanted, 1, column_panels_);
    const std::int64_t row_tasks = std::clamp<std::int64_t>(divide_up(wanted, column_tasks), 1, row_panels_);
    parallel_for(c_.groups * column_tasks * row_tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t group = task / (column_tasks * row_tasks), rest = task % (column_tasks * row_tasks);
        const std::int64_t column = rest / row_tasks, row = rest % row_tasks;
        add(group,
            {column * column_panels_ / column_tasks, (column + 1) * column_panels_ / column_tasks,
             std::min(row * row_panels_ / row_tasks * kBfloat16Rows, c_.group_in()),
             std::min((row + 1) * row_panels_ / row_tasks * kBfloat16Rows, c_.group_in())},
            weight_grad);
      }
    });
  }

 private:
  // Panels of output channels and some input channels.
  struct Part {
    std::int64_t first_panel, end_panel, first_row, end_row;
  };

  std::int64_t offset(std::int64_t tap) const {
    return planes_.offset(tap / c_.kw * c_.dilation_h, tap % c_.kw * c_.dilation_w);
  }
  // Whether chains begin at even (0) or odd (1) elements of a plane.
  bool has_offset(std::int64_t odd) const {
    if (planes_.pitch % 2 != 0) return true;
    for (std::int64_t tap = 0; tap < c_.kh * c_.kw; ++tap)
      if (offset(tap) % 2 == odd) return true;
    return false;
  }

  // Steps of a chain's block of one image: its rows, and where these are odd what lies between them in the planes, but
  // not behind the last.
  std::int64_t steps(std::int64_t rows) const { return (rows - 1) * grad_planes_.pitch + c_.ow; }

  // One panel after the other, whose sums stay in a cache.
  void add(std::int64_t group, const Part& part, BFloat16* weight_grad) const {
    const std::int64_t taps = c_.kh * c_.kw, in = part.end_row - part.first_row;
    const std::int64_t pairs = divide_up(steps(chains_.rows()), 2);
    const Tensor sums = empty({taps * in * kBfloat16Columns});
    const Tensor packed = empty({chains_.images() * pairs * kBfloat16Columns});
    auto* const panel = reinterpret_cast<std::uint32_t*>(packed.data<float>());
    for (std::int64_t p = part.first_panel; p < part.end_panel; ++p) {
      for (std::int64_t i = 0; i < chains_.count(); ++i) add_chain(group, part, i, p, panel, sums.data<float>());
      conv_detail::write_weight_gradient(c_, sums.data<float>(), kBfloat16Columns, p * kBfloat16Columns,
                                         std::min((p + 1) * kBfloat16Columns, c_.group_out()), part.first_row,
                                         part.end_row, weight_grad + group * c_.group_out() * c_.group_in() * taps);
    }
  }

  // Chain `index` of the panel `p` of output channels: added to the sums, or put in their place.
  void add_chain(std::int64_t group, const Part& part, std::int64_t index, std::int64_t p, std::uint32_t* panel,
                 float* sums) const {
    const conv_detail::WeightChain chain = chains_.at(index);
    const std::int64_t count = steps(chain.rows), pairs = divide_up(count, 2), in = part.end_row - part.first_row;
    for (std::int64_t i = 0; i < chain.images; ++i)
      kernels_.pack({grads_.data + (chain.image + i) * grads_.image + group * grads_.group +
                         p * kBfloat16Columns * grad_planes_.plane() + chain.y * grad_planes_.pitch,
                     std::min(kBfloat16Columns, c_.group_out() - p * kBfloat16Columns), count, grad_planes_.plane(), 1},
                    kBfloat16Columns, panel + i * pairs * kBfloat16Columns);
    const std::int64_t segments = by_rows_ ? chain.rows : 1;
    const std::int64_t first_plane = (chain.image * c_.groups + group) * planes_.channels + part.first_row;
    for (std::int64_t row = 0; row < in; row += kBfloat16Rows)
      for (std::int64_t tap = 0; tap < c_.kh * c_.kw; ++tap)
        kernels_.chains[std::min(kBfloat16Rows, in - row)](
            {images_.at(first_plane + row, chain.y * planes_.pitch + offset(tap)), images_.plane(),
             c_.in * images_.plane(), chain.images, by_rows_ ? planes_.pitch : 0, segments, pairs / segments},
            panel, sums + (tap * in + row) * kBfloat16Columns, kBfloat16Columns, index > 0);
  }

  const Conv& c_;
  const Bfloat16Kernels& kernels_;
  const Planes planes_;
  const bool by_rows_;        // pairs lie in one row
  const Planes grad_planes_;  // else rows of both are as long, and the gradient is 0 between them
  const WeightChains chains_;
  const SwappedPlanes images_;
  const Bfloat16Images grads_;
  const std::int64_t column_panels_, row_panels_;
};

}  // namespace

bool conv_bfloat16_backward_weight(const Conv& c, const BFloat16* grad, const BFloat16* x, BFloat16* weight_grad) {
  if (!has_bfloat16_pairs()) return false;
  const Gradient gradient(c, grad, x);
  if (!gradient.fits()) return false;
  gradient.run(weight_grad);
  return true;
}

}  // namespace lockstep::cpu
