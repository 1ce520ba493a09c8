#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops/reduce/reduce_cuda.cuh"
#include "lockstep/autograd/ops/reduce/reduce_kernels.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

using cuda::kThreads;
using cuda::kWarpSize;
using reduction::Terms;

// Note [Reductions on CUDA]
// Each output's terms are cut into segments, and a segment is folded by a warp or a block (terms that lie together) or
// by the threads of one column of a block (outputs that lie together). Where there is more than one segment, a second
// launch of the same kernel folds the segments' results. Segments, threads and the trees they meet in depend on the
// shape and strides alone. A thread folds at most kTermsToAThread terms one after the other, which bounds rounding.
constexpr std::int64_t kTermsToAThread = 256;
// Segments are made while there are fewer than these many blocks, and no shorter than this for a thread.
constexpr std::int64_t kEnoughBlocks = 1024;
constexpr std::int64_t kLeastTermsToAThread = 8;

template <typename C>
struct Sum {
  static __device__ C start() { return 0; }
  static __device__ C shift(C about) { return about; }
  static __device__ C map(C value, C) { return value; }
  static __device__ C fold(C a, C b) {
    if constexpr (std::is_integral_v<C>) {
      return static_cast<C>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else {
      return a + b;
    }
  }
  static __device__ C finish(C total, C, C divisor) {
    if constexpr (std::is_integral_v<C>) {
      return total;
    } else {
      return total / divisor;
    }
  }
};

template <typename C>
struct SquaredDifference : Sum<C> {
  static __device__ C map(C value, C about) { return (value - about) * (value - about); }
};

template <typename C>
struct LogSumExp : Sum<C> {
  static __device__ C shift(C about) { return about - about == C(0) ? about : C(0); }
  static __device__ C map(C value, C about) { return std::exp(value - about); }
  static __device__ C finish(C total, C about, C) { return about + std::log(total); }
};

template <typename C>
struct Max : Sum<C> {
  static __device__ C start() {
    if constexpr (std::is_integral_v<C>) {
      return INT64_MIN;
    } else {
      return static_cast<C>(-INFINITY);
    }
  }
  static __device__ C fold(C a, C b) { return (b > a) | (b != b) ? b : a; }
  static __device__ C finish(C total, C, C) { return total; }
};

template <typename C>
struct Min : Max<C> {
  static __device__ C start() {
    if constexpr (std::is_integral_v<C>) {
      return INT64_MAX;
    } else {
      return static_cast<C>(INFINITY);
    }
  }
  static __device__ C fold(C a, C b) { return (b < a) | (b != b) ? b : a; }
};

template <typename R, typename C>
struct Fold {
  __device__ C operator()(C a, C b) const { return R::fold(a, b); }
};

/// One launch: from elements or segments' results to segments' results or outputs.
template <typename C>
struct Pass {
  std::int64_t segments, per_segment;
  const C* about;  // of each output, or null
  C divisor;
  bool maps;      // the input is of elements
  bool finishes;  // the results are outputs
  cuda::Target<C> out;

  template <typename R>
  __device__ C shift(std::int64_t output) const {
    return about ? R::shift(about[output]) : C(0);
  }
  template <typename R>
  __device__ C map(C value, C shift) const {
    return maps ? R::map(value, shift) : value;
  }
  template <typename R>
  __device__ void set(std::int64_t index, C total, C shift) const {
    out.set(index, finishes ? R::finish(total, shift, divisor) : total);
  }
};

/// A warp or block to each segment of each output. With W > 1 the terms are dense and read W at a time. Results as
/// [outputs, segments].
template <typename R, int W, typename C, typename Load>
__global__ void along_kernel(Terms terms, Pass<C> pass, bool whole_block, Load x) {
  const int group = whole_block ? static_cast<int>(blockDim.x) : kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % group;
  const std::int64_t items = terms.outputs * pass.segments, groups = cuda::all_threads() / group;
  for (std::int64_t item = cuda::global_thread() / group; item < items; item += groups) {
    const std::int64_t output = item / pass.segments;
    const std::int64_t begin = item % pass.segments * pass.per_segment;
    const std::int64_t end = begin + pass.per_segment < terms.count ? begin + pass.per_segment : terms.count;
    const std::int64_t base = terms.base(output);
    const C shift = pass.template shift<R>(output);
    C total = R::start();
    std::int64_t rest = begin;
    if constexpr (W > 1) {
      const std::int64_t packs = (end - begin) / W, first = (base + begin) / W;
      for (std::int64_t p = lane; p < packs; p += group) {
        const auto pack = x.template pack<W>(first + p);
#pragma unroll
        for (int j = 0; j < W; ++j) total = R::fold(total, pass.template map<R>(pack.value[j], shift));
      }
      rest += packs * W;
    }
#pragma unroll 4
    for (std::int64_t t = rest + lane; t < end; t += group)
      total = R::fold(total, pass.template map<R>(x.at(base + terms.term(t)), shift));
    total = whole_block ? cuda::block_reduce(total, Fold<R, C>()) : cuda::warp_reduce(total, Fold<R, C>());
    if (lane == 0) pass.template set<R>(item, total, shift);
  }
}

/// A column of a block's threads to each segment of each output; `columns` neighbouring outputs to a block. Results as
/// [segments, outputs].
template <typename R, typename C, typename Load>
__global__ void across_kernel(Terms terms, Pass<C> pass, int columns, Load x) {
  __shared__ C totals[kThreads];
  const int rows = kThreads / columns;
  const int column = static_cast<int>(threadIdx.x) % columns, row = static_cast<int>(threadIdx.x) / columns;
  const std::int64_t strips = (terms.outputs + columns - 1) / columns;
  for (std::int64_t item = blockIdx.x; item < strips * pass.segments; item += gridDim.x) {
    const std::int64_t output = item % strips * columns + column, segment = item / strips;
    const std::int64_t begin = segment * pass.per_segment;
    const std::int64_t end = begin + pass.per_segment < terms.count ? begin + pass.per_segment : terms.count;
    const bool inside = output < terms.outputs;
    const C shift = inside ? pass.template shift<R>(output) : C(0);
    C total = R::start();
    if (inside) {
      const std::int64_t base = terms.base(output);
#pragma unroll 4
      for (std::int64_t t = begin + row; t < end; t += rows)
        total = R::fold(total, pass.template map<R>(x.at(base + terms.term(t)), shift));
    }
    if (rows > 1) {
      __syncthreads();
      totals[threadIdx.x] = total;
      __syncthreads();
      if (row == 0)
        for (int r = 1; r < rows; ++r) total = R::fold(total, totals[r * columns + column]);
    }
    if (row == 0 && inside) pass.template set<R>(segment * terms.outputs + output, total, shift);
  }
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Segments of each output, if `blocks` blocks do without them and `threads` threads share a segment.
std::int64_t segments_for(std::int64_t count, std::int64_t blocks, std::int64_t threads) {
  const std::int64_t most = ceil_div(count, kLeastTermsToAThread * threads);
  const std::int64_t least = ceil_div(count, kTermsToAThread * threads);
  return std::max<std::int64_t>({1, least, std::min(most, kEnoughBlocks / std::max<std::int64_t>(blocks, 1))});
}

template <typename T, int W>
bool packs_fit(const Tensor& x, const ReducePlan& plan) {
  bool fits = plan.reduced.dim() == 1 && plan.reduced_strides.back() == 1 && plan.count >= W * kWarpSize;
  for (int d = 0; fits && d < plan.kept.dim(); ++d) fits = plan.kept_strides[d] % W == 0;
  return fits && cuda::aligned(x.raw_data(), sizeof(T) * W);
}

template <typename R, typename C>
class Reduction {
 public:
  Reduction(const Tensor& x, const Tensor* about, double divisor, const Tensor& out)
      : x_(x),
        out_(out),
        about_(about ? static_cast<const C*>(about->raw_data()) : nullptr),
        divisor_(static_cast<C>(divisor)),
        plan_(x, out),
        launch_(out) {}

  /// T: the elements' type, for sums; else their dtype is looked at in the kernel.
  template <typename T = void>
  void run() const {
    if (plan_.outputs == 0) return;
    reduction::terms_are_near(plan_) ? along<T>() : across<T>();
  }

 private:
  template <typename T>
  void along() const {
    const std::int64_t segments = segments_for(plan_.count, plan_.outputs, kThreads);
    const Tensor partial = partial_of(segments);
    // Whole packs to a segment.
    const Pass<C> pass = first_pass(segments, ceil_div(ceil_div(plan_.count, segments), 8) * 8, partial);
    bool packed = false;
    if constexpr (!std::is_void_v<T>) {
      constexpr int kWidth = 16 / static_cast<int>(sizeof(T));
      packed = packs_fit<T, kWidth>(x_, plan_);
      if (packed) launch_along<kWidth>(plan_, pass, typed<T>());
    }
    if (!packed) launch_along<1>(plan_, pass, cuda::Source<C>(x_));
    if (segments == 1) return;
    ReducePlan joined = plan_;
    joined.count = segments;
    joined.kept = {plan_.outputs};
    joined.kept_strides = {segments};
    joined.reduced = {segments};
    joined.reduced_strides = {1};
    launch_along<1>(joined, second_pass(segments), cuda::Source<C>(partial));
  }

  template <typename T>
  void across() const {
    int columns = plan_.count < 16 ? kThreads : 1;
    while (columns < std::min<std::int64_t>(plan_.outputs, kWarpSize)) columns *= 2;
    const std::int64_t segments = segments_for(plan_.count, ceil_div(plan_.outputs, columns), kThreads / columns);
    const Tensor partial = partial_of(segments);
    const Pass<C> pass = first_pass(segments, ceil_div(plan_.count, segments), partial);
    if constexpr (std::is_void_v<T>) {
      launch_across(plan_, pass, columns, cuda::Source<C>(x_));
    } else {
      launch_across(plan_, pass, columns, typed<T>());
    }
    if (segments == 1) return;
    ReducePlan joined = plan_;
    joined.count = segments;
    joined.kept = {plan_.outputs};
    joined.kept_strides = {1};
    joined.reduced = {segments};
    joined.reduced_strides = {plan_.outputs};
    launch_across(joined, second_pass(segments), columns, cuda::Source<C>(partial));
  }

  template <typename T>
  cuda::DenseSource<T, C> typed() const {
    return {static_cast<const T*>(x_.raw_data()), C(0)};
  }
  Tensor partial_of(std::int64_t segments) const {
    if (segments == 1) return {};
    return empty({plan_.outputs * segments}, {.dtype = dtype_of<C>, .device = out_.device()});
  }
  Pass<C> first_pass(std::int64_t segments, std::int64_t per_segment, const Tensor& partial) const {
    const bool only = segments == 1;
    return {segments, per_segment, about_, divisor_, true, only, cuda::Target<C>(only ? out_ : partial)};
  }
  Pass<C> second_pass(std::int64_t segments) const {
    return {1, segments, about_, divisor_, false, true, cuda::Target<C>(out_)};
  }

  template <int W, typename Load>
  void launch_along(const ReducePlan& plan, const Pass<C>& pass, const Load& load) const {
    const bool whole_block = pass.per_segment > kWarpSize * W * 16;
    launch_(along_kernel<R, W, C, Load>,
            cuda::blocks_for(plan.outputs * pass.segments, whole_block ? 1 : kThreads / kWarpSize), kThreads,
            Terms(plan), pass, whole_block, load);
  }
  template <typename Load>
  void launch_across(const ReducePlan& plan, const Pass<C>& pass, int columns, const Load& load) const {
    launch_(across_kernel<R, C, Load>, cuda::blocks_for(ceil_div(plan.outputs, columns) * pass.segments, 1), kThreads,
            Terms(plan), pass, columns, load);
  }

  const Tensor &x_, &out_;
  const C* about_;
  C divisor_;
  ReducePlan plan_;
  cuda::Launch launch_;
};

template <template <typename> class R>
void reduce_floating(const Tensor& x, const Tensor* about, double divisor, const Tensor& out) {
  dispatch_compute(x.dtype(), "reduce", [&]<typename C>() { Reduction<R<C>, C>(x, about, divisor, out).run(); });
}

template <template <typename> class R>
void reduce_any(const Tensor& x, double divisor, const Tensor& out) {
  if (is_floating_point(x.dtype())) return reduce_floating<R>(x, nullptr, divisor, out);
  Reduction<R<std::int64_t>, std::int64_t>(x, nullptr, divisor, out).run();
}

void sum(const Tensor& x, double divisor, const Tensor& out) {
  const auto as = [&]<typename T>() { Reduction<Sum<float>, float>(x, nullptr, divisor, out).template run<T>(); };
  switch (x.dtype()) {
    case kFloat32:
      return as.template operator()<float>();
    case kFloat16:
      return as.template operator()<Half>();
    case kBFloat16:
      return as.template operator()<BFloat16>();
    default:
      return reduce_any<Sum>(x, divisor, out);
  }
}

}  // namespace

void reduce_cuda(ReduceOp op, const Tensor& x, const Tensor* about, double divisor, const Tensor& out) {
  if (x.is_floating_point() && op != ReduceOp::max && op != ReduceOp::min) cuda::require_not_portable("a sum");
  switch (op) {
    case ReduceOp::sum:
      return sum(x, divisor, out);
    case ReduceOp::squared_difference:
      return reduce_floating<SquaredDifference>(x, about, divisor, out);
    case ReduceOp::log_sum_exp:
      return reduce_floating<LogSumExp>(x, about, divisor, out);
    case ReduceOp::max:
      return reduce_any<Max>(x, divisor, out);
    case ReduceOp::min:
      return reduce_any<Min>(x, divisor, out);
  }
}

}  // namespace lockstep
