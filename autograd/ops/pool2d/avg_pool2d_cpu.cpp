#include <vector>

#include "lockstep/autograd/ops/pool2d/avg_pool2d_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

// The part of a window that lies inside the image, and the window's length with its padding.
struct Window {
  std::int64_t begin, end, padded;
};

Window window(std::int64_t index, std::int64_t kernel, std::int64_t stride, std::int64_t padding, std::int64_t size) {
  const std::int64_t begin = index * stride - padding, end = std::min(begin + kernel, size + padding);
  return {std::max<std::int64_t>(begin, 0), std::min(end, size), end - begin};
}

double divisor_of(const AvgPool2dDivisor& divisor, const Window& rows, const Window& columns) {
  if (divisor.fixed != 0) return static_cast<double>(divisor.fixed);
  if (divisor.count_include_pad) return static_cast<double>(rows.padded * columns.padded);
  return static_cast<double>((rows.end - rows.begin) * (columns.end - columns.begin));
}

// Calls visit(output index within the plane, rows, columns) for each window that covers something.
template <typename Visit>
void for_each_window(const Pool2dGeometry& g, Visit&& visit) {
  for (std::int64_t oy = 0; oy < g.oh; ++oy) {
    const Window rows = window(oy, g.kernel.h, g.stride.h, g.padding.h, g.h);
    for (std::int64_t ox = 0; ox < g.ow; ++ox)
      visit(oy * g.ow + ox, rows, window(ox, g.kernel.w, g.stride.w, g.padding.w, g.w));
  }
}

}  // namespace

void avg_pool2d_forward_cpu(const Pool2dGeometry& g, const AvgPool2dDivisor& divisor, const Tensor& x,
                            const Tensor& out) {
  dispatch_floating(x.dtype(), "avg_pool2d", [&]<typename T>() {
    using C = compute_t<T>;
    parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t plane = begin; plane < end; ++plane) {
        const T* image = x.data<T>() + plane * g.h * g.w;
        T* means = out.data<T>() + plane * g.oh * g.ow;
        for_each_window(g, [&](std::int64_t index, const Window& rows, const Window& columns) {
          C sum = 0;
          for (std::int64_t y = rows.begin; y < rows.end; ++y)
            for (std::int64_t i = columns.begin; i < columns.end; ++i) sum += static_cast<C>(image[y * g.w + i]);
          const bool empty = rows.begin >= rows.end || columns.begin >= columns.end;
          means[index] = static_cast<T>(empty ? C(0) : sum / static_cast<C>(divisor_of(divisor, rows, columns)));
        });
      }
    });
  });
}

void avg_pool2d_backward_cpu(const Pool2dGeometry& g, const AvgPool2dDivisor& divisor, const Tensor& grad,
                             const Tensor& x_grad) {
  dispatch_floating(grad.dtype(), "avg_pool2d", [&]<typename T>() {
    using C = compute_t<T>;
    parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
      std::vector<C> image(static_cast<std::size_t>(g.h * g.w));
      for (std::int64_t plane = begin; plane < end; ++plane) {
        std::fill(image.begin(), image.end(), C(0));
        const T* d = grad.data<T>() + plane * g.oh * g.ow;
        for_each_window(g, [&](std::int64_t index, const Window& rows, const Window& columns) {
          const C share = static_cast<C>(d[index]) / static_cast<C>(divisor_of(divisor, rows, columns));
          for (std::int64_t y = rows.begin; y < rows.end; ++y)
            for (std::int64_t i = columns.begin; i < columns.end; ++i)
              image[static_cast<std::size_t>(y * g.w + i)] += share;
        });
        T* to = x_grad.data<T>() + plane * g.h * g.w;
        for (std::size_t i = 0; i < image.size(); ++i) to[i] = static_cast<T>(image[i]);
      }
    });
  });
}

}  // namespace lockstep
