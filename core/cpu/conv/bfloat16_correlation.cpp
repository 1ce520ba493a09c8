#include "lockstep/core/cpu/conv/bfloat16_correlation.h"

#include <algorithm>

#include "lockstep/core/cpu/gemm/bfloat16_kernels.h"
#include "lockstep/core/cpu/gemm/bfloat16_panels.h"
#include "lockstep/core/cpu/gemm/operand.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::conv_detail {
namespace {

using gemm_detail::Bfloat16Kernels;
using gemm_detail::Bfloat16Panels;
using gemm_detail::Bfloat16Range;
using gemm_detail::Bfloat16Run;
using gemm_detail::divide_up;
using gemm_detail::kBfloat16Columns;
using gemm_detail::kBfloat16Rows;

constexpr std::int64_t kUnit = kBfloat16Columns / 2;  // positions that lie together
constexpr std::int64_t kMostTogether = 16;            // panels of positions that a panel of weights is used for at once
constexpr std::int64_t kTogetherBytes = 512 << 10;    // of their steps and sums, which stay in the second-level cache
constexpr std::int64_t kGatherRows = 4;               // whose products take as long as to gather a step
constexpr std::int64_t kTasksPerThread = 3;
constexpr std::int64_t kCopyElements = 32768;  // of a task
constexpr std::int64_t kChannelsAtOnce = 4;    // whose planes are still in the cache when they are looked at

// The units of one image, in order: where they read and where their results go. Positions lie as they do among the
// zeros around the image, with those between two rows, or without them: finding a unit's among those takes a little
// time for each step, but then no row of weights is multiplied with what is left out.
class Units {
 public:
  explicit Units(const Bfloat16Correlation& c) {
    const std::int64_t pitch = c.planes.pitch, all = (c.oh - 1) * pitch + c.ow, positions = c.oh * c.ow;
    const std::int64_t widest = kUnit - 1 + divide_up(kUnit - 1, c.ow) * (pitch - c.ow);  // between two of a unit
    gathers_ = widest < gemm_detail::kReadLanes && (all - positions) * c.rows > kGatherRows * positions;
    const std::int64_t end = gathers_ ? positions : all, width = gathers_ ? c.ow : pitch;
    for (std::int64_t begin = 0; begin < end; begin += kUnit) {
      const std::int64_t base = begin / width * pitch + begin % width;
      bases_.push_back(base);
      first_.push_back(runs_.size());
      for (std::int64_t lane = 0; lane < gemm_detail::kReadLanes; ++lane) {
        const std::int64_t position = begin + lane, y = position / width, x = position % width;
        const bool counts = lane < kUnit && position < end;
        if (gathers_) lanes_.push_back(counts ? static_cast<std::uint16_t>(y * pitch + x - base) : 0);
        if (counts && x < c.ow) add(lane, y * c.out_row + x * c.out_column - lane * c.out_column);
      }
    }
    first_.push_back(runs_.size());
  }

  std::int64_t count() const { return static_cast<std::int64_t>(bases_.size()); }
  /// From where in an image unit `index` reads, and which elements from there on; null: neighbours.
  std::int64_t base(std::int64_t index) const { return bases_[static_cast<std::size_t>(index)]; }
  const std::uint16_t* lanes(std::int64_t index) const {
    return gathers_ ? lanes_.data() + index * gemm_detail::kReadLanes : nullptr;
  }
  const Bfloat16Run* first_run(std::int64_t index) const {
    return runs_.data() + first_[static_cast<std::size_t>(index)];
  }

 private:
  // Lane 0 of the run would go to `at`, which may lie before the image.
  void add(std::int64_t lane, std::int64_t at) {
    if (runs_.size() == first_.back() || runs_.back().at != at) runs_.push_back({0, at});
    runs_.back().mask = static_cast<std::uint16_t>(runs_.back().mask | 1U << lane);
  }

  bool gathers_;
  std::vector<std::int64_t> bases_;
  std::vector<std::uint16_t> lanes_;
  std::vector<Bfloat16Run> runs_;
  std::vector<std::size_t> first_;  // of each unit's runs; one more than there are units
};

class Runner {
 public:
  Runner(const Bfloat16Correlation& c, const Bfloat16Images& images)
      : c_(c), images_(images), kernels_(*gemm_detail::bfloat16_kernels()), units_(c) {
    const auto taps = static_cast<std::int64_t>(c.taps.size());
    inner_ = c.planes.channels * taps;
    offsets_.reserve(static_cast<std::size_t>(inner_));
    for (std::int64_t channel = 0; channel < c.planes.channels; ++channel)
      for (const Tap& tap : c.taps)
        offsets_.push_back(static_cast<std::int32_t>(channel * c.planes.plane() + c.planes.offset(tap.y, tap.x)));
    for (std::int64_t group = 0; group < c.groups; ++group) weights_.emplace_back(c.rows, kBfloat16Rows, inner_);
    const std::int64_t panels = weights_.front().count();
    parallel_for(c.groups * panels, std::max<std::int64_t>(1, kCopyElements / (inner_ * kBfloat16Rows)),
                 [&](std::int64_t begin, std::int64_t end) {
                   const Tensor room = empty({c.gather ? kBfloat16Rows * inner_ : 0}, {.dtype = kBFloat16});
                   for (std::int64_t i = begin; i < end; ++i) pack_weights(i / panels, i % panels, room);
                 });
  }

  bool fits() const {
    for (const Bfloat16Panels& weights : weights_)
      for (std::int64_t panel = 0; panel < weights.count(); ++panel)
        for (std::int64_t block = 0; block < weights.blocks(); ++block)
          if (!gemm_detail::fits(weights.range(panel, block), images_.range)) return false;
    return true;
  }

  void run() const {
    const std::int64_t block = gemm_detail::inner_block(inner_), panels = divide_up(c_.n * units_.count(), 2);
    const std::int64_t together = std::clamp<std::int64_t>(
        kTogetherBytes / (4 * kBfloat16Columns * (divide_up(std::min(block, inner_), 2) + c_.rows)), 1, kMostTogether);
    const std::int64_t tasks = num_threads() == 1 ? 1 : kTasksPerThread * num_threads();
    const std::int64_t part = divide_up(divide_up(c_.groups * panels, tasks), together) * together;
    const std::int64_t parts = divide_up(panels, part);
    parallel_for(c_.groups * parts, 1, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t steps = divide_up(std::min(block, inner_), 2) * kBfloat16Columns;
      const std::int64_t sums = c_.rows * kBfloat16Columns;
      const Tensor space = empty({together * (steps + sums)});
      const Work work{reinterpret_cast<std::uint32_t*>(space.data<float>()), steps,
                      space.data<float>() + together * steps, sums};
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t stop = std::min(panels, (task % parts + 1) * part);
        for (std::int64_t panel = task % parts * part; panel < stop; panel += together)
          compute(work, task / parts, panel, std::min(together, stop - panel));
      }
    });
  }

 private:
  struct Work {
    std::uint32_t* steps;  // of each panel of positions
    std::int64_t steps_size;
    float* sums;
    std::int64_t sums_size;
  };

  // Of the unit `number`, counted through all images.
  struct Unit {
    std::int64_t image, index;
  };
  Unit unit(std::int64_t number) const { return {number / units_.count(), number % units_.count()}; }

  void pack_weights(std::int64_t group, std::int64_t panel, const Tensor& room) {
    Bfloat16Panels& weights = weights_[static_cast<std::size_t>(group)];
    const std::int64_t first = group * c_.rows + weights.first_of(panel);
    if (c_.gather) c_.gather(first, weights.lanes_of(panel), room.data<BFloat16>());
    weights.pack_panel(kernels_, panel, c_.gather ? room.data<BFloat16>() : c_.weights + first * inner_, inner_, 1);
  }

  const BFloat16* read_from(std::int64_t group, Unit u) const {
    return images_.data + group * images_.group + u.image * images_.image + units_.base(u.index);
  }

  void compute(const Work& work, std::int64_t group, std::int64_t first, std::int64_t count) const {
    const Bfloat16Panels& weights = weights_[static_cast<std::size_t>(group)];
    const std::int64_t all = c_.n * units_.count();
    for (std::int64_t block = 0, step = 0; block < weights.blocks(); step += weights.steps_of(block), ++block) {
      for (std::int64_t p = 0; p < count; ++p) {
        const Unit left = unit(2 * (first + p)), right = unit(std::min(2 * (first + p) + 1, all - 1));
        kernels_.pack_positions({{read_from(group, left), read_from(group, right)},
                                 {units_.lanes(left.index), units_.lanes(right.index)},
                                 images_.end},
                                offsets_.data() + step, weights.steps_of(block), work.steps + p * work.steps_size);
      }
      for (std::int64_t i = 0; i < weights.count(); ++i)
        for (std::int64_t p = 0; p < count; ++p)
          kernels_.paired[weights.lanes_of(i)](weights.at(i, block), work.steps + p * work.steps_size,
                                               weights.steps_of(block),
                                               work.sums + p * work.sums_size + weights.first_of(i) * kBfloat16Columns,
                                               kBfloat16Columns, kBfloat16Columns, block > 0);
    }
    for (std::int64_t p = 0; p < count; ++p) {
      gemm_detail::Bfloat16Results results{.sums = work.sums + p * work.sums_size,
                                           .rows = c_.rows,
                                           .bias = c_.bias ? c_.bias + group * c_.rows : nullptr,
                                           .relu = c_.relu,
                                           .out = {},
                                           .out_row = c_.out_plane,
                                           .step = c_.out_column,
                                           .first = {},
                                           .end = {}};
      for (std::int64_t v = 0; v < 2; ++v) {
        const std::int64_t number = 2 * (first + p) + v;
        if (number >= all) continue;
        const Unit u = unit(number);
        results.out[v] = c_.out + u.image * c_.out_image + group * c_.out_group;
        results.first[v] = units_.first_run(u.index);
        results.end[v] = units_.first_run(u.index + 1);
      }
      kernels_.finish(results);
    }
  }

  const Bfloat16Correlation& c_;
  const Bfloat16Images& images_;
  const Bfloat16Kernels& kernels_;
  const Units units_;
  std::int64_t inner_;
  std::vector<std::int32_t> offsets_;  // of each step, from where a position reads
  std::vector<Bfloat16Panels> weights_;
};

}  // namespace

Bfloat16Range bfloat16_range(std::int64_t count, std::int64_t block,
                             const std::function<Bfloat16Range(std::int64_t, std::int64_t)>& see) {
  std::vector<Bfloat16Range> ranges(static_cast<std::size_t>(divide_up(count, block)));
  parallel_for(static_cast<std::int64_t>(ranges.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      ranges[static_cast<std::size_t>(i)] = see(i * block, std::min(count, (i + 1) * block));
  });
  Bfloat16Range all;
  for (const Bfloat16Range& range : ranges) all.add(range);
  return all;
}

Bfloat16Range bfloat16_range(const BFloat16* data, std::int64_t count) {
  return bfloat16_range(count, kCopyElements, [&](std::int64_t begin, std::int64_t end) {
    return gemm_detail::bfloat16_kernels()->range(data + begin, end - begin);
  });
}

Bfloat16Images bfloat16_images(const Planes& planes, const BFloat16* images, std::int64_t n, std::int64_t groups) {
  const std::int64_t in_group = planes.channels * planes.h * planes.w, all = n * groups * in_group;
  if (!planes.copied) return {images, groups * in_group, in_group, images + all, bfloat16_range(images, all), {}};
  const std::int64_t size = planes.size();
  const Tensor copy = empty({n * groups * size}, {.dtype = kBFloat16});
  BFloat16* const to = copy.data<BFloat16>();
  const auto copy_channels = [&](std::int64_t begin, std::int64_t end) {
    Bfloat16Range range;
    while (begin < end) {
      const std::int64_t image = begin / planes.channels, channel = begin % planes.channels;
      const std::int64_t count = std::min({planes.channels - channel, end - begin, kChannelsAtOnce});
      planes.copy(images + image * in_group, to + image * size, channel, channel + count);
      range.add(
          gemm_detail::bfloat16_kernels()->range(to + image * size + channel * planes.plane(), count * planes.plane()));
      begin += count;
    }
    return range;
  };
  const Bfloat16Range range = bfloat16_range(n * groups * planes.channels,
                                             std::max<std::int64_t>(1, kCopyElements / planes.plane()), copy_channels);
  return {to, groups * size, size, to + n * groups * size, range, copy};
}

bool Bfloat16Correlation::run(const Bfloat16Images& images) const {
  const Runner runner(*this, images);
  if (!runner.fits()) return false;
  runner.run();
  return true;
}

}  // namespace lockstep::cpu::conv_detail
