#include <limits>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_computation.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"
#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/autograd/ops/support/pool2d.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<MaxPool2dForward> max_pool2d_forward{
    "max_pool2d", max_pool2d_forward_cpu, LOCKSTEP_CUDA_KERNEL(max_pool2d_forward_cuda), max_pool2d_forward_reference};
constexpr KernelTable<MaxPool2dBackward> max_pool2d_backward{"max_pool2d backward", max_pool2d_backward_cpu,
                                                             LOCKSTEP_CUDA_KERNEL(max_pool2d_backward_cuda),
                                                             max_pool2d_backward_reference};

constexpr KernelTable<MaxPool2dReluGrad> max_pool2d_relu_grad{"max_pool2d relu grad", max_pool2d_relu_grad_cpu,
                                                              LOCKSTEP_CUDA_KERNEL(max_pool2d_relu_grad_cuda)};

/// Whether the kernels that know of pools of 2 x 2 take it.
bool is_joined(const Pool2dGeometry& g, const Tensor& x) {
  return is_max_pool_2x2(g) && g.oh > 0 && g.ow > 0 && x.numel() > 0 && (x.device().is_cuda() || x.dtype() == kFloat32);
}

/// Where in its image each result comes from, for positions as the kernels count them; of a window that lies in the
/// padding alone, somewhere outside.
struct Places {
  Tensor at;      ///< int64, row after row
  Tensor inside;  ///< whether it is an element of the image
};
Places places_in_image(const Pool2dGeometry& g, const Tensor& positions) {
  const TensorOptions whole{.dtype = kInt64, .device = positions.device()};
  Tensor in_window = positions.to(kInt64);
  if (is_max_pool_2x2(g)) in_window = remainder(in_window, kMaxPoolNotPositive);  // without that mark
  const Tensor down = div(in_window, g.kernel.w, RoundingMode::floor), right = in_window - down * g.kernel.w;
  const Tensor top = arange(g.oh, whole).view({g.oh, 1}) * g.stride.h - g.padding.h;
  const Tensor left = arange(g.ow, whole) * g.stride.w - g.padding.w;
  const Tensor y = top + down * g.dilation.h, x = left + right * g.dilation.w;
  return {y * g.w + x, (y >= 0) * (y < g.h) * (x >= 0) * (x < g.w)};
}

class MaxPool2dBackwardNode final : public Node {
 public:
  const char* name() const override { return "MaxPool2dBackward"; }

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor()};
    if (!grads[0].defined()) return result;
    Tensor grad = as_contiguous(grads[0]), positions = saved(0);
    if (geometry_.channels > 1) {
      const Tensor incoming = to_channels_last(grad);
      const Tensor out = empty({sizes_[0], geometry_.h, geometry_.w, geometry_.channels}, options_of(grad));
      max_pool2d_backward(grad)(geometry_, incoming, to_channels_last(positions), out);
      result[0] = from_channels_last(out);
    } else if (is_joined(geometry_, grad) && may_wait(0, {&grad, &positions})) {
      const auto computation = make_intrusive<PooledGradient>(geometry_, grad, positions);
      result[0] = computation->add_result(sizes_, options_of(grad));
    } else {
      result[0] = spread(geometry_, sizes_, positions, grad);
    }
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    Pool2dGeometry planes = geometry_;
    planes.channels = 1;
    const Tensor result =
        apply_linear(grads[0], {[g = planes, sizes = sizes_, positions = saved(0)](const Tensor& grad) {
                                  return spread(g, sizes, positions, as_contiguous(grad));
                                },
                                [g = planes, sizes = grads[0].sizes(), positions = saved(0)](const Tensor& x) {
                                  const Places places = places_in_image(g, positions);
                                  const Tensor at = where(places.inside, places.at, 0).reshape({g.planes, g.oh * g.ow});
                                  const Tensor values = x.reshape({g.planes, g.h * g.w}).gather(1, at).view(sizes);
                                  return where(places.inside.view(sizes), values, 0);
                                }});
    return {flat_in(result, edges()[0], sizes_)};
  }

  Pool2dGeometry geometry_;
  Shape sizes_;

 private:
  static Tensor spread(const Pool2dGeometry& g, const Shape& sizes, const Tensor& positions, const Tensor& grad) {
    const Tensor out = empty(sizes, options_of(grad));
    if (out.numel() > 0) max_pool2d_backward(grad)(g, grad, positions, out);
    return out;
  }
};

}  // namespace

void MaxPool2dComputation::compute() {
  const Tensor& x = input(0);
  const Shape sizes = geometry_.output_sizes(x.sizes());
  const Tensor out = empty(sizes, options_of(x));
  const Tensor positions = wants(1) ? empty(sizes, {.dtype = kUInt8, .device = x.device()}) : Tensor();
  max_pool2d_forward(x)(geometry_, x, out, positions);
  deliver(0, out);
  if (positions.defined()) deliver(1, positions);
}

void PooledGradient::compute() {
  const Tensor& grad = input(0);
  const Tensor out = empty({geometry_.planes, geometry_.h, geometry_.w}, options_of(grad));
  max_pool2d_backward(grad)(geometry_, grad, input(1), out);
  deliver(0, out);
}

Tensor relu_of_pooled_gradient(const Tensor& grad) {
  auto* const gradient = pending_result_of<PooledGradient>(grad);
  if (!gradient) return {};
  const auto inputs = gradient->pending_inputs();
  if (inputs.empty()) return {};
  const Tensor alive = empty_like(inputs[0]);
  max_pool2d_relu_grad(alive)(inputs[0], inputs[1], alive);
  return make_intrusive<PooledGradient>(gradient->geometry(), alive, inputs[1])
      ->add_result(grad.sizes(), options_of(grad));
}

namespace {

struct Pooled {
  Tensor out;
  Tensor positions;  // as the kernels count them; undefined if neither backward nor the caller wants them
  Pool2dGeometry geometry;
};

Pooled pool(const Tensor& x, Size2d kernel, const MaxPool2dOptions& options, bool with_positions) {
  Pool2dGeometry g = pool2d_geometry(x, "max_pool2d", kernel, options.stride, options.padding, options.dilation,
                                     options.ceil_mode, PoolOf::floats_or_integers);
  const Shape sizes = g.output_sizes(x.sizes());
  LOCKSTEP_CHECK(kernel.h * kernel.w <= std::numeric_limits<std::int32_t>::max(),
                 "[max_pool2d] a window of {}x{} has more places than indices can tell apart", kernel.h, kernel.w);
  const TensorOptions for_positions{.dtype = kernel.h * kernel.w <= 256 ? kUInt8 : kInt32, .device = x.device()};
  with_positions = with_positions || should_record({&x});
  Tensor out, positions;
  if (const Tensor laid_out = channels_last_if_followed(x); laid_out.defined() && sizes.numel() > 0) {
    g.channels = x.size(1);
    const Shape lying{sizes[0], g.oh, g.ow, g.channels};
    const Tensor values = empty(lying, options_of(x));
    const Tensor places = with_positions ? empty(lying, for_positions) : Tensor();
    max_pool2d_forward(x)(g, laid_out, values, places);
    out = from_channels_last(values);
    if (with_positions) positions = from_channels_last(places);
  } else if (is_joined(g, x) && can_be_joined(x)) {
    const auto computation = make_intrusive<MaxPool2dComputation>(g, x);
    if (with_positions) {
      auto [values, places] = computation->add_results(sizes, options_of(x), sizes, for_positions);
      out = std::move(values);
      positions = std::move(places);
    } else {
      out = computation->add_result(sizes, options_of(x));
    }
  } else {
    out = empty(sizes, options_of(x));
    if (with_positions) positions = empty(sizes, for_positions);
    if (out.numel() > 0) max_pool2d_forward(x)(g, as_contiguous(x), out, positions);
  }
  if (auto* node = record<MaxPool2dBackwardNode>(out, {&x})) {
    node->geometry_ = g;
    node->sizes_ = x.sizes();
    node->save(positions);
  }
  return {out, positions, g};
}

}  // namespace

Tensor max_pool2d(const Tensor& x, Size2d kernel, const MaxPool2dOptions& options) {
  return pool(x, kernel, options, false).out;
}

std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, Size2d kernel, const MaxPool2dOptions& options) {
  const auto [out, positions, g] = pool(x, kernel, options, true);
  return {out, places_in_image(g, positions).at};
}

}  // namespace lockstep
