#include <algorithm>
#include <atomic>

#include "lockstep/autograd/ops/conv2d/conv2d_blocks.h"
#include "lockstep/autograd/ops/conv2d/conv2d_pool_kernels.h"
#include "lockstep/autograd/ops/conv2d/conv2d_pool_sparse.h"
#include "lockstep/autograd/ops/conv2d/conv2d_widened.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_rows.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/profile_flops.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {

using conv2d_widened::is_half;
using conv2d_widened::widened;
using conv2d_widened::widened_empty;

namespace {

// What is read in strips across all channels, which a processor does not foresee.
template <typename T>
void prefetch(const T* values, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < count; i += kLine) __builtin_prefetch(values + i, 0, 2);
}

}  // namespace

conv2d_pool::SumOrder::SumOrder(const Conv2dGeometry& g) {
  // See Note [Thread-independent results].
  constexpr std::int64_t kMaxGroups = 8, kMinWork = 400'000;  // multiply-adds, of which a quarter are computed
  constexpr std::int64_t kFirstLevel = 5 * 1024;              // floats
  const std::int64_t pitch = (g.w + 2 * g.padding.w) * g.in;
  images_per_group = std::max((g.n + kMaxGroups - 1) / kMaxGroups, (kMinWork + g.macs() - 1) / g.macs());
  vectors = (g.kw * g.in + kSumLanes - 1) / kSumLanes;
  band_rows = std::clamp<std::int64_t>((kFirstLevel / pitch - g.kh + 1) / 2, 1, g.oh / 2);
}

bool conv2d_pool_supports(const Conv2dGeometry& g) {
  constexpr std::int64_t kMaxRow = 1024, kMaxOut = 1024, kMaxImage = std::int64_t{1} << 28;
  return g.groups == 1 && g.stride == Size2d(1) && g.dilation == Size2d(1) && g.oh >= 2 && g.ow >= 2 &&
         g.in * g.kw <= kMaxRow && g.out <= kMaxOut &&
         (g.h + 2 * g.padding.h) * (g.w + 2 * g.padding.w) * g.in <= kMaxImage;
}

void conv2d_pool_forward_cpu(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                             ReluPlace relu, const Tensor& out, const Tensor& positions) {
  const std::int64_t ph = g.oh / 2, pw = g.ow / 2;
  float* maxima = out.data<float>();
  std::uint8_t* where = positions.defined() ? positions.data<std::uint8_t>() : nullptr;
  const auto pool = max_pool_rows::pool_plane_function(where != nullptr, relu);
  conv2d_forward_to_sink(g, x, weight, bias, [&](std::int64_t first, std::int64_t count, const float* values) {
    for (std::int64_t plane = 0; plane < count * g.out; ++plane) {
      const float* image = values + plane * g.oh * g.ow;
      const std::int64_t at = (first * g.out + plane) * ph * pw;
      pool(image, g.ow, ph, pw, maxima + at, where ? where + at : nullptr);
    }
  });
}

bool conv2d_pool_compress(const Conv2dGeometry& g, const Tensor& dense, Tensor& grad, Tensor& positions) {
  if (is_half(dense)) return conv2d_pool_compress(g, widened(dense), grad, positions);
  const std::int64_t ph = g.oh / 2, pw = g.ow / 2, planes = g.n * g.out;
  const float* const values = dense.data<float>();
  // Of one plane, to `to` and `where` if they are not null. False if it is none of a pool's.
  const auto compress = [=](std::int64_t plane, float* to, std::uint8_t* where) {
    const float* const image = values + plane * g.oh * g.ow;
    const auto is_zero = [](const float* from, std::int64_t count) {
      return std::all_of(from, from + count, [](float value) { return value == 0.0f; });
    };
    for (std::int64_t y = 0; y < ph; ++y) {
      const float *upper = image + 2 * y * g.ow, *lower = upper + g.ow;
      for (std::int64_t x = 0; x < pw; ++x) {
        const float window[4] = {upper[2 * x], upper[2 * x + 1], lower[2 * x], lower[2 * x + 1]};
        int found = 0, position = 0;
        for (int i = 0; i < 4; ++i)
          if (window[i] != 0.0f) ++found, position = i;
        if (found > 1) return false;
        if (!to) continue;
        to[y * pw + x] = window[position];
        where[y * pw + x] = static_cast<std::uint8_t>(position);
      }
      if (g.ow % 2 != 0 && (upper[g.ow - 1] != 0.0f || lower[g.ow - 1] != 0.0f)) return false;
    }
    return g.oh % 2 == 0 || is_zero(image + (g.oh - 1) * g.ow, g.ow);
  };
  if (!compress(0, nullptr, nullptr)) return false;
  const Tensor pooled = empty({g.n, g.out, ph, pw}), places = empty(pooled.sizes(), {.dtype = kUInt8});
  float* const to = pooled.data<float>();
  std::uint8_t* const where = places.data<std::uint8_t>();
  std::atomic<bool> fits{true};
  const std::int64_t block = std::max<std::int64_t>(1, cpu::kElementBlock / (g.oh * g.ow));
  parallel_for(planes, block, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end && fits.load(std::memory_order_relaxed); ++plane)
      if (!compress(plane, to + plane * ph * pw, where + plane * ph * pw)) fits.store(false, std::memory_order_relaxed);
  });
  if (!fits.load()) return false;
  grad = pooled;
  positions = places;
  return true;
}

void conv2d_pool_backward_cpu(const Conv2dGeometry& g, const Tensor& grad, const Tensor& positions, const Tensor& x,
                              const Tensor& weight, const Tensor& x_grad, const Tensor& weight_grad,
                              const Tensor& bias_grad) {
  if (is_half(x)) {
    const Tensor wide_x = widened_empty(x_grad), wide_weight = widened_empty(weight_grad),
                 wide_bias = widened_empty(bias_grad);
    conv2d_pool_backward_cpu(g, grad, positions, widened(x), widened(weight), wide_x, wide_weight, wide_bias);
    if (x_grad.defined()) copy_values(wide_x, x_grad);
    if (weight_grad.defined()) copy_values(wide_weight, weight_grad);
    if (bias_grad.defined()) copy_values(wide_bias, bias_grad);
    return;
  }
  profile::add_multiply_adds(g.n * g.macs() * ((weight_grad.defined() ? 1 : 0) + (x_grad.defined() ? 1 : 0)));
  const conv2d_pool::Layout layout(g);
  const std::int64_t result = g.out * layout.ph * layout.pw, image = g.in * g.h * g.w;
  const std::int64_t size = g.out * g.kh * layout.row;  // of a weight's gradient as it is summed
  const std::int64_t per_group = conv2d_pool::SumOrder(g).images_per_group, groups = (g.n + per_group - 1) / per_group;
  const Tensor packed = x_grad.defined() ? conv2d_pool::pack_weights(layout, weight.data<float>()) : empty({0});
  const bool weights_wanted = weight_grad.defined();
  const Tensor partial = empty({weights_wanted ? groups : 0, size + g.out});  // sums of weights and of biases
  parallel_for(g.n, per_group, [&](std::int64_t begin, std::int64_t end) {
    const Tensor space = zeros({weights_wanted ? layout.size : 0}),
                 patches = empty({x_grad.defined() ? layout.size : 0});
    float* const sums = weights_wanted ? partial.data<float>() + begin / per_group * (size + g.out) : nullptr;
    if (sums) std::fill_n(sums, size + g.out, 0.0f);
    conv2d_pool::WeightGradient for_weights(layout);
    conv2d_pool::InputGradient for_input(layout, packed.data<float>());
    for (std::int64_t i = begin; i < end; ++i) {
      const float* const gradient = grad.data<float>() + i * result;
      const std::uint8_t* const where = positions.data<std::uint8_t>() + i * result;
      prefetch(gradient, result);
      prefetch(where, result);
      if (weights_wanted) {
        prefetch(x.data<float>() + i * image, image);
        conv2d_pool::to_channels_last(layout, x.data<float>() + i * image, space.data<float>());
        for_weights.add(gradient, where, space.data<float>(), sums, sums + size);
      }
      if (x_grad.defined()) {
        std::fill_n(patches.data<float>(), layout.size, 0.0f);
        for_input.add(gradient, where, patches.data<float>());
        conv2d_pool::to_channels_first(layout, patches.data<float>(), x_grad.data<float>() + i * image);
      }
    }
  });
  if (!weights_wanted) return;
  const Tensor total = empty({size});
  conv2d_blocks::add_groups(partial.data<float>(), groups, size + g.out, size, total.data<float>(),
                            bias_grad.defined() ? bias_grad.data<float>() : nullptr);
  conv2d_pool::unpack_sums(layout, total.data<float>(), weight_grad.data<float>());
}

}  // namespace lockstep
