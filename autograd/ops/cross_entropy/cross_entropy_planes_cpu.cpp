// Cross-entropy of logits [batch, classes, inner], such as those of each pixel of images: vectors run over positions
// beside each other, and the classes of each are added up in the order of cpu::lane_sum, as where they are a row.

#include <algorithm>
#include <array>
#include <memory>

#include "lockstep/autograd/ops/cross_entropy/cross_entropy_kernels.h"
#include "lockstep/autograd/ops/cross_entropy/cross_entropy_smoothing.h"
#include "lockstep/autograd/ops/support/block_sums.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

constexpr std::int64_t kMostPositions = 64;  // at a time
constexpr std::int64_t kTile = 4096;         // values of all classes at them: a quarter of a first-level cache

// Positions at a time, and so the distance of the classes in a tile.
std::int64_t positions_of_tile(std::int64_t classes) {
  return std::clamp<std::int64_t>(kTile / classes / 16 * 16, 16, kMostPositions);
}
static_assert(16 * kMostPlanes <= kTile);

// out[p] = cpu::lane_sum of values[c * pitch + p] over c, for p < count.
template <typename C>
void lane_sums(const C* values, std::int64_t pitch, std::int64_t classes, std::int64_t count, C* out) {
  constexpr int kLanes = cpu::kSumLanes;
  C lanes[kLanes][kMostPositions];
  const auto add = [&](int lane, std::int64_t c) __attribute__((always_inline)) {
    for (std::int64_t p = 0; p < count; ++p) lanes[lane][p] += values[c * pitch + p];
  };
  const int used = classes < kLanes ? 2 : kLanes;
  for (int l = 0; l < used; ++l) std::fill_n(lanes[l], count, C(0));
  const std::int64_t whole = classes / used * used;
  for (std::int64_t c = 0; c < whole; ++c) add(static_cast<int>(c % used), c);
  if (used == 2) {
    for (std::int64_t p = 0; p < count; ++p) out[p] = lanes[0][p] + lanes[1][p];
    if (whole < classes)
      for (std::int64_t p = 0; p < count; ++p) out[p] += values[whole * pitch + p];
    return;
  }
  C rest[kMostPositions] = {};
  for (std::int64_t c = whole; c < classes; ++c)
    for (std::int64_t p = 0; p < count; ++p) rest[p] += values[c * pitch + p];
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l)
      for (std::int64_t p = 0; p < count; ++p) lanes[l][p] += lanes[l + half][p];
  for (std::int64_t p = 0; p < count; ++p) out[p] = rest[p] + lanes[0][p];
}

// The positions of [begin, end) in runs within an image: run(first row, where class 0 of it is, how many).
template <typename Run>
void for_runs(const ClassRows& rows, std::int64_t begin, std::int64_t end, Run&& run) {
  const std::int64_t most = positions_of_tile(rows.classes);
  while (begin < end) {
    const std::int64_t image = begin / rows.inner, position = begin % rows.inner;
    const std::int64_t count = std::min({most, end - begin, rows.inner - position});
    run(begin, image * rows.classes * rows.inner + position, count);
    begin += count;
  }
}

std::int64_t rows_of_block(const ClassRows& rows) {
  return std::max<std::int64_t>(kCrossEntropyBlock / rows.classes, 1);
}

template <typename T>
void forward(const Tensor& logits, const Tensor& target, const Tensor& weight, const Tensor& loss,
             const Tensor& normalizers, const Tensor& total_weight, const CrossEntropyProblem& problem) {
  using C = compute_t<T>;
  const std::int64_t classes = problem.rows.classes, inner = problem.rows.inner;
  const std::int64_t pitch = positions_of_tile(classes);
  const auto* t = target.data<std::int64_t>();
  const T* w = weight.defined() ? weight.data<T>() : nullptr;
  C* norm = normalizers.data<C>();
  T* values = problem.reduction == Reduction::none ? loss.data<T>() : nullptr;
  const Smoothing<C> smoothing(problem, w);
  const bool smooth = problem.label_smoothing > 0.0;

  const auto run = [&](std::int64_t row, const T* x, std::int64_t count, C* tile, std::array<double, 2>& sum) {
    C top[kMostPositions], log_sum[kMostPositions], even[kMostPositions];
    for (std::int64_t p = 0; p < count; ++p) top[p] = static_cast<C>(x[p]);
    for (std::int64_t c = 1; c < classes; ++c)
      for (std::int64_t p = 0; p < count; ++p) {
        const C value = static_cast<C>(x[c * inner + p]);
        top[p] = value > top[p] ? value : top[p];
      }
    for (std::int64_t c = 0; c < classes; ++c)
      for (std::int64_t p = 0; p < count; ++p)
        tile[c * pitch + p] = math::exp_to_one(static_cast<C>(x[c * inner + p]) - top[p]);
    lane_sums(tile, pitch, classes, count, log_sum);
    for (std::int64_t p = 0; p < count; ++p) log_sum[p] = math::log(log_sum[p]);
    if (smooth) {
      for (std::int64_t c = 0; c < classes; ++c) {
        const C factor = w ? static_cast<C>(w[c]) : C(1);
        for (std::int64_t p = 0; p < count; ++p) {
          const C term = log_sum[p] - (static_cast<C>(x[c * inner + p]) - top[p]);
          tile[c * pitch + p] = w ? factor * term : term;
        }
      }
      lane_sums(tile, pitch, classes, count, even);
    }
    for (std::int64_t p = 0; p < count; ++p) {
      norm[2 * (row + p)] = top[p];
      norm[2 * (row + p) + 1] = log_sum[p];
      const std::int64_t at = t[row + p];
      C value = 0;
      if (at != problem.ignore_index) {
        if (at < 0 || at >= classes) throw_bad_target("cross_entropy", row + p, at, problem.rows, problem.ignore_index);
        const C factor = w ? static_cast<C>(w[at]) : C(1);
        value = smoothing.sharp * factor * (log_sum[p] - (static_cast<C>(x[at * inner + p]) - top[p]));
        if (smooth) value += smoothing.even * even[p];
        sum[0] += value;
        sum[1] += factor;
      }
      if (values) values[row + p] = static_cast<T>(value);
    }
  };

  const auto sums =
      block_sums<2>(problem.rows.rows(), rows_of_block(problem.rows), [&](std::int64_t begin, std::int64_t end) {
        std::array<double, 2> sum{};
        const auto tile = std::make_unique_for_overwrite<C[]>(kTile);
        for_runs(problem.rows, begin, end, [&](std::int64_t row, std::int64_t offset, std::int64_t count) {
          run(row, logits.data<T>() + offset, count, tile.get(), sum);
        });
        return sum;
      });
  write_totals<T>(sums, problem, loss, total_weight);
}

template <typename T>
void backward(const Tensor& grad, const Tensor& logits, const Tensor& target, const Tensor& weight,
              const Tensor& normalizers, const Tensor& total_weight, const Tensor& grad_input,
              const CrossEntropyProblem& problem) {
  using C = compute_t<T>;
  const std::int64_t classes = problem.rows.classes, inner = problem.rows.inner;
  const std::int64_t pitch = positions_of_tile(classes);
  const T* g = grad.data<T>();
  const auto* t = target.data<std::int64_t>();
  const T* w = weight.defined() ? weight.data<T>() : nullptr;
  const C* norm = normalizers.data<C>();
  const Smoothing<C> smoothing(problem, w);
  const bool smooth = problem.label_smoothing > 0.0;
  const bool each = problem.reduction == Reduction::none;
  const C scale = problem.reduction == Reduction::mean ? static_cast<C>(1.0 / *total_weight.data<double>()) : C(1);

  const auto run = [&](std::int64_t row, const T* x, T* d, std::int64_t count, C* tile) {
    C top[kMostPositions], log_sum[kMostPositions], spread[kMostPositions], sharp[kMostPositions];
    C even[kMostPositions];
    bool counts[kMostPositions];
    for (std::int64_t p = 0; p < count; ++p) {
      const std::int64_t at = t[row + p];
      top[p] = norm[2 * (row + p)];
      log_sum[p] = norm[2 * (row + p) + 1];
      counts[p] = at != problem.ignore_index;
      const C incoming = counts[p] ? static_cast<C>(g[each ? row + p : 0]) * scale : C(0);
      const C factor = smoothing.sharp * (w && counts[p] ? static_cast<C>(w[at]) : C(1));
      const C total = smooth ? factor + smoothing.even * smoothing.weight_of_all : factor;
      spread[p] = incoming * total;
      sharp[p] = incoming * factor;
      even[p] = incoming * smoothing.even;
    }
    for (std::int64_t c = 0; c < classes; ++c)
      for (std::int64_t p = 0; p < count; ++p)
        tile[c * pitch + p] = math::exp_to_one((static_cast<C>(x[c * inner + p]) - top[p]) - log_sum[p]) * spread[p];
    for (std::int64_t p = 0; p < count; ++p)
      if (counts[p]) tile[t[row + p] * pitch + p] -= sharp[p];
    for (std::int64_t c = 0; c < classes; ++c) {
      const C factor = w ? static_cast<C>(w[c]) : C(1);
      C* const values = tile + c * pitch;
      if (smooth)
        for (std::int64_t p = 0; p < count; ++p) values[p] -= even[p] * factor;
      for (std::int64_t p = 0; p < count; ++p) d[c * inner + p] = counts[p] ? static_cast<T>(values[p]) : T(C(0));
    }
  };

  parallel_for(problem.rows.rows(), rows_of_block(problem.rows), [&](std::int64_t begin, std::int64_t end) {
    const auto tile = std::make_unique_for_overwrite<C[]>(kTile);
    for_runs(problem.rows, begin, end, [&](std::int64_t row, std::int64_t offset, std::int64_t count) {
      run(row, logits.data<T>() + offset, grad_input.data<T>() + offset, count, tile.get());
    });
  });
}

}  // namespace

void cross_entropy_of_planes(const Tensor& logits, const Tensor& target, const Tensor& weight, const Tensor& loss,
                             const Tensor& normalizers, const Tensor& total_weight,
                             const CrossEntropyProblem& problem) {
  dispatch_floating(logits.dtype(), "cross_entropy", [&]<typename T>() {
    forward<T>(logits, target, weight, loss, normalizers, total_weight, problem);
  });
}

void cross_entropy_of_planes_backward(const Tensor& grad, const Tensor& logits, const Tensor& target,
                                      const Tensor& weight, const Tensor& normalizers, const Tensor& total_weight,
                                      const Tensor& grad_input, const CrossEntropyProblem& problem) {
  dispatch_floating(logits.dtype(), "cross_entropy", [&]<typename T>() {
    backward<T>(grad, logits, target, weight, normalizers, total_weight, grad_input, problem);
  });
}

}  // namespace lockstep
