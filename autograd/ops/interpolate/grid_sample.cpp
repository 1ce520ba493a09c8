#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/composed_gradients.h"
#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/interpolate/grid_sample_kernels.h"
#include "lockstep/autograd/ops/interpolate/interpolate.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

/// `at` where it lies in (0, size - 1), which it goes through to the gradient, else the nearer end.
Tensor clipped(const Tensor& at, std::int64_t size) {
  const auto last = static_cast<double>(size - 1);
  return where((at > 0.0) * (at < last), at, clamp(at.detach(), 0.0, last));
}

/// `at` mirrored at the image's edges (of the corner pixels' centres, or of the pixels) as often as it takes.
Tensor reflected(const Tensor& at, std::int64_t size, bool corners) {
  const double low = corners ? 0.0 : -0.5, span = static_cast<double>(corners ? size - 1 : size);
  if (span == 0.0) return at * 0.0;
  const Tensor distance = abs(at - low), rest = fmod(distance, span);
  const Tensor turns = floor(distance.detach() / span);
  return where(eq(fmod(turns, 2.0), 0.0), rest, span - rest) + low;
}

/// Coordinates of [-1, 1] in pixels of a side of `size`.
Tensor in_pixels(const Tensor& coordinate, std::int64_t size, const GridSampleOptions& options) {
  const auto pixels = static_cast<double>(size);
  const Tensor at =
      options.align_corners ? (coordinate + 1.0) / 2.0 * (pixels - 1.0) : ((coordinate + 1.0) * pixels - 1.0) / 2.0;
  if (options.padding_mode == GridPadding::zeros) return at;
  if (options.padding_mode == GridPadding::border) return clipped(at, size);
  return clipped(reflected(at, size, options.align_corners), size);
}

/// The pixels of x [n, c, h w] at the places (column, row) [n, 1, p], whole numbers: [n, c, p], times `weight` [n, 1,
/// p]; 0 beside the image, whatever the weight.
Tensor pixels_at(const Tensor& x, std::int64_t h, std::int64_t w, const Tensor& column, const Tensor& row,
                 const Tensor& weight) {
  const Tensor inside =
      (column >= 0.0) * (column < static_cast<double>(w)) * (row >= 0.0) * (row < static_cast<double>(h));
  const Tensor place = where(inside, row, 0.0).to(kInt64) * w + where(inside, column, 0.0).to(kInt64);
  const Tensor pixels = x.gather(2, place.expand({x.size(0), x.size(1), place.size(2)}));
  return where(inside, pixels * where(inside, weight, 0.0), 0.0);  // what is not read may be infinite
}

/// Bilinear samples of x [n, c, h w] at the places (column, row) [n, 1, p]: [n, c, p].
Tensor composed_samples(const Tensor& x, const Tensor& column, const Tensor& row, std::int64_t h, std::int64_t w) {
  const Tensor left = floor(column.detach()), top = floor(row.detach());
  const Tensor right = left + 1.0, bottom = top + 1.0;
  const Tensor from_left = column - left, from_top = row - top, to_right = right - column, to_bottom = bottom - row;
  return pixels_at(x, h, w, left, top, to_right * to_bottom) + pixels_at(x, h, w, right, top, from_left * to_bottom) +
         pixels_at(x, h, w, left, bottom, to_right * from_top) +
         pixels_at(x, h, w, right, bottom, from_left * from_top);
}

class GridSampleBackward final : public Node {
 public:
  const char* name() const override { return "GridSampleBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(3);
    if (!grads[0].defined()) return result;
    for (int i = 0; i < 3; ++i)
      if (needs_grad(i)) result[i] = empty(saved(i).sizes(), options_of(saved(i)));
    grid_sample_backward_cpu(sizes, as_contiguous(grads[0]), as_contiguous(saved(0)), as_contiguous(saved(1)),
                             as_contiguous(saved(2)), result[0], result[1], result[2]);
    return result;
  }
  TensorList apply_recorded(TensorList grads) override {
    const auto samples = [h = sizes.h, w = sizes.w](const std::vector<Tensor>& inputs) {
      return composed_samples(inputs[0], inputs[1], inputs[2], h, w);
    };
    return composed_gradients(samples, {saved_input(0, 0), saved_input(1, 1), saved_input(2, 2)}, grads[0]);
  }

  GridSampleSizes sizes{};
};

/// The same with kernels of its own on the CPU.
Tensor samples_of(const Tensor& x, const Tensor& column, const Tensor& row, std::int64_t h, std::int64_t w) {
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 30;  // pixels are counted in 32 bits
  const std::int64_t n = x.size(0), channels = x.size(1), places = column.size(2);
  if (!x.device().is_cpu() || h * w > kMostPixels || n * channels * places == 0)
    return composed_samples(x, column, row, h, w);
  const GridSampleSizes sizes{n, channels, h, w, places};
  const Tensor out = empty({n, channels, places}, options_of(x));
  grid_sample_cpu(sizes, as_contiguous(x), as_contiguous(column), as_contiguous(row), out);
  if (auto* node = record<GridSampleBackward>(out, {&x, &column, &row})) {
    node->save(x, column, row);
    node->sizes = sizes;
  }
  return out;
}

}  // namespace

Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options) {
  LOCKSTEP_CHECK(x.defined() && grid.defined() && x.dim() == 4 && grid.dim() == 4 && grid.size(3) == 2 &&
                     grid.size(0) == x.size(0),
                 "[grid_sample] expected images [n, c, h, w] and a grid [n, h', w', 2], found {} and {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor",
                 grid.defined() ? to_string(grid.sizes()) : "an undefined tensor");
  // Of one half type on a GPU it is left alone.
  if (autocast::is_active && (!x.device().is_cuda() || x.dtype() != grid.dtype())) [[unlikely]]
    return autocast::in_full([&](const auto&... t) { return grid_sample(t..., options); }, x, grid);
  LOCKSTEP_CHECK(
      x.is_floating_point() && grid.dtype() == x.dtype() && grid.device() == x.device(),
      "[grid_sample] expected floating-point images and a grid of one dtype on one device, found {} on {} and "
      "{} on {}",
      name(x.dtype()), to_string(x.device()), name(grid.dtype()), to_string(grid.device()));
  LOCKSTEP_CHECK(x.size(2) > 0 && x.size(3) > 0, "[grid_sample] expected images with pixels, found {}",
                 to_string(x.sizes()));
  LOCKSTEP_CHECK(options.mode == InterpolateMode::bilinear || options.mode == InterpolateMode::nearest,
                 "[grid_sample] the mode is bilinear or nearest");
  if (element_size(x.dtype()) == 2) return grid_sample(x.to(kFloat32), grid.to(kFloat32), options).to(x.dtype());
  const std::int64_t n = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
  const std::int64_t out_h = grid.size(1), out_w = grid.size(2), places = out_h * out_w;
  const Tensor rows = x.reshape({n, c, h * w}), points = grid.reshape({n, 1, places, 2});
  const Tensor column = in_pixels(points.select(3, 0), w, options), row = in_pixels(points.select(3, 1), h, options);
  if (options.mode == InterpolateMode::nearest) {
    const Tensor at_column = round(column.detach()), at_row = round(row.detach());
    return flat_in(pixels_at(rows, h, w, at_column, at_row, ones_like(at_row)).reshape({n, c, out_h, out_w}), grid);
  }
  return samples_of(rows, column, row, h, w).reshape({n, c, out_h, out_w});
}

Tensor affine_grid(const Tensor& theta, const Shape& size, bool align_corners) {
  LOCKSTEP_CHECK(theta.defined() && theta.is_floating_point() && theta.dim() == 3 && theta.size(1) == 2 &&
                     theta.size(2) == 3 && size.dim() == 4 && size[0] == theta.size(0) && size[2] > 0 && size[3] > 0,
                 "[affine_grid] expected floating-point maps [n, 2, 3] and a size {{n, c, h, w}}, found {} and {}",
                 theta.defined() ? to_string(theta.sizes()) : "an undefined tensor", to_string(size));
  const TensorOptions options{.dtype = theta.dtype(), .device = theta.device()};
  const auto side = [&](std::int64_t count) {
    const double edge = align_corners ? 1.0 : 1.0 - 1.0 / static_cast<double>(count);
    return count == 1 ? zeros({1}, options) : linspace(-edge, edge, count, options);
  };
  const std::int64_t h = size[2], w = size[3];
  const Tensor x = side(w).view({1, w}).expand({h, w}), y = side(h).view({h, 1}).expand({h, w});
  const Tensor base = stack({x, y, ones({h, w}, options)}, 2).view({1, h * w, 3}).expand({theta.size(0), h * w, 3});
  return bmm(base, theta.transpose(1, 2)).view({theta.size(0), h, w, 2});
}

}  // namespace lockstep
