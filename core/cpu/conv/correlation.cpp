#include "lockstep/core/cpu/conv/correlation.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "lockstep/core/cpu/conv/eight_positions.h"
#include "lockstep/core/cpu/conv/read_positions.h"
#include "lockstep/core/cpu/gemm/micro_kernels.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::conv_detail {
namespace {

using gemm_detail::MicroKernels;
using gemm_detail::Run;
using gemm_detail::Tile;

constexpr std::int64_t kGroupPanels = 16;        // to a task, at most, where images are few
constexpr std::int64_t kBlockPositions = 512;    // of the images of a task, at least
constexpr std::int64_t kBorderPositions = 1024;  // the same where steps are left out: the longer a row, the more
constexpr std::int64_t kBlockWeights = 1 << 16;  // that leave room in the second-level cache
constexpr std::int64_t kTasksPerThread = 3;
constexpr std::int64_t kWorth = 16;  // one step of so many beside the image is worth leaving out
// What vectors read beyond the last position that counts is not used, but must be there.
constexpr std::int64_t kSlack = 16;

std::int64_t divide_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}

// Without a call.
[[gnu::always_inline]] inline void copy_short(const float* from, std::int64_t count, float* to) {
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) store8(to + j, load8(from + j));
  if (j == count) return;
  if (count >= kLanes) return store8(to + count - kLanes, load8(from + count - kLanes));
  for (; j < count; ++j) to[j] = from[j];
}

class Runner {
 public:
  Runner(const Correlation& c, InstructionSet set, const std::vector<std::int32_t>& offsets)
      : c_(c),
        kernels_(gemm_detail::micro_kernels<float>(set)),
        inner_(gemm_detail::inner_block(c.inner())),
        positions_(c.oh * c.ow),
        weights_panels_(set, c.rows),
        vectors_(weights_panels_.vectors),
        width_(vectors_ * kernels_.lanes),
        row_panels_(weights_panels_.count),
        panel_rows_(weights_panels_.panel_rows),
        offsets_(offsets),
        by_blocks_(c.inner() > inner_ && c.rows * inner_ <= kBlockWeights),
        wide_(set == InstructionSet::avx512) {
    const auto taps = static_cast<std::int64_t>(c.taps.size());
    std::int64_t inside = 0;
    for (std::int64_t y = 0; y < c.oh; ++y) inside += taps_inside(y, y).size();
    sees_border_ = kWorth * inside < (kWorth - 1) * taps * c.oh;
  }

  // weights: [row][inner]
  void pack_weights(const float* weights) {
    const std::int64_t inner = c_.inner(), padded = weights_panels_.padded;
    packed_ = empty({weights_panels_.size(inner)});
    float* const packed = packed_.data<float>();
    use_packed(packed, 0, sees_border_ && all_finite(weights, c_.rows * inner));
    parallel_for(row_panels_, std::max<std::int64_t>(1, 65536 / (inner * panel_rows_)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i)
                     for (std::int64_t k = 0; k < inner; k += inner_)
                       kernels_.pack_columns(weights + i * panel_rows_ * inner + k, inner, std::min(inner_, inner - k),
                                             rows(i), packed + (i * inner + k) * padded, padded);
                 });
  }
  void use_packed(const float* weights, std::int64_t columns, bool finite) {
    weights_ = weights;
    weights_step_ = columns > 0 ? columns : weights_panels_.padded;
    weights_panel_ = columns > 0 ? panel_rows_ : c_.inner() * weights_panels_.padded;
    leaves_out_ = sees_border_ && finite;
  }

  void run(const ConvSink* sink) const {
    // Blocks of images; where these are few, their positions are cut too. Neither matters to the bits.
    const std::int64_t per_block =
        std::clamp<std::int64_t>((leaves_out_ ? kBorderPositions : kBlockPositions) / positions_, 1, c_.n);
    const std::int64_t blocks = divide_up(c_.n, per_block), tasks = kTasksPerThread * num_threads();
    const bool many = sink || num_threads() == 1 || blocks >= tasks;
    const std::int64_t panels = blocks * divide_up(per_block * positions_, width_);
    const std::int64_t group = std::clamp<std::int64_t>(many ? kGroupPanels : panels / tasks, 1, kGroupPanels) * width_;
    const std::int64_t groups = many ? 1 : divide_up(per_block * positions_, group);
    const Tensor shared = groups > 1 && c_.planes.copied ? copied() : Tensor();
    parallel_for(blocks * groups, 1, [&](std::int64_t begin, std::int64_t end) {
      Work work(*this, shared.defined() ? 0 : per_block, sink);
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t first = task / groups * per_block, count = std::min(per_block, c_.n - first);
        const std::int64_t columns = count * positions_, start = task % groups * group;
        if (start >= columns) continue;
        const float* images = c_.images + first * c_.image_stride;
        if (shared.defined()) {
          images = shared.data<float>() + first * c_.planes.size();
        } else if (c_.planes.copied) {
          for (std::int64_t i = 0; i < count; ++i)
            c_.planes.copy(images + i * c_.image_stride, work.padded + i * c_.planes.size());
          images = work.padded;
        }
        float* out = sink ? work.values : c_.out + first * c_.out_image;
        for (std::int64_t j = start; j < (groups == 1 ? columns : std::min(columns, start + group)); j += group)
          column_group(work, images, j, std::min(group, columns - j), columns, out);
        if (sink) (*sink)(first, count, out);
      }
    });
  }

 private:
  // All images as the planes lay them out.
  Tensor copied() const {
    const Tensor to = empty({c_.n * c_.planes.size() + kSlack});
    std::fill_n(to.data<float>() + c_.n * c_.planes.size(), kSlack, 0.0f);
    parallel_for(c_.n * c_.planes.channels, std::max<std::int64_t>(1, 16384 / c_.planes.plane()),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t image = i / c_.planes.channels, channel = i % c_.planes.channels;
                     c_.planes.copy(c_.images + image * c_.image_stride, to.data<float>() + image * c_.planes.size(),
                                    channel, channel + 1);
                   }
                 });
    return to;
  }

  struct Range {
    std::int64_t begin, end;
    std::int64_t size() const { return end - begin; }
  };

  // Of the positions of a group.
  struct Panel {
    std::int64_t first, columns;
    bool direct;   // its results are neighbours where they belong; else they are put there from a tile
    bool in_runs;  // few rows read what they need where it lies
    float* to;
    std::int64_t stride;
    Range inside;  // taps
  };

  struct Work {
    Work(const Runner& r, std::int64_t images, const ConvSink* sink) {
      const std::int64_t size_padded = r.c_.planes.copied ? images * r.c_.planes.size() + kSlack : 0;
      const std::int64_t size_panel = r.width_ * std::min(r.inner_, r.c_.inner());
      const std::int64_t size_tile = (r.by_blocks_ ? kGroupPanels : 1) * r.c_.rows * r.width_;
      const std::int64_t size_values = sink ? images * r.c_.rows * r.positions_ : 0;
      space = empty({size_panel + size_tile + size_padded + size_values});
      panel = space.data<float>();
      tile = panel + size_panel;
      padded = tile + size_tile;
      values = padded + size_padded;
      if (size_padded) std::fill_n(padded + size_padded - kSlack, kSlack, 0.0f);
    }
    Tensor space;
    float *panel, *tile, *padded, *values;
    ReadPositions reads;
    std::vector<std::int64_t> outs;  // where each position's result goes
    std::vector<std::int64_t> ys;    // its row
    std::vector<Run> runs;
    std::vector<Panel> panels;
  };

  // Of the taps, those that read inside the image for some of the rows [first, last] of results. Taps rise or fall, so
  // these are neighbours.
  Range taps_inside(std::int64_t first, std::int64_t last) const {
    const auto taps = static_cast<std::int64_t>(c_.taps.size());
    const std::int64_t low = c_.planes.top - last * c_.planes.step_h;
    const std::int64_t high = c_.planes.h + c_.planes.top - first * c_.planes.step_h;
    const auto inside = [&](std::int64_t tap) {
      const std::int64_t y = c_.taps[static_cast<std::size_t>(tap)].y;
      return y >= low && y < high;
    };
    Range range{0, taps};
    while (range.begin < range.end && !inside(range.begin)) ++range.begin;
    while (range.begin < range.end && !inside(range.end - 1)) --range.end;
    return range;
  }

  // The steps of [k0, k0 + steps) whose taps are among `inside`, as runs; from the first of them, which is returned.
  // No runs: all steps.
  std::int64_t runs_of(Work& work, Range inside, std::int64_t k0, std::int64_t steps) const {
    const auto taps = static_cast<std::int64_t>(c_.taps.size());
    work.runs.clear();
    if (inside.size() == 0 || inside.size() == taps) return k0;
    std::int64_t first = k0, end = k0;
    for (std::int64_t c = k0 / taps * taps; c < k0 + steps; c += taps) {
      const Range part{std::max(k0, c + inside.begin), std::min(k0 + steps, c + inside.end)};
      if (part.size() <= 0) continue;
      if (work.runs.empty())
        first = part.begin;
      else
        work.runs.back().skip = (part.begin - end) * weights_step_;
      work.runs.push_back({part.size(), 0});
      end = part.end;
    }
    return first;
  }

  std::int64_t rows(std::int64_t panel) const { return std::min(panel_rows_, c_.rows - panel * panel_rows_); }

  void column_group(Work& work, const float* images, std::int64_t first, std::int64_t count, std::int64_t end,
                    float* out) const {
    locate(work, first, count, end);
    const std::int64_t inner = c_.inner(), panels = divide_up(count, width_);
    work.panels.clear();
    for (std::int64_t p = 0; p < panels; ++p)
      work.panels.push_back(panel_of(work, p, std::min(width_, count - p * width_), out));
    // A panel is used by all rows while it is in the first-level cache, and weights by all panels while they are in the
    // second.
    const std::int64_t together = by_blocks_ ? panels : 1;
    for (std::int64_t p0 = 0; p0 < panels; p0 += together)
      for (std::int64_t k0 = 0; k0 < inner; k0 += inner_)
        for (std::int64_t p = p0; p < p0 + together; ++p) {
          const Panel& panel = work.panels[static_cast<std::size_t>(p)];
          add_block(work, panel, images, k0);
          if (k0 + inner_ >= inner && !panel.direct) scatter(work, panel, out);
        }
  }

  Panel panel_of(const Work& work, std::int64_t number, std::int64_t columns, float* out) const {
    const std::int64_t first = number * width_;
    const bool direct = in_place(work, first, columns);
    float* const tile = work.tile + (by_blocks_ ? number * c_.rows * width_ : 0);
    const auto ys = work.ys.begin() + first;
    const auto [lowest, highest] = std::minmax_element(ys, ys + columns);
    return {
        .first = first,
        .columns = columns,
        .direct = direct,
        .in_runs = c_.rows <= kFewRows && !sees_border_ && work.reads.all_runs(first, width_),
        .to = direct ? out + work.outs[static_cast<std::size_t>(first)] : tile,
        .stride = direct ? c_.out_plane : width_,
        .inside = leaves_out_ ? taps_inside(*lowest, *highest) : Range{0, static_cast<std::int64_t>(c_.taps.size())}};
  }

  // Adds the block of steps from k0 on to a panel's results.
  void add_block(Work& work, const Panel& panel, const float* images, std::int64_t k0) const {
    const std::int64_t steps = std::min(inner_, c_.inner() - k0);
    const bool last = k0 + steps >= c_.inner();
    const float* const bias = last ? c_.bias : nullptr;
    const bool relu = last && c_.relu;
    if (panel.in_runs)
      return few_rows({images, offsets_.data() + k0, steps, weights_ + k0 * weights_step_, weights_step_, panel.to,
                       panel.stride, k0 > 0, bias, relu},
                      c_.rows, work.reads.eights() + panel.first / 8, width_ / 8);
    const std::int64_t start = runs_of(work, panel.inside, k0, steps);
    if (work.runs.empty()) work.reads.pack(panel.first, width_, images, offsets_.data() + k0, steps, work.panel);
    std::int64_t from = start;
    float* to_panel = work.panel;
    for (const Run& run : work.runs) {
      work.reads.pack(panel.first, width_, images, offsets_.data() + from, run.k, to_panel);
      from += run.k + run.skip / weights_step_;
      to_panel += run.k * width_;
    }
    Tile<float> tile{};
    tile.alpha = 1;
    tile.beta = k0 == 0 ? 0.0f : 1.0f;
    tile.a_row = 1;
    tile.a_step = weights_step_;
    tile.b = work.panel;
    tile.b_step = width_;
    tile.k = steps;
    tile.runs = work.runs.empty() ? nullptr : work.runs.data();
    tile.run_count = static_cast<std::int64_t>(work.runs.size());
    tile.plus_zero = sees_border_;
    tile.columns = panel.columns;
    tile.out_stride = panel.stride;
    tile.relu = relu;
    const auto vectors = static_cast<std::size_t>(divide_up(panel.columns, kernels_.lanes));
    for (std::int64_t i = 0; i < row_panels_; ++i) {
      tile.a = weights_ + i * weights_panel_ + start * weights_step_;
      tile.row_bias = bias ? bias + i * panel_rows_ : nullptr;
      tile.out = panel.to + i * panel_rows_ * panel.stride;
      kernels_.table[0][vectors][rows(i)](tile);
    }
  }

  bool in_place(const Work& work, std::int64_t first, std::int64_t columns) const {
    const std::int64_t* const outs = work.outs.data() + first;
    for (std::int64_t j = 1; j < columns; ++j)
      if (outs[j] != outs[0] + j) return false;
    return true;
  }

  void scatter(const Work& work, const Panel& panel, float* out) const {
    const std::int64_t* const outs = work.outs.data() + panel.first;
    for (std::int64_t first = 0, end = 0; first < panel.columns; first = end) {  // neighbours are copied together
      for (end = first + 1; end < panel.columns && outs[end] == outs[first] + end - first;) ++end;
      const float* from = panel.to + first;
      float* to = out + outs[first];
      for (std::int64_t m = 0; m < c_.rows; ++m, from += width_, to += c_.out_plane) copy_short(from, end - first, to);
    }
  }

  // Where the positions [first, first + count) of a block read and write; `end` is the block's.
  void locate(Work& work, std::int64_t first, std::int64_t count, std::int64_t end) const {
    const std::int64_t padded = divide_up(count, width_) * width_;
    const std::int64_t image_size = c_.planes.copied ? c_.planes.size() : c_.image_stride;
    std::vector<std::int32_t> bases(static_cast<std::size_t>(padded), -1);
    work.outs.assign(static_cast<std::size_t>(padded), 0);
    work.ys.assign(static_cast<std::size_t>(padded), 0);
    // Where taps are left out, positions of all images go row by row, so that those of a panel see the same taps.
    const std::int64_t images = end / positions_;
    for (std::int64_t j = 0; j < std::min(count, end - first); ++j) {
      const std::int64_t at = first + j, x = at % c_.ow;
      const std::int64_t image = leaves_out_ ? at / c_.ow % images : at / positions_;
      const std::int64_t y = leaves_out_ ? at / (c_.ow * images) : at / c_.ow % c_.oh;
      work.ys[static_cast<std::size_t>(j)] = y;
      bases[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(image * image_size + y * c_.planes.pitch + x);
      work.outs[static_cast<std::size_t>(j)] = image * c_.out_image + y * c_.out_row + x * c_.out_column;
    }
    work.reads.set(bases, wide_);
  }

  const Correlation& c_;
  const MicroKernels<float>& kernels_;
  const std::int64_t inner_, positions_;
  const WeightPanels weights_panels_;
  const std::int64_t vectors_, width_, row_panels_, panel_rows_;
  Tensor packed_;
  // Results see elements beside the image that are worth leaving out. They are zeros, so the bits stay, but for an
  // infinite weight and for the sign of a sum that is 0 because it underflows; sums then end with + 0.
  bool sees_border_ = false, leaves_out_ = false;
  const float* weights_ = nullptr;
  std::int64_t weights_step_ = 0, weights_panel_ = 0;
  const std::vector<std::int32_t>& offsets_;  // of each k, from where a position reads
  const bool by_blocks_;                      // of steps go all panels of a group, else panel by panel
  const bool wide_;                           // AVX-512
};

}  // namespace

void Correlation::run(InstructionSet set, const float* weights, const ConvSink* sink) const {
  const std::vector<std::int32_t> offsets = input_offsets();
  Runner runner(*this, set, offsets);
  runner.pack_weights(weights);
  runner.run(sink);
}

void Correlation::run_packed(InstructionSet set, const float* weights, std::int64_t columns, bool finite,
                             const std::vector<std::int32_t>& offsets) const {
  Runner runner(*this, set, offsets);
  runner.use_packed(weights, columns, finite);
  runner.run(nullptr);
}

WeightPanels::WeightPanels(InstructionSet set, std::int64_t rows) {
  const auto& kernels = gemm_detail::micro_kernels<float>(set);
  vectors = rows <= kernels.rows[4] ? 4 : rows <= kernels.rows[3] ? 3 : 2;
  count = divide_up(rows, kernels.rows[static_cast<std::size_t>(vectors)]);
  panel_rows = divide_up(rows, count);
  padded = divide_up(panel_rows, kernels.lanes) * kernels.lanes;
}

bool all_finite(const float* values, std::int64_t count) {
  constexpr std::int32_t kExponent = 0x7f800000;
  std::atomic<bool> finite = true;
  parallel_for(count, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    std::int32_t strange = 0;
    for (std::int64_t i = begin; i < end; ++i)
      strange |= (std::bit_cast<std::int32_t>(values[i]) & kExponent) == kExponent ? 1 : 0;
    if (strange) finite = false;
  });
  return finite;
}

std::vector<std::int32_t> Correlation::input_offsets() const {
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(inner()));
  for (std::size_t t = 0; t < taps.size(); ++t)
    offsets[t] = static_cast<std::int32_t>(planes.offset(taps[t].y, taps[t].x));
  const auto plane = static_cast<std::int32_t>(planes.plane());
  for (std::size_t i = taps.size(); i < offsets.size(); ++i) offsets[i] = offsets[i - taps.size()] + plane;
  return offsets;
}

}  // namespace lockstep::cpu::conv_detail
