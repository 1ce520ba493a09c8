#include <algorithm>

#include "lockstep/autograd/ops/conv2d/conv2d_blocks.h"
#include "lockstep/autograd/ops/conv2d_pool/conv2d_pool_kernels.h"
#include "lockstep/autograd/ops/conv2d_pool/conv2d_pool_sparse.h"
#include "lockstep/autograd/ops/max_pool2d/max_pool2d_rows.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

// Images whose gradients are summed apart, and then in order; see Note [Thread-independent results].
std::int64_t images_per_group(const Conv2dGeometry& g) {
  constexpr std::int64_t kMaxGroups = 8, kMinWork = 400'000;  // multiply-adds, of which a quarter are computed
  return std::max((g.n + kMaxGroups - 1) / kMaxGroups, (kMinWork + g.macs() - 1) / g.macs());
}

}  // namespace

bool conv2d_pool_supports(const Conv2dGeometry& g) {
  constexpr std::int64_t kMaxRow = 1024, kMaxOut = 1024, kMaxImage = std::int64_t{1} << 28;
  return g.groups == 1 && g.stride == Size2d(1) && g.dilation == Size2d(1) && g.oh >= 2 && g.ow >= 2 &&
         g.in * g.kw <= kMaxRow && g.out <= kMaxOut &&
         (g.h + 2 * g.padding.h) * (g.w + 2 * g.padding.w) * g.in <= kMaxImage;
}

void conv2d_pool_forward_cpu(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                             const Tensor& out, const Tensor& positions) {
  const std::int64_t ph = g.oh / 2, pw = g.ow / 2;
  float* maxima = out.data<float>();
  std::uint8_t* where = positions.defined() ? positions.data<std::uint8_t>() : nullptr;
  conv2d_forward_to_sink(g, x, weight, bias, [&](std::int64_t first, std::int64_t count, const float* values) {
    for (std::int64_t plane = 0; plane < count * g.out; ++plane) {
      const float* image = values + plane * g.oh * g.ow;
      const std::int64_t at = (first * g.out + plane) * ph * pw;
      if (where)
        max_pool_rows::pool_plane<true, true>(image, g.ow, ph, pw, maxima + at, where + at);
      else
        max_pool_rows::pool_plane<false, true>(image, g.ow, ph, pw, maxima + at, nullptr);
    }
  });
}

void conv2d_pool_backward_cpu(const Conv2dGeometry& g, const Tensor& grad, const Tensor& positions, const Tensor& x,
                              const Tensor& weight, const Tensor& x_grad, const Tensor& weight_grad,
                              const Tensor& bias_grad) {
  const conv2d_pool::Layout layout(g);
  const std::int64_t result = g.out * layout.ph * layout.pw, image = g.in * g.h * g.w, size = weight.numel();
  const std::int64_t per_group = images_per_group(g), groups = (g.n + per_group - 1) / per_group;
  const std::vector<float> packed =
      x_grad.defined() ? conv2d_pool::pack_weights(layout, weight.data<float>()) : std::vector<float>();
  const bool weights_wanted = weight_grad.defined();
  const Tensor partial = empty({weights_wanted ? groups : 0, size + g.out});
  parallel_for(g.n, per_group, [&](std::int64_t begin, std::int64_t end) {
    const Tensor space = zeros({layout.size}), sums = zeros({g.out * g.kh * layout.row}), bias = zeros({g.out});
    conv2d_pool::WeightGradient for_weights(layout);
    conv2d_pool::InputGradient for_input(layout, packed.data());
    const auto gradient_of = [&](std::int64_t i) { return grad.data<float>() + i * result; };
    const auto positions_of = [&](std::int64_t i) { return positions.data<std::uint8_t>() + i * result; };
    if (weights_wanted) {
      for (std::int64_t i = begin; i < end; ++i) {
        conv2d_pool::to_channels_last(layout, x.data<float>() + i * image, space.data<float>());
        for_weights.add(gradient_of(i), positions_of(i), space.data<float>(), sums.data<float>(), bias.data<float>());
      }
      float* own = partial.data<float>() + begin / per_group * (size + g.out);
      conv2d_pool::unpack_sums(layout, sums.data<float>(), own);
      std::copy_n(bias.data<float>(), g.out, own + size);
    }
    if (x_grad.defined())
      for (std::int64_t i = begin; i < end; ++i) {
        std::fill_n(space.data<float>(), layout.size, 0.0f);
        for_input.add(gradient_of(i), positions_of(i), space.data<float>());
        conv2d_pool::to_channels_first(layout, space.data<float>(), x_grad.data<float>() + i * image);
      }
  });
  if (weights_wanted)
    conv2d_blocks::add_groups(partial.data<float>(), groups, size + g.out, size, weight_grad.data<float>(),
                              bias_grad.defined() ? bias_grad.data<float>() : nullptr);
}

}  // namespace lockstep
