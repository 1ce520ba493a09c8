#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/autograd/ops/cross_entropy/cross_entropy_kernels.h"
#include "lockstep/autograd/ops/cross_entropy/cross_entropy_smoothing.h"
#include "lockstep/autograd/ops/support/block_sums.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/cpu/write_row.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {

namespace {

using cpu::lane_max;
using cpu::lane_sum;

constexpr std::int64_t kTile = 1024;  // elements that exp runs over at once, so that short rows are vectorised too

template <typename T>
void forward(const Tensor& logits, const Tensor& target, const Tensor& weight, const Tensor& loss,
             const Tensor& normalizers, const Tensor& total_weight, const CrossEntropyProblem& problem) {
  using C = compute_t<T>;
  const std::int64_t rows = problem.rows.rows(), classes = problem.rows.classes;
  const T* x = logits.data<T>();
  const auto* t = target.data<std::int64_t>();
  const T* w = weight.defined() ? weight.data<T>() : nullptr;
  C* norm = normalizers.data<C>();
  T* values = problem.reduction == Reduction::none ? loss.data<T>() : nullptr;
  const Smoothing<C> smoothing(problem, w);
  const bool smooth = problem.label_smoothing > 0.0;

  const auto row_loss = [&](std::int64_t row) {
    const T* xr = x + row * classes;
    const C top = norm[2 * row], log_sum = norm[2 * row + 1];
    const C factor = w ? static_cast<C>(w[t[row]]) : C(1);
    C value = smoothing.sharp * factor * (log_sum - (static_cast<C>(xr[t[row]]) - top));
    if (smooth) {
      const C sum = lane_sum<C>(classes, [&](std::int64_t c) {
        const C term = log_sum - (static_cast<C>(xr[c]) - top);
        return w ? static_cast<C>(w[c]) * term : term;
      });
      value += smoothing.even * sum;
    }
    return std::pair<C, C>(value, factor);
  };

  const std::int64_t tile = std::max<std::int64_t>(kTile / std::max<std::int64_t>(classes, 1), 1);
  const std::int64_t block = std::max<std::int64_t>(kCrossEntropyBlock / std::max<std::int64_t>(classes, 1), 1);
  const auto sums = block_sums<2>(rows, block, [&](std::int64_t begin, std::int64_t end) {
    std::array<double, 2> sum{};
    C shifted[kTile];
    for (std::int64_t row = begin; row < end; row += tile) {
      const std::int64_t count = std::min(tile, end - row);
      const bool fits = classes <= kTile;
      for (std::int64_t r = 0; r < count; ++r) {
        const T* xr = x + (row + r) * classes;
        const C top = lane_max<C>(classes, xr);
        norm[2 * (row + r)] = top;
        if (fits)
          for (std::int64_t c = 0; c < classes; ++c) shifted[r * classes + c] = static_cast<C>(xr[c]) - top;
      }
      if (fits)
        cpu::write_row(shifted, count * classes,
                       [from = &shifted[0]](std::int64_t i) { return math::exp_to_one(from[i]); });
      for (std::int64_t r = row; r < row + count; ++r) {
        const T* xr = x + r * classes;
        const C top = norm[2 * r];
        const C* exps = shifted + (r - row) * classes;
        norm[2 * r + 1] = math::log(
            fits ? lane_sum<C>(classes, [&](std::int64_t c) { return exps[c]; }) : cpu::by_widest_vectors([=] {
              return lane_sum<C>(classes,
                                 [=](std::int64_t c) { return math::exp_to_one(static_cast<C>(xr[c]) - top); });
            }));
        C value = 0;
        if (t[r] != problem.ignore_index) {
          if (t[r] < 0 || t[r] >= classes)
            throw_bad_target("cross_entropy", r, t[r], problem.rows, problem.ignore_index);
          const auto [loss_value, factor] = row_loss(r);
          value = loss_value;
          sum[0] += value;
          sum[1] += factor;
        }
        if (values) values[r] = static_cast<T>(value);
      }
    }
    return sum;
  });
  write_totals<T>(sums, problem, loss, total_weight);
}

template <typename T>
void backward(const Tensor& grad, const Tensor& logits, const Tensor& target, const Tensor& weight,
              const Tensor& normalizers, const Tensor& total_weight, const Tensor& grad_input,
              const CrossEntropyProblem& problem) {
  using C = compute_t<T>;
  const std::int64_t rows = problem.rows.rows(), classes = problem.rows.classes;
  const T* g = grad.data<T>();
  const T* x = logits.data<T>();
  const auto* t = target.data<std::int64_t>();
  const T* w = weight.defined() ? weight.data<T>() : nullptr;
  const C* norm = normalizers.data<C>();
  T* d = grad_input.data<T>();
  const Smoothing<C> smoothing(problem, w);
  const bool smooth = problem.label_smoothing > 0.0;
  const bool each = problem.reduction == Reduction::none;
  const C scale = problem.reduction == Reduction::mean ? static_cast<C>(1.0 / *total_weight.data<double>()) : C(1);

  const std::int64_t tile = std::max<std::int64_t>(kTile / std::max<std::int64_t>(classes, 1), 1);
  const std::int64_t block = std::max<std::int64_t>(kCrossEntropyBlock / std::max<std::int64_t>(classes, 1), 1);
  parallel_for(rows, block, [&](std::int64_t begin, std::int64_t end) {
    std::vector<C> scratch;
    if constexpr (!std::is_same_v<T, C>)
      scratch.resize(static_cast<std::size_t>(std::min(tile, end - begin) * classes));
    for (std::int64_t row = begin; row < end; row += tile) {
      const std::int64_t count = std::min(tile, end - row);
      C* p;
      if constexpr (std::is_same_v<T, C>) {
        p = d + row * classes;
      } else {
        p = scratch.data();
      }
      for (std::int64_t r = 0; r < count; ++r) {
        const T* xr = x + (row + r) * classes;
        const C top = norm[2 * (row + r)], log_sum = norm[2 * (row + r) + 1];
        for (std::int64_t c = 0; c < classes; ++c) p[r * classes + c] = (static_cast<C>(xr[c]) - top) - log_sum;
      }
      cpu::write_row(p, count * classes, [p](std::int64_t i) { return math::exp_to_one(p[i]); });
      for (std::int64_t r = row; r < row + count; ++r) {
        C* pr = p + (r - row) * classes;
        T* dr = d + r * classes;
        if (t[r] == problem.ignore_index) {
          for (std::int64_t c = 0; c < classes; ++c) dr[c] = static_cast<T>(C(0));
          continue;
        }
        const C incoming = static_cast<C>(g[each ? r : 0]) * scale;
        const C sharp = smoothing.sharp * (w ? static_cast<C>(w[t[r]]) : C(1));
        const C total = smooth ? sharp + smoothing.even * smoothing.weight_of_all : sharp;
        const C spread = incoming * total;
        for (std::int64_t c = 0; c < classes; ++c) pr[c] *= spread;
        pr[t[r]] -= incoming * sharp;
        if (smooth)
          for (std::int64_t c = 0; c < classes; ++c)
            pr[c] -= incoming * smoothing.even * (w ? static_cast<C>(w[c]) : C(1));
        if constexpr (!std::is_same_v<T, C>)
          for (std::int64_t c = 0; c < classes; ++c) dr[c] = static_cast<T>(pr[c]);
      }
    }
  });
}

}  // namespace

void cross_entropy_cpu(const Tensor& logits, const Tensor& target, const Tensor& weight, const Tensor& loss,
                       const Tensor& normalizers, const Tensor& total_weight, const CrossEntropyProblem& problem) {
  if (problem.planes) return cross_entropy_of_planes(logits, target, weight, loss, normalizers, total_weight, problem);
  dispatch_floating(logits.dtype(), "cross_entropy", [&]<typename T>() {
    forward<T>(logits, target, weight, loss, normalizers, total_weight, problem);
  });
}

void cross_entropy_backward_cpu(const Tensor& grad, const Tensor& logits, const Tensor& target, const Tensor& weight,
                                const Tensor& normalizers, const Tensor& total_weight, const Tensor& grad_input,
                                const CrossEntropyProblem& problem) {
  if (problem.planes)
    return cross_entropy_of_planes_backward(grad, logits, target, weight, normalizers, total_weight, grad_input,
                                            problem);
  dispatch_floating(logits.dtype(), "cross_entropy", [&]<typename T>() {
    backward<T>(grad, logits, target, weight, normalizers, total_weight, grad_input, problem);
  });
}

}  // namespace lockstep
