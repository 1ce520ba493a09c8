// The gradient of the weights: for each tap, input channel and output channel, the sum over all positions of image
// times gradient.

#include <algorithm>

#include "lockstep/core/cpu/conv/conv.h"
#include "lockstep/core/cpu/conv/depthwise.h"
#include "lockstep/core/cpu/conv/planes.h"
#include "lockstep/core/cpu/conv/weight_chains.h"
#include "lockstep/core/cpu/conv/winograd.h"
#include "lockstep/core/cpu/gemm/micro_kernels.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace {

using conv_detail::Planes;
using conv_detail::WeightChains;
using gemm_detail::MicroKernels;
using gemm_detail::Tile;

std::int64_t divide_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

// Vectors run along the output channels and tiles hold several input channels of one tap, whose elements lie a plane
// apart in the image (of a single channel a row of taps, whose elements are neighbours); the gradient's channels are
// packed into panels, the image is read as it lies. See Note [Order of a weight gradient].
class Gradient {
 public:
  Gradient(const Conv& c, const float* grad, const float* x, std::int64_t group, InstructionSet set)
      : c_(c),
        kernels_(gemm_detail::micro_kernels<float>(set)),
        planes_(c.group_in(), c.h, c.w, c.padding_h, c.padding_w, c.stride_h, c.stride_w, c.oh, c.ow,
                c.dilation_h * (c.kh - 1), c.dilation_w * (c.kw - 1)),
        chains_(c),
        grad_(grad + group * c.group_out() * c.oh * c.ow),
        x_(x + group * c.group_in() * c.h * c.w) {
    const std::int64_t in = c.group_in();
    taps_ = in == 1 && c.stride_w == 1 && c.kw <= kernels_.rows[2] ? c.kw : 1;
    const std::int64_t rows = in * taps_;
    vectors_ = rows <= kernels_.rows[4] ? 4 : rows <= kernels_.rows[3] ? 3 : 2;
    const std::int64_t needed = divide_up(c.group_out(), kernels_.lanes);
    // Three are one panel instead of a wide and a narrow one, if their tile has as many rows as there are taps.
    vectors_ = needed == 3 && taps_ <= kernels_.rows[3] ? 3 : std::min(vectors_, needed);
    width_ = vectors_ * kernels_.lanes;
    row_panels_ = divide_up(in, kernels_.rows[vectors_]);
    column_panels_ = divide_up(c.group_out(), width_);
  }

  // Tasks are panels of input channels, then of output channels: each element is summed by one of them. A task copies
  // the input channels that are its own, but packs all gradients of its output channels.
  std::int64_t row_tasks() const { return std::clamp<std::int64_t>(wanted_tasks(), 1, row_panels_); }
  std::int64_t column_tasks() const {
    return std::clamp<std::int64_t>(divide_up(wanted_tasks(), row_tasks()), 1, column_panels_);
  }

  void run(std::int64_t row_task, std::int64_t column_task, float* weight_grad) const {
    const std::int64_t in = c_.group_in();
    const Part part{column_task * column_panels_ / column_tasks(), (column_task + 1) * column_panels_ / column_tasks(),
                    in * row_task / row_tasks(), in * (row_task + 1) / row_tasks()};
    const Tensor space = empty({space_of_chain(part)}), sums = empty({size_of_sums(part)});
    for (std::int64_t i = 0; i < chains(); ++i) add_chain(part, i, i > 0, space.data<float>(), sums.data<float>());
    write(part, sums.data<float>(), weight_grad);
  }

  // Few channels make no tasks for several threads: then these sum chains, which are added up afterwards.
  bool runs_by_chains() const {
    return c_.groups * row_tasks() * column_tasks() < num_threads() && chains() > 1 &&
           size_of_sums(whole()) <= kSumsOfChains;
  }
  void run_by_chains(float* weight_grad) const {
    const Part part = whole();
    const std::int64_t size = size_of_sums(part), at_once = std::min(chains(), kSumsOfChains / size);
    const Tensor of_chains = empty({at_once * size}), sums = empty({size});
    float* const sum = sums.data<float>();
    for (std::int64_t first = 0; first < chains(); first += at_once) {
      const std::int64_t count = std::min(at_once, chains() - first);
      parallel_for(count, divide_up(count, 2 * num_threads()), [&](std::int64_t begin, std::int64_t end) {
        const Tensor space = empty({space_of_chain(part)});
        for (std::int64_t i = begin; i < end; ++i)
          add_chain(part, first + i, false, space.data<float>(), of_chains.data<float>() + i * size);
      });
      for (std::int64_t i = 0; i < count; ++i) {
        const float* const chain = of_chains.data<float>() + i * size;
        if (first + i == 0)
          std::copy_n(chain, size, sum);
        else
          for (std::int64_t j = 0; j < size; ++j) sum[j] += chain[j];
      }
    }
    write(part, sum, weight_grad);
  }

 private:
  static constexpr std::int64_t kSumsOfChains = 1 << 18;  // floats

  // Panels of output channels and rows of input channels.
  struct Part {
    std::int64_t first_panel, end_panel, first_row, end_row;
    std::int64_t panels() const { return end_panel - first_panel; }
    std::int64_t rows() const { return end_row - first_row; }
  };
  Part whole() const { return {0, column_panels_, 0, c_.group_in()}; }

  std::int64_t chains() const { return chains_.count(); }
  std::int64_t block() const { return chains_.images() * chains_.rows() * c_.ow; }
  std::int64_t size_of_sums(const Part& part) const { return c_.kh * c_.kw * part.rows() * part.panels() * width_; }
  std::int64_t space_of_chain(const Part& part) const {
    return part.panels() * width_ * block() + (planes_.copied ? chains_.images() * planes_.size() : 0) + 16;
  }

  // What block `index` of positions gives, added to the sums, or in their place.
  void add_chain(const Part& part, std::int64_t index, bool adds, float* packed, float* sums) const {
    const std::int64_t positions = c_.oh * c_.ow;
    const auto [image, count, y, rows] = chains_.at(index);
    const float* images = x_ + image * c_.in * c_.h * c_.w;
    if (planes_.copied) {
      float* const padded = packed + part.panels() * width_ * block();
      if (y == 0 || !adds)  // the blocks of an image follow one another
        for (std::int64_t i = 0; i < count; ++i)
          planes_.copy(images + i * c_.in * c_.h * c_.w, padded + i * planes_.size(), part.first_row, part.end_row);
      images = padded;
    }
    for (std::int64_t p = part.first_panel; p < part.end_panel; ++p) {
      const std::int64_t columns = std::min(width_, c_.group_out() - p * width_);
      const std::int64_t stride = divide_up(columns, kernels_.lanes) * kernels_.lanes;
      for (std::int64_t i = 0; i < count; ++i)
        kernels_.pack_columns(grad_ + ((image + i) * c_.out + p * width_) * positions + y * c_.ow, positions,
                              rows * c_.ow, columns,
                              packed + (p - part.first_panel) * width_ * block() + i * rows * c_.ow * stride, stride);
    }
    add(images, y, rows, count, packed, block(), part.first_panel, part.end_panel, part.first_row, part.end_row, sums,
        adds);
  }

  void write(const Part& part, const float* sums, float* weight_grad) const {
    conv_detail::write_weight_gradient(c_, sums, part.panels() * width_, part.first_panel * width_,
                                       std::min(part.end_panel * width_, c_.group_out()), part.first_row, part.end_row,
                                       weight_grad);
  }

  std::int64_t wanted_tasks() const { return num_threads() == 1 ? 1 : divide_up(2 * num_threads(), c_.groups); }

  void add(const float* images, std::int64_t y, std::int64_t rows, std::int64_t count, const float* packed,
           std::int64_t block, std::int64_t first_panel, std::int64_t end_panel, std::int64_t first_row,
           std::int64_t end_row, float* sums, bool started) const {
    const std::int64_t image_size = planes_.copied ? planes_.size() : c_.in * c_.h * c_.w;
    const std::int64_t in_rows = end_row - first_row, panels = end_panel - first_panel;
    const std::int64_t row_panels = divide_up(in_rows, kernels_.rows[vectors_]);
    const std::int64_t panel_rows = divide_up(in_rows, row_panels);
    Tile<float> tile{};
    tile.a_row = taps_ > 1 ? c_.dilation_w : planes_.plane();
    tile.a_step = 1;
    tile.k = c_.ow;
    tile.segments = rows;
    tile.a_segment = planes_.pitch - c_.ow;
    tile.repeats = count;
    tile.a_repeat = image_size - rows * planes_.pitch;
    tile.alpha = 1;
    tile.beta = started ? 1.0f : 0.0f;
    tile.out_stride = panels * width_;
    for (std::int64_t i = 0; i < in_rows; i += panel_rows) {
      const std::int64_t height = taps_ > 1 ? taps_ : std::min(panel_rows, in_rows - i);
      for (std::int64_t t = 0; t < c_.kh * c_.kw; t += taps_) {
        const std::int64_t offset = planes_.offset(t / c_.kw * c_.dilation_h, t % c_.kw * c_.dilation_w);
        tile.a = images + (first_row + i) * planes_.plane() + offset + y * planes_.pitch;
        for (std::int64_t p = first_panel; p < end_panel; ++p) {
          tile.columns = std::min(width_, c_.group_out() - p * width_);
          const std::int64_t vectors = divide_up(tile.columns, kernels_.lanes);
          tile.b = packed + (p - first_panel) * width_ * block;
          tile.b_step = vectors * kernels_.lanes;
          tile.out = sums + (t * in_rows + i) * panels * width_ + (p - first_panel) * width_;
          kernels_.table[1][vectors][height](tile);
        }
      }
    }
  }

  const Conv& c_;
  const MicroKernels<float>& kernels_;
  const Planes planes_;
  const WeightChains chains_;
  const float *grad_, *x_;
  std::int64_t vectors_, width_, row_panels_, column_panels_;
  std::int64_t taps_;  // neighbours in a row, that a tile holds where there is one input channel
};

}  // namespace

void conv_backward_weight(const Conv& conv, const float* grad, const float* x, float* weight_grad, InstructionSet set) {
  if (conv_detail::is_depthwise(conv)) return conv_detail::depthwise_backward_weight(conv, grad, x, weight_grad, set);
  if (conv.groups == 1 && conv_detail::winograd_serves(conv))
    return conv_detail::winograd_backward_weight(conv, grad, x, weight_grad, set);
  conv_detail::product_backward_weight(conv, grad, x, weight_grad, set);
}

void conv_detail::product_backward_weight(const Conv& conv, const float* grad, const float* x, float* weight_grad,
                                          InstructionSet set) {
  const std::int64_t size = conv.group_out() * conv.group_in() * conv.kh * conv.kw;
  const Gradient first(conv, grad, x, 0, set);
  if (first.runs_by_chains()) {
    for (std::int64_t group = 0; group < conv.groups; ++group)
      Gradient(conv, grad, x, group, set).run_by_chains(weight_grad + group * size);
    return;
  }
  const std::int64_t row_tasks = first.row_tasks(), column_tasks = first.column_tasks();
  parallel_for(conv.groups * row_tasks * column_tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t group = task / (row_tasks * column_tasks), rest = task % (row_tasks * column_tasks);
      Gradient(conv, grad, x, group, set).run(rest / column_tasks, rest % column_tasks, weight_grad + group * size);
    }
  });
}

}  // namespace lockstep::cpu
