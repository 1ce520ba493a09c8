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
  std::vector<Tensor> rows;
  for (std::int64_t i = 0; i < output.h; ++i) {
    const std::int64_t top = i * h / output.h, bottom = ((i + 1) * h + output.h - 1) / output.h;
    std::vector<Tensor> columns;
    for (std::int64_t j = 0; j < output.w; ++j) {
      const std::int64_t left = j * w / output.w, right = ((j + 1) * w + output.w - 1) / output.w;
      columns.push_back(max(x.slice(-2, top, bottom).slice(-1, left, right), {-2, -1}));
    }
    rows.push_back(stack(columns, -1));
  }
  return stack(rows, -2);
}

}  // namespace lockstep
