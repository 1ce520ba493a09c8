#include <algorithm>
#include <type_traits>

#include "lockstep/autograd/ops/reduce/reduce_fold.h"
#include "lockstep/autograd/ops/reduce/reduce_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce_plan.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

using cpu::kRowChunk;

/// Elements to a parallel block.
constexpr std::int64_t kBlock = 32768;

/// True if `candidate` takes the place of `best`. Strict, so the first of equal values stays; the first NaN wins.
template <bool kMaximum, typename C>
bool beats(C candidate, C best) {
  return (kMaximum ? candidate > best : candidate < best) | ((candidate != candidate) & (best == best));
}

/// A strip of up to kRowChunk outputs that lie `stride` apart, term by term.
template <bool kMaximum, typename C>
void across(const cpu::RowSource<C>& x, std::int64_t base, std::int64_t stride, std::int64_t width, std::int64_t terms,
            std::int64_t term_stride, std::int64_t* indices) {
  C best[kRowChunk], buffer[kRowChunk];
  std::copy_n(x.row(base, stride, width, buffer), width, best);
  std::fill_n(indices, width, 0);
  for (std::int64_t t = 1; t < terms; ++t) {
    const C* values = x.row(base + t * term_stride, stride, width, buffer);
    for (std::int64_t i = 0; i < width; ++i) {
      const bool better = beats<kMaximum>(values[i], best[i]);
      best[i] = better ? values[i] : best[i];
      indices[i] = better ? t : indices[i];
    }
  }
}

/// The place of the first of `count` values that is `value`, or NaN if that is; there is one. Some are looked at
/// together, since a loop that may end at each is not vectorised.
template <typename C>
std::int64_t place_of(C value, const C* values, std::int64_t count) {
  constexpr std::int64_t kTogether = 32;
  const auto is_it = [value, is_nan = value != value](C at) { return (at == value) | (is_nan & (at != at)); };
  std::int64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    int found = 0;
    for (std::int64_t j = 0; j < kTogether; ++j) found |= is_it(values[i + j]) ? 1 : 0;
    if (found != 0) break;
  }
  while (i < count && !is_it(values[i])) ++i;
  return i;
}

/// along() for many terms: the extreme of a chunk is found by vectors, and its place where it takes the place of those
/// before. A NaN is the extreme of its chunk.
template <bool kMaximum, typename C>
std::int64_t along_long(const cpu::RowSource<C>& x, std::int64_t base, std::int64_t terms, std::int64_t term_stride) {
  using R = std::conditional_t<kMaximum, reduce_fold::Max<C>, reduce_fold::Min<C>>;
  C buffer[kRowChunk];
  C best{};
  std::int64_t index = 0;
  for (std::int64_t t = 0; t < terms; t += kRowChunk) {
    const std::int64_t count = std::min(kRowChunk, terms - t);
    const C* const values = x.row(base + t * term_stride, term_stride, count, buffer);
    const C extreme = reduce_fold::fold_chunk<R>(values, count);
    if (t > 0 && !beats<kMaximum>(extreme, best)) continue;
    best = extreme;
    index = t + place_of(extreme, values, count);
  }
  return index;
}

template <bool kMaximum, typename C>
std::int64_t along(const cpu::RowSource<C>& x, std::int64_t base, std::int64_t terms, std::int64_t term_stride) {
  constexpr std::int64_t kMany = 64;
  if (terms >= kMany) return along_long<kMaximum>(x, base, terms, term_stride);
  C buffer[kMany];
  const C* const values = x.row(base, term_stride, terms, buffer);
  C best = values[0];
  std::int64_t index = 0;
  for (std::int64_t i = 1; i < terms; ++i) {
    if (beats<kMaximum>(values[i], best)) {
      best = values[i];
      index = i;
    }
  }
  return index;
}

template <bool kMaximum, typename C>
void run(const Tensor& x, int dim, const Tensor& out) {
  const ReducePlan plan(x, out);
  if (plan.outputs == 0) return;
  const cpu::RowSource<C> source{x.raw_data(), x.dtype()};
  const std::int64_t terms = x.sizes()[dim], term_stride = x.strides()[dim];
  const std::int64_t width = plan.kept.back(), stride = plan.kept_strides.back();
  std::int64_t* indices = out.data<std::int64_t>();
  const bool few_terms = terms < 16 && width >= 16;
  if ((stride < term_stride && width > 1) || few_terms) {
    const std::int64_t strips = (width + kRowChunk - 1) / kRowChunk;
    const std::int64_t block = std::max<std::int64_t>(1, kBlock / (terms * std::min(width, kRowChunk)));
    parallel_for(plan.outputs / width * strips, block, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t column = item % strips * kRowChunk, outer = item / strips;
        const std::int64_t base = ReducePlan::outer_offset(plan.kept, plan.kept_strides, outer) + column * stride;
        across<kMaximum>(source, base, stride, std::min(kRowChunk, width - column), terms, term_stride,
                         indices + outer * width + column);
      }
    });
    return;
  }
  parallel_for(plan.outputs, std::max<std::int64_t>(1, kBlock / terms), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o) {
      const std::int64_t base = ReducePlan::outer_offset(plan.kept, plan.kept_strides, o / width) + o % width * stride;
      indices[o] = along<kMaximum>(source, base, terms, term_stride);
    }
  });
}

template <bool kMaximum>
void run_any(const Tensor& x, int dim, const Tensor& out) {
  switch (cpu::compute_dtype(x.dtype())) {
    case kFloat32:
      return run<kMaximum, float>(x, dim, out);
    case kFloat64:
      return run<kMaximum, double>(x, dim, out);
    default:
      return run<kMaximum, std::int64_t>(x, dim, out);
  }
}

}  // namespace

void arg_reduce_cpu(bool maximum, const Tensor& x, int dim, const Tensor& out) {
  maximum ? run_any<true>(x, dim, out) : run_any<false>(x, dim, out);
}

}  // namespace lockstep
