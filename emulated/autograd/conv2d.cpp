// Convolutions on the emulated device, which has no cuDNN: the plain loops, as work of the stream.
#include <cuda_runtime.h>

#include "lockstep/autograd/ops/conv2d/conv2d_device.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/factories.h"

namespace lockstep::conv2d_device {
namespace {

/// A tensor's memory, which is the device's: it can be read when the work is done, and is then what the stream's order
/// made it, not now.
struct Memory {
  void* data;
  Shape sizes;
  DType dtype;
  explicit Memory(const Tensor& tensor) : data(tensor.raw_data()), sizes(tensor.sizes()), dtype(tensor.dtype()) {}
  Tensor tensor() const { return from_blob(data, sizes, {.dtype = dtype}); }
  /// As the plain loops take them.
  Tensor image(const Conv2dGeometry& g) const {
    return g.channels_last ? copy_contiguous(in_order_of_channels(tensor())) : tensor();
  }
  void set_image(const Conv2dGeometry& g, const Tensor& image) const {
    copy_values(image, g.channels_last ? in_order_of_channels(tensor()) : tensor());
  }
};

template <typename Work>
void enqueue(const Tensor& like, Work work) {
  const cuda::DeviceGuard guard(like.device().index);
  cuda::emulated::enqueue(cuda::Stream::current(like.device().index).handle(), [work] {
    work();
    return true;
  });
}

}  // namespace

bool forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor&, const Tensor& out, bool) {
  enqueue(out, [g, x = Memory(x), weight = Memory(weight), out = Memory(out)] {
    const Tensor values = empty({g.n, g.out, g.oh, g.ow}, {.dtype = out.dtype});
    conv2d_forward_reference(g, x.image(g), weight.image(g), {}, values, false);
    out.set_image(g, values);
  });
  return false;
}

void backward_data(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight, const Tensor& x_grad) {
  enqueue(grad, [g, grad = Memory(grad), weight = Memory(weight), x_grad = Memory(x_grad)] {
    const Tensor values = empty({g.n, g.in, g.h, g.w}, {.dtype = x_grad.dtype});
    conv2d_backward_data_reference(g, grad.image(g), weight.image(g), values);
    x_grad.set_image(g, values);
  });
}

void backward_weight(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight_grad) {
  enqueue(grad, [g, grad = Memory(grad), x = Memory(x), weight_grad = Memory(weight_grad)] {
    const Tensor values = empty({g.out, g.group_in(), g.kh, g.kw}, {.dtype = weight_grad.dtype});
    conv2d_backward_weight_reference(g, grad.image(g), x.image(g), values, {});
    weight_grad.set_image(g, values);
  });
}

bool supports(const Conv2dGeometry&, const Tensor&) {
  return true;
}

void require_library() {}

Shape output_sizes(const Conv2dGeometry& g, DType) {
  return {g.n, g.out, g.oh, g.ow};
}

}  // namespace lockstep::conv2d_device
