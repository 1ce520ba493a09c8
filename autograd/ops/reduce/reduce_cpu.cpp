#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/ops/reduce/reduce_fold.h"
#include "lockstep/autograd/ops/reduce/reduce_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce_plan.h"
#include "lockstep/autograd/ops/reduce/reduce_rows.h"
#include "lockstep/autograd/ops/reduce/reduce_terms.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/cpu/write_row.h"
#include "lockstep/core/elementwise_computation.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

using namespace reduce_fold;
using cpu::kRowChunk;

/// Note [Blocked sums]
/// A float sum of n terms in sequence is wrong by up to n rounding errors. Here at most kRowChunk terms over the lanes
/// of fold_chunk() (or kRowsPerFlush rows) meet in float; their sums meet in double. Long reductions are cut into
/// segments of kSegment elements whose partial results are combined in order, so the bits depend on the shape and
/// strides alone.
constexpr std::int64_t kSegment = 65536;
constexpr std::int64_t kRowsPerFlush = 32;
/// Elements to a parallel block.
constexpr std::int64_t kBlock = 32768;

/// A run of neighbouring terms; `buffer` has room for them.
template <typename R, typename C>
typename R::Total fold_run(const C* values, std::int64_t count, C about, C* buffer) {
  if constexpr (R::kMaps) {
    constexpr std::int64_t kShort = 64;  // what a call would cost too much for
    if (count <= kShort) {
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < count; ++i) buffer[i] = R::map(values[i], about);
    } else {
      cpu::write_row(buffer, count, [=](std::int64_t i) { return R::map(values[i], about); });
    }
    return fold_chunk<R>(static_cast<const C*>(buffer), count);
  } else {
    return fold_chunk<R>(values, count);
  }
}

/// The terms [begin, end) of the output whose first element has offset `base`.
template <typename R, typename C>
typename R::Total fold_terms(const ReducePlan& plan, const Terms& x, std::int64_t base, std::int64_t begin,
                             std::int64_t end, C about) {
  const std::int64_t width = plan.reduced.back();
  const std::int64_t stride = plan.reduced_strides.back();
  const bool direct = stride == 1 && x.dtype == dtype_of<C> && !x.reader;
  C buffer[kRowChunk];
  typename R::Total total = R::start();
  constexpr std::int64_t kMade = 4 * kRowChunk;  // terms that are made at a time
  C made[kMade];
  const C* next = made;
  for (std::int64_t left = 0; begin < end;) {
    const std::int64_t column = begin % width;
    const std::int64_t offset =
        base + ReducePlan::outer_offset(plan.reduced, plan.reduced_strides, begin / width) + column * stride;
    const std::int64_t length = std::min({width - column, end - begin, kRowChunk});
    const void* source = nullptr;
    if (x.reader) {
      if (left == 0) next = x.read<C>(offset, left = std::min(end - begin, kMade), made);
      source = next;
      next += length;
      left -= length;
    } else {
      source = cpu::element_address(x.data, offset, x.dtype);
      if (!direct) {
        cpu::load_row(x.dtype, source, stride, length, buffer);
        source = buffer;
      }
    }
    total = R::join(total, fold_run<R>(static_cast<const C*>(source), length, about, buffer));
    begin += length;
  }
  return total;
}

template <typename R, typename C>
C load_about(const Tensor* about, std::int64_t index) {
  if (!R::kMaps || !about) return C(0);
  C value = static_cast<const C*>(about->raw_data())[index];
  if constexpr (requires { R::shift(value); }) value = R::shift(value);
  return value;
}

template <typename C>
void store_one(const Tensor& out, std::int64_t index, C value) {
  cpu::store_row(&value, 1, out.dtype(), cpu::element_address(out.raw_data(), index, out.dtype()), 1);
}

/// Outputs [begin, end) of x's own type, whose terms are neighbours in memory.
template <typename R, typename C>
void reduce_near_rows(const ReducePlan& plan, const Terms& x, const Tensor* about, double divisor, const Tensor& out,
                      std::int64_t begin, std::int64_t end) {
  const C* const from = static_cast<const C*>(x.data);
  const C* const centres = about ? static_cast<const C*>(about->raw_data()) : nullptr;
  C* const to = static_cast<C*>(out.raw_data());
  const std::int64_t width = plan.kept.back(), stride = plan.kept_strides.back();
  for (std::int64_t first = begin; first < end;) {
    const C* const rows =
        from + ReducePlan::outer_offset(plan.kept, plan.kept_strides, first / width) + first % width * stride;
    const std::int64_t stop = std::min(end, (first / width + 1) * width);
    reduce_rows<R, C>(rows, stride, stop - first, plan.count, centres ? centres + first : nullptr, divisor, to + first);
    first = stop;
  }
}

/// The terms of one output lie close together: one output after the other.
template <typename R, typename C>
void reduce_along(const ReducePlan& plan, const Terms& x, const Tensor* about, double divisor, const Tensor& out) {
  const std::int64_t width = plan.kept.back();
  const auto base = [&](std::int64_t output) {
    return ReducePlan::outer_offset(plan.kept, plan.kept_strides, output / width) +
           output % width * plan.kept_strides.back();
  };
  const auto finish = [&](std::int64_t output, typename R::Total total) {
    store_one(out, output, R::finish(total, load_about<R, C>(about, output), divisor));
  };
  const std::int64_t segments = (plan.count + kSegment - 1) / kSegment;
  if (segments <= 1) {
    const std::int64_t terms = x.reader ? kBlock / 4 : kBlock;  // which take longer to make than to read
    const std::int64_t block = std::max<std::int64_t>(1, terms / std::max<std::int64_t>(plan.count, 1));
    const bool near_rows = plan.reduced.dim() == 1 && (plan.reduced_strides[0] == 1 || plan.count == 1) &&
                           plan.count > 0 && x.dtype == dtype_of<C> && out.dtype() == dtype_of<C>;
    parallel_for(plan.outputs, block, [&](std::int64_t begin, std::int64_t end) {
      if (near_rows && x.reader) return reduce_made_rows<R, C>(plan, x, about, divisor, out, begin, end);
      if (near_rows) return reduce_near_rows<R, C>(plan, x, about, divisor, out, begin, end);
      for (std::int64_t o = begin; o < end; ++o)
        finish(o, fold_terms<R>(plan, x, base(o), 0, plan.count, load_about<R, C>(about, o)));
    });
    return;
  }
  std::vector<typename R::Total> partial(static_cast<std::size_t>(plan.outputs * segments));
  parallel_for(plan.outputs * segments, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t o = i / segments;
      const std::int64_t first = i % segments * kSegment;
      partial[static_cast<std::size_t>(i)] =
          fold_terms<R>(plan, x, base(o), first, std::min(first + kSegment, plan.count), load_about<R, C>(about, o));
    }
  });
  for (std::int64_t o = 0; o < plan.outputs; ++o) {
    typename R::Total total = partial[static_cast<std::size_t>(o * segments)];
    for (std::int64_t s = 1; s < segments; ++s)
      total = R::join(total, partial[static_cast<std::size_t>(o * segments + s)]);
    finish(o, total);
  }
}

/// sums[i] of element i of each of the rows, in their order: some columns at a time, which stay in registers.
template <typename R, typename C>
void fold_columns_of(const C* const* row, std::int64_t count, std::int64_t width, C* sums) {
  using V = Vector<C>;
  std::int64_t at = 0;
  const auto strips = [&]<int kVectors>(std::integral_constant<int, kVectors>) {
    for (; at + kVectors * V::kLanes <= width; at += kVectors * V::kLanes) {
      typename V::Type lanes[kVectors];
      for (auto& lane : lanes) lane = V::all(R::start());
      for (std::int64_t r = 0; r < count; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) lanes[i] = R::fold_lanes(lanes[i], V::load(row[r] + at + i * V::kLanes));
      std::memcpy(sums + at, lanes, sizeof lanes);
    }
  };
  strips(std::integral_constant<int, 8>());
  strips(std::integral_constant<int, 2>());
  if (at == width) return;
  std::fill(sums + at, sums + width, R::start());
  for (std::int64_t r = 0; r < count; ++r) {
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = at; i < width; ++i) sums[i] = R::fold(sums[i], row[r][i]);
  }
}

/// The same of what R makes of elements and about[i].
template <typename R, typename C>
void fold_mapped_columns(const C* const* row, std::int64_t count, std::int64_t width, const C* about, C* sums) {
  cpu::by_widest_vectors([=] {
    std::fill_n(sums, width, R::start());
    for (std::int64_t r = 0; r < count; ++r) {
      const C* const values = row[r];
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < width; ++i) sums[i] = R::fold(sums[i], R::map(values[i], about[i]));
    }
  });
}

/// Folds rows [begin, end) of `width` neighbouring outputs, starting at offset `base`, into totals.
template <typename R, typename C>
void fold_columns(const ReducePlan& plan, const Terms& x, std::int64_t base, std::int64_t width, std::int64_t begin,
                  std::int64_t end, const C* about, typename R::Total* totals) {
  const std::int64_t stride = plan.kept_strides.back();
  const bool direct = stride == 1 && x.dtype == dtype_of<C>;
  const std::int64_t rows = plan.reduced.back();
  C sums[kRowChunk];
  C buffer[kRowChunk];
  std::vector<C> made(static_cast<std::size_t>(x.reader ? kRowsPerFlush * width : 0));
  std::fill_n(totals, width, static_cast<typename R::Total>(R::start()));
  for (std::int64_t r = begin; r < end;) {
    const std::int64_t flush = std::min(r + kRowsPerFlush, end);
    std::int64_t outer = ReducePlan::outer_offset(plan.reduced, plan.reduced_strides, r / rows);
    std::int64_t inner = r % rows;
    if (direct) {
      const C* row[kRowsPerFlush];
      const std::int64_t count = flush - r;
      for (std::int64_t i = 0; i < count; ++i, ++r, ++inner) {
        if (inner == rows) {
          outer = ReducePlan::outer_offset(plan.reduced, plan.reduced_strides, r / rows);
          inner = 0;
        }
        const std::int64_t offset = base + outer + inner * plan.reduced_strides.back();
        row[i] = x.reader ? x.read<C>(offset, width, made.data() + i * width) : static_cast<const C*>(x.data) + offset;
      }
      if constexpr (R::kMaps)
        fold_mapped_columns<R>(row, count, width, about, sums);
      else
        fold_columns_of<R>(row, count, width, sums);
      for (std::int64_t i = 0; i < width; ++i) totals[i] = R::join(totals[i], sums[i]);
      continue;
    }
    std::fill_n(sums, width, R::start());
    for (; r < flush; ++r, ++inner) {
      if (inner == rows) {
        outer = ReducePlan::outer_offset(plan.reduced, plan.reduced_strides, r / rows);
        inner = 0;
      }
      const void* source = cpu::element_address(x.data, base + outer + inner * plan.reduced_strides.back(), x.dtype);
      cpu::load_row(x.dtype, source, stride, width, buffer);
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < width; ++i) sums[i] = R::fold(sums[i], R::map(buffer[i], about[i]));
    }
    for (std::int64_t i = 0; i < width; ++i) totals[i] = R::join(totals[i], sums[i]);
  }
}

/// Neighbouring outputs lie close together: a strip of up to kRowChunk of them at a time, row by row.
template <typename R, typename C>
void reduce_across(const ReducePlan& plan, const Terms& x, const Tensor* about, double divisor, const Tensor& out) {
  using Total = typename R::Total;
  const std::int64_t width = plan.kept.back();
  const std::int64_t strips = (width + kRowChunk - 1) / kRowChunk;
  const std::int64_t items = plan.outputs / width * strips;
  const std::int64_t strip_width = std::min(width, kRowChunk);
  const std::int64_t rows_per_segment = std::max<std::int64_t>(kRowsPerFlush, kSegment / strip_width);
  const std::int64_t segments = (plan.count + rows_per_segment - 1) / rows_per_segment;
  const auto work = [&](std::int64_t item, std::int64_t begin, std::int64_t end, Total* totals) {
    const std::int64_t column = item % strips * kRowChunk;
    const std::int64_t outer = item / strips;
    const std::int64_t length = std::min(kRowChunk, width - column);
    C shifts[kRowChunk];
    for (std::int64_t i = 0; i < length; ++i) shifts[i] = load_about<R, C>(about, outer * width + column + i);
    const std::int64_t base =
        ReducePlan::outer_offset(plan.kept, plan.kept_strides, outer) + column * plan.kept_strides.back();
    fold_columns<R>(plan, x, base, length, begin, end, shifts, totals);
  };
  const auto finish = [&](std::int64_t item, const Total* totals) {
    const std::int64_t column = item % strips * kRowChunk;
    const std::int64_t first = item / strips * width + column;
    const std::int64_t length = std::min(kRowChunk, width - column);
    C values[kRowChunk], centres[kRowChunk];
    for (std::int64_t i = 0; i < length; ++i) centres[i] = load_about<R, C>(about, first + i);
    cpu::by_widest_vectors([divisor, totals, length, from = static_cast<const C*>(centres),
                            to = static_cast<C*>(values)] { finish_rows<R, C>(totals, from, divisor, length, to); });
    cpu::store_row(values, length, out.dtype(), cpu::element_address(out.raw_data(), first, out.dtype()), 1);
  };
  if (segments <= 1) {
    const std::int64_t block = std::max<std::int64_t>(1, kBlock / std::max<std::int64_t>(plan.count * strip_width, 1));
    parallel_for(items, block, [&](std::int64_t begin, std::int64_t end) {
      Total totals[kRowChunk];
      for (std::int64_t item = begin; item < end; ++item) {
        work(item, 0, plan.count, totals);
        finish(item, totals);
      }
    });
    return;
  }
  std::vector<Total> partial(static_cast<std::size_t>(items * segments * strip_width));
  const auto slot = [&](std::int64_t item, std::int64_t segment) {
    return partial.data() + (item * segments + segment) * strip_width;
  };
  parallel_for(items * segments, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % segments * rows_per_segment;
      work(i / segments, first, std::min(first + rows_per_segment, plan.count), slot(i / segments, i % segments));
    }
  });
  for (std::int64_t item = 0; item < items; ++item) {
    const std::int64_t length = std::min(kRowChunk, width - item % strips * kRowChunk);
    Total* totals = slot(item, 0);
    for (std::int64_t s = 1; s < segments; ++s)
      for (std::int64_t i = 0; i < length; ++i) totals[i] = R::join(totals[i], slot(item, s)[i]);
    finish(item, totals);
  }
}

/// The terms of an output lie closer together than the outputs do, and are reduced one output after the other.
bool goes_along(const ReducePlan& plan) {
  const bool near = plan.reduced_strides.back() <= plan.kept_strides.back() || plan.outputs == 1;
  const bool few_terms = plan.count < 16 && plan.kept.back() >= 16;
  // Rows that stand for many, as expand() makes them.
  const bool repeated = plan.reduced_strides.back() == 0 && plan.kept_strides.back() == 1 && plan.kept.back() >= 16;
  return near && !few_terms && !repeated;
}

template <template <typename> class R, typename C>
void reduce_as(const ReducePlan& plan, const Terms& x, const Tensor* about, double divisor, const Tensor& out) {
  if (plan.outputs == 0) return;
  if (goes_along(plan)) {
    reduce_along<R<C>, C>(plan, x, about, divisor, out);
  } else {
    reduce_across<R<C>, C>(plan, x, about, divisor, out);
  }
}

template <template <typename> class R>
void reduce_floating(const ReducePlan& plan, const Terms& x, const Tensor* about, double divisor, const Tensor& out) {
  if (x.dtype == kFloat64) return reduce_as<R, double>(plan, x, about, divisor, out);
  reduce_as<R, float>(plan, x, about, divisor, out);
}

template <template <typename> class R>
void reduce_any(const ReducePlan& plan, const Terms& x, double divisor, const Tensor& out) {
  if (!is_floating_point(x.dtype)) return reduce_as<R, std::int64_t>(plan, x, nullptr, divisor, out);
  reduce_floating<R>(plan, x, nullptr, divisor, out);
}

void reduce_terms(ReduceOp op, const ReducePlan& plan, const Terms& x, const Tensor* about, double divisor,
                  const Tensor& out) {
  switch (op) {
    case ReduceOp::sum:
      return reduce_any<Sum>(plan, x, divisor, out);
    case ReduceOp::squared_difference:
      return reduce_floating<SquaredDifference>(plan, x, about, divisor, out);
    case ReduceOp::log_sum_exp:
      return reduce_floating<LogSumExp>(plan, x, about, divisor, out);
    case ReduceOp::max:
      return reduce_any<Max>(plan, x, divisor, out);
    case ReduceOp::min:
      return reduce_any<Min>(plan, x, divisor, out);
  }
}

/// Whether any element of bool, or every one, is true, where the terms of an output lie side by side. False: they do
/// not.
bool reduce_truths(bool every, const Tensor& x, const Tensor& out) {
  const ReducePlan plan(x, out);
  if (plan.outputs == 0 || plan.reduced.dim() != 1 || (plan.reduced_strides[0] != 1 && plan.count > 1)) return false;
  const auto* from = static_cast<const std::uint8_t*>(x.raw_data());
  auto* to = static_cast<bool*>(out.raw_data());
  const std::int64_t width = plan.kept.back();
  parallel_for(plan.outputs, std::max<std::int64_t>(1, kBlock / std::max<std::int64_t>(plan.count, 1)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t o = begin; o < end; ++o) {
                   const std::int64_t at = ReducePlan::outer_offset(plan.kept, plan.kept_strides, o / width) +
                                           o % width * plan.kept_strides.back();
                   const void* found = std::memchr(from + at, every ? 0 : 1, static_cast<std::size_t>(plan.count));
                   to[o] = every == (found == nullptr);
                 }
               });
  return true;
}

}  // namespace

void reduce_cpu(ReduceOp op, const Tensor& x, const Tensor* about, double divisor, const Tensor& out) {
  if (x.dtype() == kBool && out.dtype() == kBool && (op == ReduceOp::max || op == ReduceOp::min))
    if (reduce_truths(op == ReduceOp::min, x, out)) return;
  reduce_terms(op, ReducePlan(x, out), {x.raw_data(), x.dtype()}, about, divisor, out);
}

bool reduce_elements(ReduceOp op, const Tensor& x, const Tensor* about, double divisor, const Tensor& out) {
  if (!x.defined() || x.dtype() != out.dtype() || !is_pending_elementwise(x)) return false;
  const ReducePlan plan(x, out);
  if (plan.kept.dim() != 1 || plan.reduced.dim() != 1) return false;
  constexpr std::int64_t kWide = 512;  // shorter rows are made more quickly together, and then read
  const std::int64_t width = plan.kept[0], apart = plan.reduced_strides[0];
  const bool rows = goes_along(plan) && apart == 1,
             columns = !goes_along(plan) && plan.kept_strides[0] == 1 && apart == width && width >= kWide;
  if (!rows && !columns) return false;
  if (about) about->storage()->settle();
  return ElementReader::read(x, [&](const ElementReader& reader) {
    profile::Scope scope("kernel", "reduce");
    reduce_terms(op, plan, {nullptr, x.dtype(), &reader}, about, divisor, out);
  });
}

}  // namespace lockstep
