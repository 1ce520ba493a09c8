// Sums over each channel, as Note [Channel tiles] says; what is done element by element is in batch_norm_cuda.cu.

#include <cmath>

#include "lockstep/autograd/ops/batch_norm/batch_norm_apply.cuh"
#include "lockstep/autograd/ops/batch_norm/batch_norm_kernels.h"
#include "lockstep/autograd/ops/batch_norm/batch_norm_running.cuh"
#include "lockstep/autograd/ops/support/channel_tiles.cuh"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::kThreads;
using cuda::kWarpSize;
using cuda::Pack;
using cuda::Sums;
using cuda::TilePlan;

struct Partial {
  double first, second;
};

/// Each tile's mean, and its sum of (x - mean)^2: about a centre that is the mean but for rounding, and then corrected;
/// Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983).
template <typename T, typename Tile>
__global__ void statistics_kernel(const T* x, Partial* partials, TilePlan plan) {
  using C = compute_t<T>;
  constexpr int W = Tile::kWidth;
  const Tile tile(plan);
  C values[Tile::kPacks * W], sum = 0;
#pragma unroll
  for (int p = 0; p < Tile::kPacks; ++p) {
    if (!tile.has(p)) continue;
    const auto pack = *reinterpret_cast<const Pack<T, W>*>(x + tile.offset(p));
#pragma unroll
    for (int j = 0; j < W; ++j) sum += values[p * W + j] = from_element<C>(pack.value[j]);
  }
  const double count = plan.count(tile.chunk);
  const C center = tile.sum(sum) / static_cast<C>(count);
  Sums<C, 2> moments{{C(0), C(0)}};
#pragma unroll
  for (int p = 0; p < Tile::kPacks; ++p) {
    if (!tile.has(p)) continue;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const C difference = values[p * W + j] - center;
      moments.value[0] += difference;
      moments.value[1] += difference * difference;
    }
  }
  moments = tile.sum(moments);
  if (!tile.writes()) return;
  const double rest = static_cast<double>(moments.value[0]);
  partials[tile.channel * plan.chunks + tile.chunk] = {static_cast<double>(center) + rest / count,
                                                       static_cast<double>(moments.value[1]) - rest * rest / count};
}

/// Values that were seen, their mean, and the sum of (x - mean)^2, for each of W channels.
template <typename C, int W>
struct Moments {
  C count = 0;
  C mean[W] = {}, squares[W] = {};

  /// Those of both; the formula of the same paper.
  __device__ void add(C other_count, const C (&other_mean)[W], const C (&other_squares)[W]) {
    const C share = other_count / (count + other_count);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const C difference = other_mean[j] - mean[j];
      mean[j] += difference * share;
      squares[j] += other_squares[j] + difference * (count * share) * difference;  // nothing of nothing is finite
    }
    count += other_count;
  }
};

/// The same as statistics_kernel() for tiles of whole samples: each thread looks at a few samples at a time, and adds
/// up what it finds; then the threads of a channel do, two by two.
template <typename T, int W>
__global__ void sample_statistics_kernel(const T* x, Partial* partials, TilePlan plan) {
  using C = compute_t<T>;
  using Tile = cuda::Samples<W>;
  const Tile tile(plan);
  Moments<C, W> found;
  for (int g = 0; g < plan.groups; ++g) {
    Pack<T, W> packs[Tile::kPacks] = {};
    C count = 0, mean[W] = {}, squares[W] = {};
#pragma unroll
    for (int p = 0; p < Tile::kPacks; ++p) {
      const int at = g * Tile::kPacks + p;
      if (!tile.has(at)) continue;
      packs[p] = *reinterpret_cast<const Pack<T, W>*>(x + tile.offset(at));
      count += C(1);
#pragma unroll
      for (int j = 0; j < W; ++j) mean[j] += from_element<C>(packs[p].value[j]);
    }
    if (count == C(0)) break;
    const C inverse = C(1) / count;
#pragma unroll
    for (int j = 0; j < W; ++j) mean[j] *= inverse;
#pragma unroll
    for (int p = 0; p < Tile::kPacks; ++p) {
      if (!tile.has(g * Tile::kPacks + p)) continue;
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const C difference = from_element<C>(packs[p].value[j]) - mean[j];
        squares[j] += difference * difference;
      }
    }
    found.add(count, mean, squares);
  }

  __shared__ C counts[kThreads], means[W][kThreads], all_squares[W][kThreads];
  const int here = static_cast<int>(threadIdx.x);
  for (int rows = plan.down; rows > 1; rows = (rows + 1) / 2) {
    const int half = (rows + 1) / 2;
    if (tile.row >= half && tile.row < rows) {
      counts[here] = found.count;
#pragma unroll
      for (int j = 0; j < W; ++j) means[j][here] = found.mean[j], all_squares[j][here] = found.squares[j];
    }
    __syncthreads();
    const int there = here + half * plan.across;
    if (tile.row < rows - half && counts[there] > C(0)) {
      C mean[W], squares[W];
#pragma unroll
      for (int j = 0; j < W; ++j) mean[j] = means[j][there], squares[j] = all_squares[j][there];
      found.add(counts[there], mean, squares);
    }
  }
  if (!tile.writes()) return;
#pragma unroll
  for (int j = 0; j < W; ++j)
    partials[(tile.channel + j) * plan.chunks + tile.chunk] = {static_cast<double>(found.mean[j]),
                                                               static_cast<double>(found.squares[j])};
}

/// One warp to a channel.
template <typename C>
__global__ void finish_statistics_kernel(const Partial* partials, C* mean, C* var, TilePlan plan, Running running) {
  const std::int64_t channel = cuda::global_thread() / kWarpSize, lane = threadIdx.x % kWarpSize;
  if (channel >= plan.layout.channels) return;
  const std::int64_t count = plan.layout.batch * plan.layout.inner, chunks = plan.chunks;
  partials += channel * chunks;
  double sum = 0;
  for (std::int64_t k = lane; k < chunks; k += kWarpSize) sum += partials[k].first * plan.count(k);
  const double center = cuda::warp_sum(sum) / static_cast<double>(count);
  double squares = 0;
  for (std::int64_t k = lane; k < chunks; k += kWarpSize) {
    const double difference = partials[k].first - center;
    squares += partials[k].second + difference * difference * plan.count(k);
  }
  squares = cuda::warp_sum(squares);
  if (lane != 0) return;
  mean[channel] = static_cast<C>(center);
  var[channel] = static_cast<C>(squares > 0 || squares != squares ? squares / static_cast<double>(count) : 0.0);
  running.update(channel);
}

/// The factors of a thread's channels. Where many threads have the same ones, each is made once.
template <typename T, typename Tile>
__device__ void find_factors(const Tile& tile, const Apply<T>& forward, bool whole,
                             typename Apply<T>::Factors (&factors)[Tile::kChannels]) {
  constexpr int K = Tile::kChannels;
  const std::int64_t channels = tile.plan.layout.channels;
  if constexpr (K > 1) {
    if (whole) {
      using C = compute_t<T>;
      alignas(16) __shared__ C all[3][kThreads * K];
      for (std::int64_t c = threadIdx.x; c < channels; c += kThreads) {
        const auto f = forward.at(c);
        all[0][c] = f.mean, all[1][c] = f.slope, all[2][c] = f.level;
      }
      __syncthreads();
#pragma unroll
      for (int k = 0; k < K; ++k)
        factors[k] = {all[0][tile.channel + k], all[1][tile.channel + k], all[2][tile.channel + k]};
      return;
    }
  }
#pragma unroll
  for (int k = 0; k < K; ++k) {
    factors[k] = {};
    if (tile.channel >= channels) continue;
    if (whole)
      factors[k] = forward.at(tile.channel + k);
    else
      factors[k].mean = forward.mean[tile.channel + k];
  }
}

/// kThrough: of what of the gradient comes through the relu behind the normalisation.
template <typename T, typename Tile, bool kThrough>
__global__ void sums_kernel(const T* grad, const T* x, Apply<T> forward, Partial* partials, TilePlan plan) {
  using C = compute_t<T>;
  constexpr int W = Tile::kWidth, K = Tile::kChannels;
  const Tile tile(plan);
  typename Apply<T>::Factors factors[K];
  find_factors<T>(tile, forward, kThrough, factors);
  Sums<C, 2 * K> sums{};
  for (int group = 0; group < plan.groups; ++group)
#pragma unroll
    for (int p = 0; p < Tile::kPacks; ++p) {
      const int pack = group * Tile::kPacks + p;
      if (!tile.has(pack)) continue;
      const std::int64_t at = tile.offset(pack);
      const auto incoming = *reinterpret_cast<const Pack<T, W>*>(grad + at);
      const auto values = *reinterpret_cast<const Pack<T, W>*>(x + at);
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const C value = from_element<C>(values.value[j]);
        C g = from_element<C>(incoming.value[j]);
        if constexpr (kThrough) g = through_relu<T>(factors[j % K], g, value);
        sums.value[j % K * 2] += g;
        sums.value[j % K * 2 + 1] += g * (value - factors[j % K].mean);
      }
    }
  sums = tile.sum(sums);
  if (!tile.writes()) return;
#pragma unroll
  for (int k = 0; k < K; ++k)
    partials[(tile.channel + k) * plan.chunks + tile.chunk] = {static_cast<double>(sums.value[k * 2]),
                                                               static_cast<double>(sums.value[k * 2 + 1])};
}

template <typename C>
__global__ void finish_sums_kernel(const Partial* partials, const C* var, double eps, C* sum_grad,
                                   C* sum_grad_normalized, std::int64_t channels, std::int64_t chunks) {
  const std::int64_t channel = cuda::global_thread() / kWarpSize, lane = threadIdx.x % kWarpSize;
  if (channel >= channels) return;
  Sums<double, 2> sums{{0.0, 0.0}};
  for (std::int64_t k = lane; k < chunks; k += kWarpSize) {
    sums.value[0] += partials[channel * chunks + k].first;
    sums.value[1] += partials[channel * chunks + k].second;
  }
  sums = cuda::warp_sum(sums);
  if (lane != 0) return;
  sum_grad[channel] = static_cast<C>(sums.value[0]);
  sum_grad_normalized[channel] = static_cast<C>(sums.value[1] / std::sqrt(static_cast<double>(var[channel]) + eps));
}

Tensor make_partials(const Tensor& like, std::int64_t count) {
  return empty({count, 2}, {.dtype = kFloat64, .device = like.device()});
}

}  // namespace

void batch_norm_statistics_cuda(const Tensor& input, const Tensor& mean, const Tensor& var, ChannelLayout layout,
                                const BatchNormRunning& running) {
  cuda::require_not_portable("batch_norm");
  if (layout.channels == 0) return;
  if (layout.count() == 0) {
    fill_values(mean, 0);
    fill_values(var, 0);
    return;
  }
  const cuda::Launch launch(input);
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    cuda::with_tile<T>(layout, cuda::aligned(input.raw_data(), 16), [&]<typename Tile>() {
      const TilePlan plan = Tile::plan_of(layout);
      const Tensor partials = make_partials(input, layout.channels * plan.chunks);
      auto* parts = static_cast<Partial*>(partials.raw_data());
      const unsigned blocks = Tile::blocks(plan);
      if constexpr (Tile::kChannels > 1)
        launch(sample_statistics_kernel<T, Tile::kWidth>, blocks, kThreads, input.data<T>(), parts, plan);
      else
        launch(statistics_kernel<T, Tile>, blocks, kThreads, input.data<T>(), parts, plan);
      launch(finish_statistics_kernel<C>, cuda::warps_for(layout.channels), kThreads, parts, mean.data<C>(),
             var.data<C>(), plan, Running(mean, var, running));
    });
  });
}

void batch_norm_sums_cuda(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                          const Tensor& sum_grad, const Tensor& sum_grad_normalized, double eps, ChannelLayout layout) {
  batch_norm_sums_through_cuda(grad, input, mean, var, Tensor(), Tensor(), false, sum_grad, sum_grad_normalized, eps,
                               layout);
}

void batch_norm_sums_through_cuda(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                                  const Tensor& weight, const Tensor& bias, bool relu, const Tensor& sum_grad,
                                  const Tensor& sum_grad_normalized, double eps, ChannelLayout layout) {
  cuda::require_not_portable("the gradient of batch_norm");
  if (layout.channels == 0) return;
  const cuda::Launch launch(input);
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    const bool aligned = cuda::aligned(grad.raw_data(), 16) && cuda::aligned(input.raw_data(), 16);
    cuda::with_tile<T>(layout, aligned, [&]<typename Tile>() {
      const TilePlan plan = Tile::plan_of(layout);
      const Tensor partials = make_partials(input, layout.channels * plan.chunks);
      auto* parts = static_cast<Partial*>(partials.raw_data());
      const auto sum = [&](auto* kernel) {
        launch(kernel, Tile::blocks(plan), kThreads, grad.data<T>(), input.data<T>(),
               Apply<T>(mean, var, weight, bias, eps), parts, plan);
      };
      if (plan.chunks > 0 && relu)
        sum(sums_kernel<T, Tile, true>);
      else if (plan.chunks > 0)
        sum(sums_kernel<T, Tile, false>);
      launch(finish_sums_kernel<C>, cuda::warps_for(layout.channels), kThreads, parts, var.data<C>(), eps,
             sum_grad.data<C>(), sum_grad_normalized.data<C>(), layout.channels, plan.chunks);
    });
  });
}

}  // namespace lockstep
