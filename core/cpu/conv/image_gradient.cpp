// The gradient of the image: correlations of the result's gradient, one for each remainder that the stride leaves.

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/core/cpu/all_finite.h"
#include "lockstep/core/cpu/conv/conv.h"
#include "lockstep/core/cpu/conv/correlation.h"
#include "lockstep/core/cpu/conv/depthwise.h"
#include "lockstep/core/cpu/conv/eight_positions.h"
#include "lockstep/core/cpu/conv/phases.h"
#include "lockstep/core/cpu/conv/winograd.h"
#include "lockstep/core/cpu/gemm/micro_kernels.h"
#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace {

using conv_detail::Correlation;
using conv_detail::Phase;
using conv_detail::phases_of;
using conv_detail::Planes;
using conv_detail::planes_of;
using conv_detail::WeightPanels;

constexpr std::int64_t kBlockFloats = 1 << 16;  // of the image's gradient, that a task computes at a time
constexpr std::int64_t kSlack = 16;             // read beyond the last image, but not used

// A phase of rows and one of columns: a correlation with its weights.
struct Part {
  Correlation correlation;
  std::vector<std::int64_t> taps;  // in the kernel
  // Group by group, for each output channel and tap, those of the input channels: in panels, or as the convolution's
  // own lie.
  const float* weights = nullptr;
  std::int64_t columns = 0;  // of the latter
  Tensor gathered;           // the former
  std::vector<std::int32_t> offsets;
};

Part part_of(const Conv& c, const Planes& planes, const Phase& y, const Phase& x, const WeightPanels* panels) {
  const std::int64_t in = c.group_in();
  Part part{.correlation = {.planes = planes,
                            .taps = {},
                            .rows = in,
                            .n = c.n,
                            .oh = y.count,
                            .ow = x.count,
                            .image_stride = c.out * c.oh * c.ow,
                            .out_image = 0,
                            .out_plane = y.count * x.count,
                            .out_row = x.count,
                            .out_column = 1,
                            .groups = c.groups,
                            .image_group = c.group_out() * c.oh * c.ow,
                            .out_group = in * y.count * x.count},
            .taps = {},
            .gathered = {},
            .offsets = {}};
  for (const std::int64_t dy : y.offsets)
    for (const std::int64_t dx : x.offsets) part.correlation.taps.push_back({dy + planes.top, dx + planes.left});
  for (const std::int64_t ky : y.taps)
    for (const std::int64_t kx : x.taps) part.taps.push_back(ky * c.kw + kx);
  if (panels) {
    part.gathered = empty({c.groups * panels->size(part.correlation.inner())});
    part.weights = part.gathered.data<float>();
  }
  part.offsets = part.correlation.input_offsets();
  return part;
}

// Zeros, without a call.
[[gnu::always_inline]] inline void clear_short(float* to, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store8(to + i, Vec8{});
  for (; i < count; ++i) to[i] = 0.0f;
}

// Gathers the weights of all parts.
void fill_weights(const Conv& c, const float* weight, const std::vector<Part>& parts, const WeightPanels& panels,
                  InstructionSet set) {
  const auto& kernels = gemm_detail::micro_kernels<float>(set);
  const std::int64_t in = c.group_in(), out = c.group_out(), kernel = c.kh * c.kw;
  const auto fill = [&](const Part& part, std::int64_t o, std::int64_t panel) {
    const auto taps = static_cast<std::int64_t>(part.taps.size());
    const std::int64_t first = panel * panels.panel_rows, rows = std::min(panels.panel_rows, in - first);
    const float* const from = weight + (o * in + first) * kernel;
    float* to = part.gathered.data<float>() + ((o / out * panels.count + panel) * out + o % out) * taps * panels.padded;
    if (taps == kernel && kernel > 1)  // all of them, in order
      return kernels.pack_columns(from, kernel, kernel, rows, to, panels.padded);
    for (const std::int64_t tap : part.taps) {
      for (std::int64_t i = 0; i < rows; ++i) to[i] = from[i * kernel + tap];
      to += panels.padded;
    }
  };
  parallel_for(c.out, std::max<std::int64_t>(1, 16384 / (in * kernel)), [&](std::int64_t begin, std::int64_t end) {
    for (const Part& part : parts)
      for (std::int64_t panel = 0; panel < panels.count; ++panel)
        for (std::int64_t o = begin; o < end; ++o) fill(part, o, panel);
  });
}

// to[2 * q] = even[q], to[2 * q + 1] = odd[q], where null counts as zeros; up to seven floats behind what is used are
// read, none are written.
[[gnu::always_inline]] inline void zip_row(const float* even, const float* odd, std::int64_t width, float* to) {
  std::int64_t q = 0;
  for (; 2 * q + kLanes <= width; q += kLanes) {
    const Vec8 a = even ? load8(even + q) : Vec8{}, b = odd ? load8(odd + q) : Vec8{};
    store8(to + 2 * q, __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11));
    if (2 * (q + kLanes) <= width) {
      store8(to + 2 * q + kLanes, __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15));
    } else {
      q += kLanes / 2;
      break;
    }
  }
  for (; 2 * q < width; ++q) {
    to[2 * q] = even ? even[q] : 0.0f;
    if (2 * q + 1 < width) to[2 * q + 1] = odd ? odd[q] : 0.0f;
  }
}

// to[q * stride + first] = from[first][q], where a phase without elements counts as zeros.
[[gnu::always_inline]] inline void merge_row(const float* const* from, std::int64_t stride, std::int64_t width,
                                             float* to) {
  if (stride == 2) return zip_row(from[0], from[1], width, to);
  for (std::int64_t q = 0; q * stride < width; ++q)
    for (std::int64_t first = 0; first < std::min(stride, width - q * stride); ++first) {
      const float* const phase = from[first];
      to[q * stride + first] = phase ? phase[q] : 0.0f;
    }
}

// Whether the rows of the weights of a single tap share places in a cache, where a panel uses them little by little.
bool is_crowded(const Conv& c, const WeightPanels& panels) {
  return c.group_in() * sizeof(float) % 2048 == 0 && panels.panel_rows <= 8;
}

class ImageGradient {
 public:
  ImageGradient(const Conv& c, const float* weight, InstructionSet set)
      : c_(c),
        set_(set),
        // A single tap reads nothing beside the image, so there nothing is left out.
        gathers_(c.kh * c.kw > 1 || is_crowded(c, WeightPanels(set, c.group_in()))),
        finite_(c.kh * c.kw == 1 || all_finite(weight, c.out * c.group_in() * c.kh * c.kw)),
        ys_(phases_of(c.h, c.kh, c.stride_h, c.padding_h, c.dilation_h)),
        xs_(phases_of(c.w, c.kw, c.stride_w, c.padding_w, c.dilation_w)),
        planes_(planes_of(c, ys_, xs_)) {
    const WeightPanels panels(set, c.group_in());
    for (const Phase& y : ys_)
      for (const Phase& x : xs_)
        if (!y.taps.empty() && !x.taps.empty())
          parts_.push_back(part_of(c, planes_, y, x, gathers_ ? &panels : nullptr));
    // Those of a single tap are read where they lie, as a copy would take longer than it saves, but where the rows that
    // a tile reads from share places in a cache.
    if (gathers_)
      fill_weights(c, weight, parts_, panels, set);
    else
      for (Part& part : parts_) part.weights = weight, part.columns = c.group_in();
  }

  void run(const float* grad, float* x_grad) const {
    if (c_.stride_h == 1 && c_.stride_w == 1)
      return correlate(parts_.front().correlation, parts_.front(), grad, c_.n, x_grad, c_.in * c_.h * c_.w);
    // Images, computed phase by phase and put together while they lie in the cache.
    const std::int64_t size = c_.in * c_.h * c_.w;
    const std::int64_t block = std::clamp<std::int64_t>(kBlockFloats / size, 1, c_.n);
    const auto images = [&](std::int64_t begin, std::int64_t end) {
      const Tensor space = empty({block * size + kSlack});
      for (std::int64_t image = begin; image < end; image += block)
        compute(grad, image, std::min(block, end - image), space.data<float>(), x_grad);
    };
    if (divide_up(c_.n, block) >= num_threads())
      parallel_for(c_.n, block, images);
    else
      images(0, c_.n);
  }

 private:
  static std::int64_t divide_up(std::int64_t x, std::int64_t y) { return (x + y - 1) / y; }

  void correlate(Correlation correlation, const Part& part, const float* grad, std::int64_t images, float* out,
                 std::int64_t out_image) const {
    correlation.n = images;
    correlation.images = grad;
    correlation.out = out;
    correlation.out_image = out_image;
    correlation.run_packed(set_, part.weights, part.columns, finite_, part.offsets);
  }

  // Images of the result's gradient with zeros around them, which all phases read, group by group. For few input
  // channels each phase copies them itself, by measurement: for the three of a 7 x 7 kernel on 224 x 224 one copy took
  // twice as long.
  Tensor padded(const float* grad, std::int64_t images) const {
    const std::int64_t all = c_.groups * images, group = planes_.channels * c_.oh * c_.ow;
    const Tensor to = empty({all * planes_.size() + kSlack});
    std::fill_n(to.data<float>() + all * planes_.size(), kSlack, 0.0f);
    parallel_for(all * planes_.channels, std::max<std::int64_t>(1, 16384 / planes_.plane()),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t at = i / planes_.channels, channel = i % planes_.channels;
                     planes_.copy(grad + (at % images * c_.groups + at / images) * group,
                                  to.data<float>() + at * planes_.size(), channel, channel + 1);
                   }
                 });
    return to;
  }

  void compute(const float* grad, std::int64_t first, std::int64_t count, float* space, float* x_grad) const {
    grad += first * c_.out * c_.oh * c_.ow;
    const bool shares = planes_.copied && parts_.size() > 1 && c_.group_in() > conv_detail::kFewRows;
    const Tensor copy = shares ? padded(grad, count) : Tensor();
    std::vector<const float*> phases;  // [y][x], null: no tap reaches it
    std::size_t next = 0;
    for (const Phase& y : ys_)
      for (const Phase& x : xs_) {
        const bool reached = !y.taps.empty() && !x.taps.empty();
        phases.push_back(reached ? space : nullptr);
        if (!reached) continue;
        const Part& part = parts_[next++];
        Correlation correlation = part.correlation;
        if (copy.defined()) {
          correlation.planes.copied = false;
          correlation.image_stride = planes_.size();
          correlation.image_group = count * planes_.size();
        }
        correlate(std::move(correlation), part, copy.defined() ? copy.data<float>() : grad, count, space,
                  c_.in * y.count * x.count);
        space += count * c_.in * y.count * x.count;
      }
    // Row by row of what one remainder of rows was computed for; where no tap reaches, the gradient is 0.
    std::vector<const float*> of_phase(xs_.size());
    const float** const row = of_phase.data();
    const auto parts = static_cast<std::int64_t>(xs_.size());
    for (std::size_t y = 0; y < ys_.size(); ++y) {
      const float* const* const of_row = phases.data() + y * xs_.size();
      const bool reached = std::any_of(of_row, of_row + xs_.size(), [](const float* phase) { return phase; });
      for (std::int64_t plane = 0; plane < count * c_.in; ++plane) {
        float* to = x_grad + (first * c_.in + plane) * c_.h * c_.w + ys_[y].first * c_.w;
        for (std::int64_t q = 0; q < ys_[y].count; ++q, to += c_.stride_h * c_.w) {
          if (!reached) {
            clear_short(to, c_.w);
            continue;
          }
          for (std::size_t x = 0; x < xs_.size(); ++x)
            row[x] = of_row[x] ? of_row[x] + (plane * ys_[y].count + q) * xs_[x].count : nullptr;
          merge_row(row, parts, c_.w, to);
        }
      }
    }
  }

  const Conv& c_;
  const InstructionSet set_;
  const bool gathers_;  // the weights into panels
  const bool finite_;   // the weights are
  const std::vector<Phase> ys_, xs_;
  const Planes planes_;
  std::vector<Part> parts_;
};

}  // namespace

void conv_backward_data(const Conv& c, const float* grad, const float* weight, float* x_grad, InstructionSet set) {
  if (conv_detail::is_depthwise(c)) return conv_detail::depthwise_backward_data(c, grad, weight, x_grad, set);
  if (conv_detail::winograd_serves(c)) return conv_detail::winograd_backward_data(c, grad, weight, x_grad, set);
  conv_detail::product_backward_data(c, grad, weight, x_grad, set);
}

void conv_detail::product_backward_data(const Conv& c, const float* grad, const float* weight, float* x_grad,
                                        InstructionSet set) {
  ImageGradient(c, weight, set).run(grad, x_grad);
}

}  // namespace lockstep::cpu
