#include "lockstep/core/cpu/conv/correlation.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "lockstep/core/check.h"
#include "lockstep/core/cpu/all_finite.h"
#include "lockstep/core/cpu/conv/eight_positions.h"
#include "lockstep/core/cpu/conv/positions.h"
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
constexpr std::int64_t kShortPanel = 1 << 12;  // elements of tiles that are computed by one call, which takes time too
constexpr std::int64_t kMostElements = std::numeric_limits<std::int32_t>::max();  // that positions tell apart
constexpr std::int64_t kTasksPerThread = 3;
constexpr std::int64_t kWorth = 16;  // one step of so many beside the image is worth leaving out
// What vectors read beyond the last position that counts is not used, but must be there.
constexpr std::int64_t kSlack = 16;

std::int64_t divide_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
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
        tiles_together_(
            c.rows <= kFewRows ? 1 : std::clamp<std::int64_t>(kShortPanel / (width_ * c.inner()), 1, kGroupPanels)),
        wide_(set == InstructionSet::avx512) {
    const auto taps = static_cast<std::int64_t>(c.taps.size());
    std::int64_t inside = 0;
    for (std::int64_t y = 0; y < c.oh; ++y) inside += taps_inside(y, y).size();
    sees_border_ = kWorth * inside < (kWorth - 1) * taps * c.oh;
  }

  // weights: [group][row][inner]
  void pack_weights(const float* weights) {
    const std::int64_t inner = c_.inner(), padded = weights_panels_.padded, size = weights_panels_.size(inner);
    packed_ = empty({c_.groups * size});
    float* const packed = packed_.data<float>();
    use_packed(packed, 0, sees_border_ && all_finite(weights, c_.groups * c_.rows * inner));
    parallel_for(c_.groups * row_panels_, std::max<std::int64_t>(1, 65536 / (inner * panel_rows_)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t p = begin; p < end; ++p) {
                     const std::int64_t group = p / row_panels_, i = p % row_panels_;
                     const float* const from = weights + (group * c_.rows + i * panel_rows_) * inner;
                     float* const to = packed + group * size + i * inner * padded;
                     for (std::int64_t k = 0; k < inner; k += inner_)
                       kernels_.pack_columns(from + k, inner, std::min(inner_, inner - k), rows(i), to + k * padded,
                                             padded);
                   }
                 });
  }
  void use_packed(const float* weights, std::int64_t columns, bool finite) {
    weights_ = weights;
    weights_step_ = columns > 0 ? columns : weights_panels_.padded;
    weights_panel_ = columns > 0 ? panel_rows_ : c_.inner() * weights_panels_.padded;
    weights_group_ = columns > 0 ? c_.inner() * columns : weights_panels_.size(c_.inner());
    leaves_out_ = sees_border_ && finite;
  }

  void run(const ConvSink* sink) const {
    // Blocks of images; where these are few, their positions are cut too. Neither matters to the bits.
    const std::int64_t most = kMostElements / std::max(c_.planes.size(), c_.image_stride);
    const std::int64_t per_block = std::clamp<std::int64_t>(
        (leaves_out_ ? kBorderPositions : kBlockPositions) / positions_, 1, std::min(c_.n, most));
    const std::int64_t blocks = divide_up(c_.n, per_block), tasks = kTasksPerThread * num_threads();
    const bool many = sink || num_threads() == 1 || c_.groups * blocks >= tasks;
    const Positions whole(c_, per_block, leaves_out_, width_, wide_);
    const std::int64_t last = c_.n - (blocks - 1) * per_block;
    const std::optional<Positions> partial =
        last == per_block ? std::optional<Positions>()
                          : std::optional<Positions>(std::in_place, c_, last, leaves_out_, width_, wide_);
    const std::int64_t panels = divide_up(whole.count(), width_);
    const std::int64_t part =
        many ? panels : std::clamp<std::int64_t>(c_.groups * blocks * panels / tasks, 1, kGroupPanels);
    const std::int64_t parts = divide_up(panels, part);
    const Tensor shared = parts > 1 && c_.planes.copied ? copied() : Tensor();
    parallel_for(c_.groups * blocks * parts, 1, [&](std::int64_t begin, std::int64_t end) {
      Work work(*this, shared.defined() ? 0 : per_block, sink);
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t group = task / parts / blocks, block = task / parts % blocks, from = task % parts * part;
        const std::int64_t first = block * per_block, count = std::min(per_block, c_.n - first);
        const Positions& positions = count == per_block ? whole : *partial;
        const std::int64_t stop = std::min(from + part, divide_up(positions.count(), width_));
        if (from >= stop) continue;
        const float* images = c_.images + first * c_.image_stride + group * c_.image_group;
        if (shared.defined()) {
          images = shared.data<float>() + (group * c_.n + first) * c_.planes.size();
        } else if (c_.planes.copied) {
          for (std::int64_t i = 0; i < count; ++i)
            c_.planes.copy(images + i * c_.image_stride, work.padded + i * c_.planes.size());
          images = work.padded;
        }
        float* out = sink ? work.values : c_.out + first * c_.out_image + group * c_.out_group;
        const Block all{positions, weights_ + group * weights_group_, c_.bias ? c_.bias + group * c_.rows : nullptr,
                        images, out};
        for (std::int64_t panel = from; panel < stop; panel += kGroupPanels)
          compute(work, all, panel, std::min(stop, panel + kGroupPanels));
        if (sink) (*sink)(first, count, out);
      }
    });
  }

 private:
  // All images as the planes lay them out, group by group.
  Tensor copied() const {
    const Tensor to = empty({c_.groups * c_.n * c_.planes.size() + kSlack});
    std::fill_n(to.data<float>() + to.numel() - kSlack, kSlack, 0.0f);
    parallel_for(c_.groups * c_.n * c_.planes.channels, std::max<std::int64_t>(1, 16384 / c_.planes.plane()),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t at = i / c_.planes.channels, channel = i % c_.planes.channels;
                     const float* const image = c_.images + at % c_.n * c_.image_stride + at / c_.n * c_.image_group;
                     c_.planes.copy(image, to.data<float>() + at * c_.planes.size(), channel, channel + 1);
                   }
                 });
    return to;
  }

  struct Range {
    std::int64_t begin, end;
    std::int64_t size() const { return end - begin; }
  };

  // Some images of a group of channels.
  struct Block {
    const Positions& positions;
    const float *weights, *bias, *images;
    float* out;
  };

  // Some of their positions.
  struct Panel {
    std::int64_t first, columns;
    std::int64_t tiles;  // whole ones, if there are several
    bool direct;         // its results are neighbours where they belong; else they are put there from a tile
    bool in_runs;        // few rows read what they need where it lies
    float* to;
    std::int64_t stride;
    Range inside;  // taps
  };

  struct Work {
    Work(const Runner& r, std::int64_t images, const ConvSink* sink) {
      const std::int64_t size_padded = r.c_.planes.copied ? images * r.c_.planes.size() + kSlack : 0;
      const std::int64_t size_panel = r.tiles_together_ * r.width_ * std::min(r.inner_, r.c_.inner());
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

  // Panels [first, end), kGroupPanels of them at most.
  void compute(Work& work, const Block& block, std::int64_t first, std::int64_t end) const {
    const std::int64_t inner = c_.inner(), panels = end - first;
    work.panels.clear();
    for (std::int64_t p = 0; p < panels; p += work.panels.back().tiles)
      work.panels.push_back(
          panel_of(block, first + p, panels - p, work.tile + (by_blocks_ ? p * c_.rows * width_ : 0)));
    // A panel is used by all rows while it is in the first-level cache, and weights by all panels while they are in the
    // second.
    const std::size_t count = work.panels.size(), together = by_blocks_ ? count : 1;
    for (std::size_t p0 = 0; p0 < count; p0 += together)
      for (std::int64_t k0 = 0; k0 < inner; k0 += inner_)
        for (std::size_t p = p0; p < p0 + together; ++p) {
          const Panel& panel = work.panels[p];
          add_block(work, block, panel, k0);
          if (k0 + inner_ >= inner && !panel.direct)
            block.positions.scatter(panel.first, panel.columns, panel.to, width_, block.out);
        }
  }

  // The panel that begins with tile `number`, of up to so many tiles.
  Panel panel_of(const Block& block, std::int64_t number, std::int64_t tiles, float* tile) const {
    const Positions& positions = block.positions;
    const std::int64_t first = number * width_, left = positions.count() - first;
    tiles = std::min({tiles, tiles_together_, left / width_});
    if (tiles < 2 || !positions.in_place(first, tiles * width_)) tiles = 1;
    const std::int64_t columns = std::min(tiles * width_, left);
    const bool direct = tiles > 1 || positions.in_place(first, columns);
    Range inside{0, static_cast<std::int64_t>(c_.taps.size())};
    if (leaves_out_) inside = taps_inside(positions.row_of(first), positions.row_of(first + columns - 1));
    return {.first = first,
            .columns = columns,
            .tiles = tiles,
            .direct = direct,
            .in_runs = c_.rows <= kFewRows && !sees_border_ && positions.reads().all_runs(first, width_),
            .to = direct ? block.out + positions.out_of(first) : tile,
            .stride = direct ? c_.out_plane : width_,
            .inside = inside};
  }

  // Adds the block of steps from k0 on to a panel's results.
  void add_block(Work& work, const Block& block, const Panel& panel, std::int64_t k0) const {
    const std::int64_t steps = std::min(inner_, c_.inner() - k0);
    const bool last = k0 + steps >= c_.inner();
    const float* const bias = last ? block.bias : nullptr;
    const bool relu = last && c_.relu;
    const ReadPositions& reads = block.positions.reads();
    if (panel.in_runs)
      return few_rows({block.images, offsets_.data() + k0, steps, block.weights + k0 * weights_step_, weights_step_,
                       panel.to, panel.stride, k0 > 0, bias, relu},
                      c_.rows, reads.eights() + panel.first / 8, width_ / 8);
    const std::int64_t start = runs_of(work, panel.inside, k0, steps);
    float* to = work.panel;
    for (std::int64_t t = 0; t < panel.tiles; ++t) {
      const auto pack = [&](std::int64_t from, std::int64_t count) {
        reads.pack(panel.first + t * width_, width_, block.images, offsets_.data() + from, count, to);
        to += count * width_;
      };
      if (work.runs.empty()) pack(k0, steps);
      std::int64_t from = start;
      for (const Run& run : work.runs) {
        pack(from, run.k);
        from += run.k + run.skip / weights_step_;
      }
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
    tile.tiles = panel.tiles;
    tile.columns = std::min(panel.columns, width_);
    tile.out_stride = panel.stride;
    tile.relu = relu;
    const auto vectors = static_cast<std::size_t>(divide_up(tile.columns, kernels_.lanes));
    for (std::int64_t i = 0; i < row_panels_; ++i) {
      tile.a = block.weights + i * weights_panel_ + start * weights_step_;
      tile.row_bias = bias ? bias + i * panel_rows_ : nullptr;
      tile.out = panel.to + i * panel_rows_ * panel.stride;
      kernels_.table[0][vectors][rows(i)](tile);
    }
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
  std::int64_t weights_step_ = 0, weights_panel_ = 0, weights_group_ = 0;
  const std::vector<std::int32_t>& offsets_;  // of each k, from where a position reads
  const bool by_blocks_;                      // of steps go all panels of a group, else panel by panel
  const std::int64_t tiles_together_;         // of a panel, where chains are short
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
  // Two panels a little too high for tiles of two vectors would have few sums to hide the latency of one.
  const bool two = rows > kernels.rows[2] && rows <= 2 * kernels.rows[3];
  vectors = rows <= kernels.rows[4] ? 4 : rows <= kernels.rows[3] || two ? 3 : 2;
  count = divide_up(rows, kernels.rows[static_cast<std::size_t>(vectors)]);
  panel_rows = divide_up(rows, count);
  padded = divide_up(panel_rows, kernels.lanes) * kernels.lanes;
}

std::vector<std::int32_t> Correlation::input_offsets() const {
  LOCKSTEP_CHECK(std::max(planes.size(), image_stride) <= kMostElements,
                 "[conv2d] an image of {} elements, with the zeros around it {}, is too large: at most {} can be told "
                 "apart; cut it into parts",
                 image_stride, planes.size(), kMostElements);
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(inner()));
  for (std::size_t t = 0; t < taps.size(); ++t)
    offsets[t] = static_cast<std::int32_t>(planes.offset(taps[t].y, taps[t].x));
  const auto plane = static_cast<std::int32_t>(planes.plane());
  for (std::size_t i = taps.size(); i < offsets.size(); ++i) offsets[i] = offsets[i - taps.size()] + plane;
  return offsets;
}

}  // namespace lockstep::cpu::conv_detail
