#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/autograd/ops/batch_norm/batch_norm_kernels.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_rows.h"
#include "lockstep/autograd/ops/support/parameter_values.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {

namespace {

using cpu::kElementBlock;
using cpu::long_sum;

constexpr std::int64_t kGroup = 64;  // at most so many neighbouring channels are handled together
constexpr std::int64_t kRun = 4096;  // elements of a sample that are handled together, if there are enough channels
constexpr std::int64_t kChunk = 1 << 15;   // elements to a task: two passes over them stay in the second-level cache
constexpr std::int64_t kColumnRows = 512;  // samples to a task where inner == 1: each column adds up in one float

template <typename C>
std::vector<C> inverse_deviations(const Tensor& var, double eps) {
  std::vector<C> values(static_cast<std::size_t>(var.numel()));
  for (std::size_t c = 0; c < values.size(); ++c)
    values[c] = static_cast<C>(1.0 / std::sqrt(static_cast<double>(var.data<C>()[c]) + eps));
  return values;
}

/// Note [Channel chunks]
/// Sums over the samples of each channel are taken in chunks: some neighbouring channels of some samples, a cut that is
/// a function of the shape alone. Chunks run in parallel; the partial sums of a channel are combined in sample order.
/// So memory is read in long runs whatever the number of channels, and the bits do not depend on the number of threads.
struct Chunks {
  std::int64_t group;    ///< channels to a chunk; the last may have fewer
  std::int64_t samples;  ///< samples to a chunk; the last may have fewer
  std::int64_t count;    ///< chunks along the samples
  explicit Chunks(const ChannelLayout& layout)
      : group(std::clamp<std::int64_t>(kRun / std::max<std::int64_t>(layout.inner, 1), 1,
                                       std::min(kGroup, std::max<std::int64_t>(layout.channels, 1)))),
        samples(std::clamp<std::int64_t>(kChunk / std::max<std::int64_t>(group * layout.inner, 1), 1,
                                         layout.inner == 1 ? kColumnRows : kChunk)),
        count((layout.batch + samples - 1) / samples) {}

  std::size_t partial(std::int64_t channel, std::int64_t chunk) const {
    return static_cast<std::size_t>(channel * count + chunk);
  }
};

/// One chunk: `width` channels from `channel`, `samples` samples from `first`.
struct Chunk {
  std::int64_t channel, width, index, first, samples;
};

/// Calls body(chunk) for each, in parallel.
template <typename Body>
void for_each_chunk(const ChannelLayout& layout, const Chunks& chunks, Body&& body) {
  const std::int64_t groups = (layout.channels + chunks.group - 1) / chunks.group;
  const std::int64_t elements =
      std::max<std::int64_t>(std::min(chunks.samples, layout.batch) * chunks.group * layout.inner, 1);
  parallel_for(groups * chunks.count, std::max<std::int64_t>(kElementBlock / elements, 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t item = begin; item < end; ++item) {
                   const std::int64_t channel = item / chunks.count * chunks.group, index = item % chunks.count;
                   const std::int64_t first = index * chunks.samples;
                   body(Chunk{channel, std::min(chunks.group, layout.channels - channel), index, first,
                              std::min(chunks.samples, layout.batch - first)});
                 }
               });
}

struct Moments {
  double mean = 0, squares = 0;  ///< squares: sum of (x - mean)^2
};

template <typename T>
void statistics(const Tensor& input, const Tensor& mean, const Tensor& var, const ChannelLayout& layout) {
  using C = compute_t<T>;
  const T* x = input.data<T>();
  const Chunks chunks(layout);
  std::vector<Moments> partials(static_cast<std::size_t>(layout.channels * chunks.count));
  for_each_chunk(layout, chunks, [&](const Chunk& chunk) {
    const T* from = x + (chunk.first * layout.channels + chunk.channel) * layout.inner;
    const std::int64_t stride = layout.channels * layout.inner;
    double sum[kGroup] = {}, squares[kGroup] = {};
    C center[kGroup] = {};
    const auto find_centers = [&] {
      const double count = static_cast<double>(chunk.samples * layout.inner);
      for (std::int64_t j = 0; j < chunk.width; ++j) center[j] = static_cast<C>(sum[j] / count);
    };
    if (layout.inner == 1) {
      C columns[kGroup] = {};
      for (std::int64_t n = 0; n < chunk.samples; ++n)
        for (std::int64_t j = 0; j < chunk.width; ++j) columns[j] += static_cast<C>(from[n * stride + j]);
      std::copy_n(columns, chunk.width, sum);
      find_centers();
      std::fill_n(columns, chunk.width, C(0));
      for (std::int64_t n = 0; n < chunk.samples; ++n)
        for (std::int64_t j = 0; j < chunk.width; ++j) {
          const C difference = static_cast<C>(from[n * stride + j]) - center[j];
          columns[j] = std::fma(difference, difference, columns[j]);
        }
      std::copy_n(columns, chunk.width, squares);
    } else {
      for (std::int64_t n = 0; n < chunk.samples; ++n)
        for (std::int64_t j = 0; j < chunk.width; ++j) {
          const T* plane = from + n * stride + j * layout.inner;
          sum[j] += long_sum<C>(layout.inner, [=](std::int64_t i) { return static_cast<C>(plane[i]); });
        }
      find_centers();
      for (std::int64_t n = 0; n < chunk.samples; ++n)
        for (std::int64_t j = 0; j < chunk.width; ++j) {
          const T* plane = from + n * stride + j * layout.inner;
          const C middle = center[j];
          squares[j] += long_sum<C>(layout.inner, [=](std::int64_t i) {
            const C difference = static_cast<C>(plane[i]) - middle;
            return difference * difference;
          });
        }
    }
    const double count = static_cast<double>(chunk.samples * layout.inner);
    for (std::int64_t j = 0; j < chunk.width; ++j)
      partials[chunks.partial(chunk.channel + j, chunk.index)] = {sum[j] / count, squares[j]};
  });
  // Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
  for (std::int64_t channel = 0; channel < layout.channels; ++channel) {
    Moments total;
    double count = 0;
    for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      const Moments& m = partials[chunks.partial(channel, chunk)];
      const double n =
          static_cast<double>(std::min(chunks.samples, layout.batch - chunk * chunks.samples) * layout.inner);
      const double delta = m.mean - total.mean;
      total.squares += m.squares + delta * delta * count * n / (count + n);
      total.mean += delta * n / (count + n);
      count += n;
    }
    mean.data<C>()[channel] = static_cast<C>(total.mean);
    var.data<C>()[channel] = static_cast<C>(count > 0 ? total.squares / count : 0.0);
  }
}

/// Calls before(offset) for each plane that it is about to read, where inner > 1.
template <typename T, typename Before>
void gradient_sums(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                   const Tensor& sum_grad, const Tensor& sum_grad_normalized, double eps, const ChannelLayout& layout,
                   Before&& before) {
  using C = compute_t<T>;
  const T* g = grad.data<T>();
  const T* x = input.data<T>();
  const C* center = mean.data<C>();
  const Chunks chunks(layout);
  struct Sums {
    double grad = 0, product = 0;
  };
  std::vector<Sums> partials(static_cast<std::size_t>(layout.channels * chunks.count));
  for_each_chunk(layout, chunks, [&](const Chunk& chunk) {
    const std::int64_t offset = (chunk.first * layout.channels + chunk.channel) * layout.inner;
    const std::int64_t stride = layout.channels * layout.inner;
    double sum[kGroup] = {}, product[kGroup] = {};
    if (layout.inner == 1) {
      C columns[kGroup] = {}, products[kGroup] = {};
      const C* middle = center + chunk.channel;
      for (std::int64_t n = 0; n < chunk.samples; ++n)
        for (std::int64_t j = 0; j < chunk.width; ++j) {
          const C incoming = static_cast<C>(g[offset + n * stride + j]);
          columns[j] += incoming;
          products[j] = std::fma(incoming, static_cast<C>(x[offset + n * stride + j]) - middle[j], products[j]);
        }
      std::copy_n(columns, chunk.width, sum);
      std::copy_n(products, chunk.width, product);
    } else {
      for (std::int64_t n = 0; n < chunk.samples; ++n)
        for (std::int64_t j = 0; j < chunk.width; ++j) {
          const std::int64_t plane = offset + n * stride + j * layout.inner;
          const T *gp = g + plane, *xp = x + plane;
          const C middle = center[chunk.channel + j];
          before(plane);
          sum[j] += long_sum<C>(layout.inner, [=](std::int64_t i) { return static_cast<C>(gp[i]); });
          product[j] += long_sum<C>(
              layout.inner, [=](std::int64_t i) { return static_cast<C>(gp[i]) * (static_cast<C>(xp[i]) - middle); });
        }
    }
    for (std::int64_t j = 0; j < chunk.width; ++j)
      partials[chunks.partial(chunk.channel + j, chunk.index)] = {sum[j], product[j]};
  });
  for (std::int64_t channel = 0; channel < layout.channels; ++channel) {
    Sums total;
    for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      const Sums& sums = partials[chunks.partial(channel, chunk)];
      total.grad += sums.grad;
      total.product += sums.product;
    }
    sum_grad.data<C>()[channel] = static_cast<C>(total.grad);
    sum_grad_normalized.data<C>()[channel] =
        static_cast<C>(total.product / std::sqrt(static_cast<double>(var.data<C>()[channel]) + eps));
  }
}

/// Calls run(offset, length, channel) for runs of elements that are contiguous in memory: a plane of one channel, or,
/// where inner == 1, a row of all channels; in parallel.
template <typename Run>
void for_each_run(const ChannelLayout& layout, Run&& run) {
  const bool rows = layout.inner == 1;
  const std::int64_t length = rows ? layout.channels : layout.inner;
  if (length == 0) return;
  const std::int64_t runs = rows ? layout.batch : layout.batch * layout.channels;
  parallel_for(runs, std::max<std::int64_t>(kElementBlock / length, 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) run(i * length, length, rows ? 0 : i % layout.channels);
  });
}

/// Writes each run of elements to place(offset, length), and then calls after(offset, length).
template <typename T, typename Place, typename After>
void apply(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight, const Tensor& bias,
           double eps, const ChannelLayout& layout, Place&& place, After&& after) {
  using C = compute_t<T>;
  const T* x = input.data<T>();
  const C* center = mean.data<C>();
  std::vector<C> scale = inverse_deviations<C>(var, eps);
  const std::vector<C> factor = parameter_values<C>(weight, layout.channels, C(1), "batch_norm");
  const std::vector<C> shift = parameter_values<C>(bias, layout.channels, C(0), "batch_norm");
  for (std::size_t c = 0; c < scale.size(); ++c) scale[c] *= factor[c];
  const C* s = scale.data();
  const C* b = shift.data();
  if (layout.inner == 1) {
    for_each_run(layout, [&](std::int64_t offset, std::int64_t length, std::int64_t) {
      T* const y = place(offset, length);
      for (std::int64_t i = 0; i < length; ++i)
        y[i] = static_cast<T>(std::fma(static_cast<C>(x[offset + i]) - center[i], s[i], b[i]));
      after(offset, length);
    });
  } else {
    for_each_run(layout, [&](std::int64_t offset, std::int64_t length, std::int64_t c) {
      const C middle = center[c], slope = s[c], level = b[c];
      T* const y = place(offset, length);
      for (std::int64_t i = 0; i < length; ++i)
        y[i] = static_cast<T>(std::fma(static_cast<C>(x[offset + i]) - middle, slope, level));
      after(offset, length);
    });
  }
}

template <typename T>
void input_grad(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                const Tensor& sum_grad, const Tensor& sum_grad_normalized, const Tensor& grad_input, double eps,
                std::int64_t count, const ChannelLayout& layout) {
  using C = compute_t<T>;
  const T* g = grad.data<T>();
  const T* x = input.data<T>();
  T* d = grad_input.data<T>();
  const C* center = mean.data<C>();
  const std::vector<C> inverse = inverse_deviations<C>(var, eps);
  std::vector<C> scale = parameter_values<C>(weight, layout.channels, C(1), "batch_norm");
  // d = (g - a - (x - mean) * b) * scale; where b is 0, an infinite x has no part in it.
  const auto gradient = [](C g, C a, C distance, C b, C s) { return (g - a - (b == C(0) ? C(0) : distance * b)) * s; };
  std::vector<C> a(scale.size(), C(0)), b(scale.size(), C(0));
  for (std::size_t c = 0; c < scale.size(); ++c) {
    scale[c] *= inverse[c];
    if (sum_grad.defined()) {
      a[c] = sum_grad.data<C>()[c] / static_cast<C>(count);
      b[c] = sum_grad_normalized.data<C>()[c] * inverse[c] / static_cast<C>(count);
    }
  }
  if (layout.inner == 1) {
    for_each_run(layout, [&](std::int64_t offset, std::int64_t length, std::int64_t) {
      const C *s = scale.data(), *ap = a.data(), *bp = b.data();
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < length; ++i)
        d[offset + i] = static_cast<T>(
            gradient(static_cast<C>(g[offset + i]), ap[i], static_cast<C>(x[offset + i]) - center[i], bp[i], s[i]));
    });
  } else {
    for_each_run(layout, [&](std::int64_t offset, std::int64_t length, std::int64_t c) {
      const auto k = static_cast<std::size_t>(c);
      const C middle = center[c], s = scale[k], ac = a[k], bc = b[k];
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < length; ++i)
        d[offset + i] =
            static_cast<T>(gradient(static_cast<C>(g[offset + i]), ac, static_cast<C>(x[offset + i]) - middle, bc, s));
    });
  }
}

}  // namespace

void batch_norm_statistics_cpu(const Tensor& input, const Tensor& mean, const Tensor& var, ChannelLayout layout,
                               const BatchNormRunning& running) {
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() { statistics<T>(input, mean, var, layout); });
  batch_norm_running_cpu(mean, var, running);
}

namespace {

void update_running(const Tensor& value, const Tensor& running, double scale, double momentum) {
  if (!running.defined()) return;
  const std::vector<double> values = parameter_values<double>(value, value.numel(), 0.0, "batch_norm");
  dispatch_floating(running.dtype(), "batch_norm", [&]<typename R>() {
    R* r = running.data<R>();
    for (std::size_t c = 0; c < values.size(); ++c)
      r[c] = static_cast<R>(static_cast<compute_t<R>>(
          (1.0 - momentum) * static_cast<double>(static_cast<compute_t<R>>(r[c])) + momentum * scale * values[c]));
  });
}

}  // namespace

void batch_norm_running_cpu(const Tensor& mean, const Tensor& var, const BatchNormRunning& running) {
  update_running(mean, running.mean, 1.0, running.momentum);
  update_running(var, running.var, running.unbiased, running.momentum);
  if (running.batches.defined()) ++*running.batches.data<std::int64_t>();
}

void batch_norm_apply_cpu(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                          const Tensor& bias, const Tensor& output, double eps, ChannelLayout layout) {
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    T* const out = output.data<T>();
    apply<T>(
        input, mean, var, weight, bias, eps, layout, [=](std::int64_t offset, std::int64_t) { return out + offset; },
        [](std::int64_t, std::int64_t) {});
  });
}

void batch_norm_apply_linked_cpu(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                                 const Tensor& bias, const Tensor& output, double eps, ChannelLayout layout,
                                 const ElementwiseLinks& links) {
  float* const values = output.data<float>();
  apply<float>(
      input, mean, var, weight, bias, eps, layout, [=](std::int64_t offset, std::int64_t) { return values + offset; },
      [&](std::int64_t offset, std::int64_t length) { links.apply(values + offset, offset, length); });
}

void batch_norm_pool_cpu(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                         const Tensor& bias, double eps, ChannelLayout layout, const ElementwiseLinks& before,
                         const Pool2dGeometry& pool, ReluPlace relu, const Tensor& output, const Tensor& positions) {
  static thread_local std::vector<float> plane;
  float* const out = output.data<float>();
  std::uint8_t* const where = positions.defined() ? positions.data<std::uint8_t>() : nullptr;
  const auto run = max_pool_rows::pool_plane_function(where != nullptr, relu);
  apply<float>(
      input, mean, var, weight, bias, eps, layout,
      [](std::int64_t, std::int64_t length) {
        plane.resize(static_cast<std::size_t>(length));
        return plane.data();
      },
      [&](std::int64_t offset, std::int64_t length) {
        before.apply(plane.data(), offset, length);
        const std::int64_t at = offset / length * pool.oh * pool.ow;
        run(plane.data(), pool.w, pool.oh, pool.ow, out + at, where ? where + at : nullptr);
      });
}

void batch_norm_sums_cpu(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                         const Tensor& sum_grad, const Tensor& sum_grad_normalized, double eps, ChannelLayout layout) {
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    gradient_sums<T>(grad, input, mean, var, sum_grad, sum_grad_normalized, eps, layout, [](std::int64_t) {});
  });
}

void batch_norm_pooled_sums_cpu(const Pool2dGeometry& pool, const Tensor& pool_grad, const Tensor& positions,
                                const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                                const Tensor& sum_grad, const Tensor& sum_grad_normalized, double eps,
                                ChannelLayout layout) {
  const float* const from = pool_grad.data<float>();
  const std::uint8_t* const where = positions.data<std::uint8_t>();
  float* const to = grad.data<float>();
  const max_pool_rows::SpreadPlane spread = max_pool_rows::spread_plane_function();
  gradient_sums<float>(grad, input, mean, var, sum_grad, sum_grad_normalized, eps, layout, [&](std::int64_t plane) {
    const std::int64_t at = plane / layout.inner * pool.oh * pool.ow;
    spread(from + at, where + at, pool.h, pool.w, to + plane);
  });
}

void batch_norm_input_grad_cpu(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                               const Tensor& weight, const Tensor& sum_grad, const Tensor& sum_grad_normalized,
                               const Tensor& grad_input, double eps, std::int64_t count, ChannelLayout layout) {
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    input_grad<T>(grad, input, mean, var, weight, sum_grad, sum_grad_normalized, grad_input, eps, count, layout);
  });
}

}  // namespace lockstep
