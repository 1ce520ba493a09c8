#include "lockstep/autograd/ops/copy/cast_computation.h"

#include "lockstep/core/channels_last.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

class CastComputation final : public Computation {
 public:
  /// Of `x` in its own order, contiguous, or of values that are laid out.
  CastComputation(const Tensor& x, bool laid_out, DType dtype) : Computation({x}), laid_out_(laid_out), dtype_(dtype) {
    if (laid_out) set_follows_laid_out();
  }

 private:
  void compute() override { deliver(0, cast(laid_out_ ? in_order_of_channels(input(0)) : input(0))); }

  Tensor compute_channels_last(std::span<Computation* const> links) override {
    if (!links.empty()) return {};
    return cast(laid_out_ ? input(0) : as_channels_last(input(0)));
  }

  Tensor cast(const Tensor& x) const {
    Tensor out = empty(x.sizes(), {.dtype = dtype_, .device = x.device()});
    copy_values(x, out);
    return out;
  }

  bool laid_out_;
  DType dtype_;
};

/// Of an image that lies in its own order nothing is known: a convolution of few channels had better find it so.
bool is_parameter(const Tensor& tensor) {
  return tensor.is_leaf() && tensor.requires_grad();
}

}  // namespace

Tensor cast_in_either_order(const Tensor& tensor, DType dtype) {
  const bool taken = tensor.dim() == 4 && tensor.device().is_cuda() && tensor.dtype() != dtype &&
                     tensor.is_floating_point() && is_floating_point(dtype) && tensor.numel() > 0;
  if (!taken) return cast_values(tensor, dtype);
  Tensor values = channels_last_of(tensor);
  const bool laid_out = values.defined();
  if (!laid_out && !is_parameter(tensor)) return cast_values(tensor, dtype);
  if (!laid_out) values = tensor;
  if (!values.is_contiguous() || !may_wait(values.numel(), {&values})) return cast_values(tensor, dtype);
  return make_intrusive<CastComputation>(values, laid_out, dtype)
      ->add_result(tensor.sizes(), {.dtype = dtype, .device = tensor.device()});
}

}  // namespace lockstep
