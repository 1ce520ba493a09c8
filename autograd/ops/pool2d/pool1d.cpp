// Pools along one dimension, and the adaptive maximum, made of the others.

#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// Images of height 1.
Tensor as_image(const Tensor& x, const char* op) {
  LOCKSTEP_CHECK(x.defined() && (x.dim() == 2 || x.dim() == 3),
                 "[{}] expected x [n, c, length] or [c, length], found {}", op,
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  return x.unsqueeze(-2);
}

MaxPool2dOptions image_options(std::int64_t kernel, std::int64_t stride, std::int64_t padding, std::int64_t dilation,
                               bool ceil_mode) {
  return {.stride = {1, stride == 0 ? kernel : stride},
          .padding = {0, padding},
          .dilation = {1, dilation},
          .ceil_mode = ceil_mode};
}

}  // namespace

Tensor max_pool1d(const Tensor& x, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                  std::int64_t dilation, bool ceil_mode) {
  return max_pool2d(as_image(x, "max_pool1d"), {1, kernel}, image_options(kernel, stride, padding, dilation, ceil_mode))
      .squeeze(-2);
}

std::pair<Tensor, Tensor> max_pool1d_with_indices(const Tensor& x, std::int64_t kernel, std::int64_t stride,
                                                  std::int64_t padding, std::int64_t dilation, bool ceil_mode) {
  const auto [values, indices] = max_pool2d_with_indices(as_image(x, "max_pool1d"), {1, kernel},
                                                         image_options(kernel, stride, padding, dilation, ceil_mode));
  return {values.squeeze(-2), indices.squeeze(-2)};
}

Tensor avg_pool1d(const Tensor& x, std::int64_t kernel, std::int64_t stride, std::int64_t padding, bool ceil_mode,
                  bool count_include_pad) {
  return avg_pool2d(as_image(x, "avg_pool1d"), {1, kernel},
                    {.stride = {1, stride == 0 ? kernel : stride},
                     .padding = {0, padding},
                     .ceil_mode = ceil_mode,
                     .count_include_pad = count_include_pad})
      .squeeze(-2);
}

Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t output) {
  return adaptive_avg_pool2d(as_image(x, "adaptive_avg_pool1d"), {1, output}).squeeze(-2);
}

Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t output) {
  return adaptive_max_pool2d(as_image(x, "adaptive_max_pool1d"), {1, output}).squeeze(-2);
}

Tensor adaptive_max_pool2d(const Tensor& x, Size2d output) {
  LOCKSTEP_CHECK(x.defined() && (x.dim() == 3 || x.dim() == 4) && x.numel() > 0 && output.h >= 1 && output.w >= 1,
                 "[adaptive_max_pool2d] expected images with elements and an output of at least 1x1");
  const std::int64_t h = x.size(-2), w = x.size(-1);
  if (h % output.h == 0 && w % output.w == 0) return max_pool2d(x, {h / output.h, w / output.w});
  // Maxima of maxima: over rows first, then over columns.
  const auto maxima = [](const Tensor& in, std::int64_t dim, std::int64_t count) {
    const std::int64_t size = in.size(dim);
    std::vector<Tensor> parts;
    for (std::int64_t i = 0; i < count; ++i)
      parts.push_back(max(in.slice(dim, i * size / count, ((i + 1) * size + count - 1) / count), {dim}));
    return stack(parts, dim);
  };
  return maxima(maxima(x, -2, output.h), -1, output.w);
}

}  // namespace lockstep
