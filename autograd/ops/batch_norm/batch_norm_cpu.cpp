#include <algorithm>
#include <cmath>
#include <vector>

#include "autograd/ops/batch_norm/batch_norm_kernels.h"
#include "core/cpu/vector_math.h"
#include "core/dispatch.h"
#include "core/elementwise.h"
#include "core/thread_pool.h"

namespace lockstep {

namespace {

using cpu::kElementBlock;
using cpu::long_sum;

constexpr std::int64_t kColumns = 64;     // neighbouring channels handled together where inner == 1
constexpr std::int64_t kChunkRows = 256;  // samples to a chunk where inner == 1

/// The values of a [C] tensor of any floating-point dtype, or `fallback` for each channel if it is undefined.
template <typename C>
std::vector<C> channel_values(const Tensor& tensor, std::int64_t channels, C fallback) {
  std::vector<C> values(static_cast<std::size_t>(channels), fallback);
  if (tensor.defined())
    dispatch_floating(tensor.dtype(), "batch_norm",
                      [&]<typename W>() { std::copy_n(tensor.data<W>(), channels, values.begin()); });
  return values;
}

template <typename C>
std::vector<C> inverse_deviations(const Tensor& var, double eps) {
  std::vector<C> values(static_cast<std::size_t>(var.numel()));
  for (std::size_t c = 0; c < values.size(); ++c)
    values[c] = static_cast<C>(1.0 / std::sqrt(static_cast<double>(var.data<C>()[c]) + eps));
  return values;
}

/// Note [Channel chunks]
/// The samples of a channel are cut into chunks of about kElementBlock elements, a function of the shape alone. Each
/// (channel, chunk) yields partial sums, and the partials of a channel are combined in chunk order: so channels and
/// chunks run in parallel and the bits do not depend on the number of threads.
struct Chunks {
  std::int64_t samples;  ///< to a chunk; the last may have fewer
  std::int64_t count;    ///< chunks of each channel
  explicit Chunks(const ChannelLayout& layout)
      : samples(layout.inner == 1 ? kChunkRows : std::max<std::int64_t>(kElementBlock / layout.inner, 1)),
        count((layout.batch + samples - 1) / samples) {}
};

/// Calls planes(channel, chunk, first sample, samples) for each chunk of each channel, or, where inner == 1,
/// columns(first channel, channels, chunk, first sample, samples) for groups of channels; in parallel.
template <typename Planes, typename Columns>
void for_each_chunk(const ChannelLayout& layout, const Chunks& chunks, Planes&& planes, Columns&& columns) {
  const auto samples_of = [&](std::int64_t chunk) {
    return std::min(chunks.samples, layout.batch - chunk * chunks.samples);
  };
  const std::int64_t width = layout.inner == 1 ? std::min(kColumns, layout.channels) : layout.inner;
  const std::int64_t elements = std::max<std::int64_t>(std::min(chunks.samples, layout.batch) * width, 1);
  const std::int64_t block = std::max<std::int64_t>(kElementBlock / elements, 1);
  if (layout.inner == 1) {
    const std::int64_t groups = (layout.channels + kColumns - 1) / kColumns;
    parallel_for(groups * chunks.count, block, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t item = begin; item < end; ++item) {
        const std::int64_t channel = item / chunks.count * kColumns, chunk = item % chunks.count;
        columns(channel, std::min(kColumns, layout.channels - channel), chunk, chunk * chunks.samples,
                samples_of(chunk));
      }
    });
    return;
  }
  parallel_for(layout.channels * chunks.count, block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t chunk = item % chunks.count;
      planes(item / chunks.count, chunk, chunk * chunks.samples, samples_of(chunk));
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
  for_each_chunk(
      layout, chunks,
      [&](std::int64_t channel, std::int64_t chunk, std::int64_t first, std::int64_t samples) {
        const auto sum_over_planes = [&](auto&& term) {
          double sum = 0;
          for (std::int64_t n = first; n < first + samples; ++n) {
            const T* plane = x + (n * layout.channels + channel) * layout.inner;
            sum += long_sum<C>(layout.inner, [&](std::int64_t i) { return term(static_cast<C>(plane[i])); });
          }
          return sum;
        };
        Moments& m = partials[static_cast<std::size_t>(channel * chunks.count + chunk)];
        m.mean = sum_over_planes([](C value) { return value; }) / static_cast<double>(samples * layout.inner);
        const C center = static_cast<C>(m.mean);
        m.squares = sum_over_planes([&](C value) { return (value - center) * (value - center); });
      },
      [&](std::int64_t channel, std::int64_t width, std::int64_t chunk, std::int64_t first, std::int64_t samples) {
        C sum[kColumns] = {}, squares[kColumns] = {}, center[kColumns];
        const T* rows = x + first * layout.channels + channel;
        for (std::int64_t n = 0; n < samples; ++n)
          for (std::int64_t j = 0; j < width; ++j) sum[j] += static_cast<C>(rows[n * layout.channels + j]);
        for (std::int64_t j = 0; j < width; ++j) center[j] = sum[j] / static_cast<C>(samples);
        for (std::int64_t n = 0; n < samples; ++n)
          for (std::int64_t j = 0; j < width; ++j) {
            const C difference = static_cast<C>(rows[n * layout.channels + j]) - center[j];
            squares[j] += difference * difference;
          }
        for (std::int64_t j = 0; j < width; ++j)
          partials[static_cast<std::size_t>((channel + j) * chunks.count + chunk)] = {static_cast<double>(center[j]),
                                                                                      static_cast<double>(squares[j])};
      });
  // Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances" (1979).
  for (std::int64_t channel = 0; channel < layout.channels; ++channel) {
    Moments total;
    double count = 0;
    for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      const Moments& m = partials[static_cast<std::size_t>(channel * chunks.count + chunk)];
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

template <typename T>
void gradient_sums(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                   const Tensor& sum_grad, const Tensor& sum_grad_normalized, double eps, const ChannelLayout& layout) {
  using C = compute_t<T>;
  const T* g = grad.data<T>();
  const T* x = input.data<T>();
  const C* center = mean.data<C>();
  const Chunks chunks(layout);
  struct Sums {
    double grad = 0, product = 0;
  };
  std::vector<Sums> partials(static_cast<std::size_t>(layout.channels * chunks.count));
  for_each_chunk(
      layout, chunks,
      [&](std::int64_t channel, std::int64_t chunk, std::int64_t first, std::int64_t samples) {
        Sums& sums = partials[static_cast<std::size_t>(channel * chunks.count + chunk)];
        const C middle = center[channel];
        for (std::int64_t n = first; n < first + samples; ++n) {
          const std::int64_t offset = (n * layout.channels + channel) * layout.inner;
          const T* gp = g + offset;
          const T* xp = x + offset;
          sums.grad += long_sum<C>(layout.inner, [&](std::int64_t i) { return static_cast<C>(gp[i]); });
          sums.product += long_sum<C>(
              layout.inner, [&](std::int64_t i) { return static_cast<C>(gp[i]) * (static_cast<C>(xp[i]) - middle); });
        }
      },
      [&](std::int64_t channel, std::int64_t width, std::int64_t chunk, std::int64_t first, std::int64_t samples) {
        C sum[kColumns] = {}, product[kColumns] = {};
        const std::int64_t offset = first * layout.channels + channel;
        for (std::int64_t n = 0; n < samples; ++n)
          for (std::int64_t j = 0; j < width; ++j) {
            const std::int64_t at = offset + n * layout.channels + j;
            sum[j] += static_cast<C>(g[at]);
            product[j] += static_cast<C>(g[at]) * (static_cast<C>(x[at]) - center[channel + j]);
          }
        for (std::int64_t j = 0; j < width; ++j)
          partials[static_cast<std::size_t>((channel + j) * chunks.count + chunk)] = {static_cast<double>(sum[j]),
                                                                                      static_cast<double>(product[j])};
      });
  for (std::int64_t channel = 0; channel < layout.channels; ++channel) {
    Sums total;
    for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) {
      const Sums& sums = partials[static_cast<std::size_t>(channel * chunks.count + chunk)];
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

template <typename T>
void apply(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight, const Tensor& bias,
           const Tensor& output, double eps, const ChannelLayout& layout) {
  using C = compute_t<T>;
  const T* x = input.data<T>();
  T* y = output.data<T>();
  const C* center = mean.data<C>();
  std::vector<C> scale = inverse_deviations<C>(var, eps);
  const std::vector<C> factor = channel_values<C>(weight, layout.channels, C(1));
  const std::vector<C> shift = channel_values<C>(bias, layout.channels, C(0));
  for (std::size_t c = 0; c < scale.size(); ++c) scale[c] *= factor[c];
  const C* s = scale.data();
  const C* b = shift.data();
  if (layout.inner == 1) {
    for_each_run(layout, [&](std::int64_t offset, std::int64_t length, std::int64_t) {
      for (std::int64_t i = 0; i < length; ++i)
        y[offset + i] = static_cast<T>((static_cast<C>(x[offset + i]) - center[i]) * s[i] + b[i]);
    });
  } else {
    for_each_run(layout, [&](std::int64_t offset, std::int64_t length, std::int64_t c) {
      const C middle = center[c], slope = s[c], level = b[c];
      for (std::int64_t i = 0; i < length; ++i)
        y[offset + i] = static_cast<T>((static_cast<C>(x[offset + i]) - middle) * slope + level);
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
  std::vector<C> scale = channel_values<C>(weight, layout.channels, C(1));
  // d = (g - a - (x - mean) * b) * scale
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
      for (std::int64_t i = 0; i < length; ++i)
        d[offset + i] = static_cast<T>(
            (static_cast<C>(g[offset + i]) - ap[i] - (static_cast<C>(x[offset + i]) - center[i]) * bp[i]) * s[i]);
    });
  } else {
    for_each_run(layout, [&](std::int64_t offset, std::int64_t length, std::int64_t c) {
      const auto k = static_cast<std::size_t>(c);
      const C middle = center[c], s = scale[k], ac = a[k], bc = b[k];
      for (std::int64_t i = 0; i < length; ++i)
        d[offset + i] =
            static_cast<T>((static_cast<C>(g[offset + i]) - ac - (static_cast<C>(x[offset + i]) - middle) * bc) * s);
    });
  }
}

}  // namespace

void batch_norm_statistics_cpu(const Tensor& input, const Tensor& mean, const Tensor& var, ChannelLayout layout) {
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() { statistics<T>(input, mean, var, layout); });
}

void batch_norm_running_cpu(const Tensor& value, const Tensor& running, double scale, double momentum) {
  const std::vector<double> values = channel_values<double>(value, value.numel(), 0.0);
  dispatch_floating(running.dtype(), "batch_norm", [&]<typename R>() {
    R* r = running.data<R>();
    for (std::size_t c = 0; c < values.size(); ++c)
      r[c] = static_cast<R>(static_cast<compute_t<R>>(
          (1.0 - momentum) * static_cast<double>(static_cast<compute_t<R>>(r[c])) + momentum * scale * values[c]));
  });
}

void batch_norm_apply_cpu(const Tensor& input, const Tensor& mean, const Tensor& var, const Tensor& weight,
                          const Tensor& bias, const Tensor& output, double eps, ChannelLayout layout) {
  dispatch_floating(input.dtype(), "batch_norm",
                    [&]<typename T>() { apply<T>(input, mean, var, weight, bias, output, eps, layout); });
}

void batch_norm_sums_cpu(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                         const Tensor& sum_grad, const Tensor& sum_grad_normalized, double eps, ChannelLayout layout) {
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    gradient_sums<T>(grad, input, mean, var, sum_grad, sum_grad_normalized, eps, layout);
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
