#include "lockstep/autograd/ops/conv2d/conv2d_slope.h"

#include "lockstep/autograd/ops/conv2d/conv2d_computation.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

Tensor slope_values(const Conv2dGeometry& g, Conv2dPart along, const Tensor& result, const Tensor& x,
                    const Tensor& weight) {
  switch (along) {
    case Conv2dPart::result: {
      const Tensor out = empty({g.n, g.out, g.oh, g.ow}, options_of(x));
      conv2d_values(g, as_contiguous(x), as_contiguous(weight), out);
      return out;
    }
    case Conv2dPart::x: {
      const Tensor out = empty({g.n, g.in, g.h, g.w}, options_of(weight));
      conv2d_data_gradient(g, as_contiguous(result), as_contiguous(weight), out);
      return out;
    }
    case Conv2dPart::weight: {
      const Tensor out = empty({g.out, g.in / g.groups, g.kh, g.kw}, options_of(x));
      conv2d_weight_gradient(g, as_contiguous(result), as_contiguous(x), out);
      return out;
    }
  }
  return {};
}

/// Keeps the tensors of all three parts, but that of its own.
class Conv2dSlopeBackward final : public Node {
 public:
  const char* name() const override { return "Conv2dSlopeBackward"; }
  TensorList apply(TensorList grads) override { return slopes(grads[0], saved(0), saved(1), saved(2)); }
  TensorList apply_recorded(TensorList grads) override {
    const auto part = [&](Conv2dPart p) {
      const auto i = static_cast<std::size_t>(p);
      return p == along ? Tensor() : saved_input(i, i);
    };
    return slopes(grads[0], part(Conv2dPart::result), part(Conv2dPart::x), part(Conv2dPart::weight));
  }

  Conv2dGeometry geometry{};
  Conv2dPart along = Conv2dPart::result;

 private:
  TensorList slopes(const Tensor& grad, Tensor result, Tensor x, Tensor weight) const {
    (along == Conv2dPart::result ? result : along == Conv2dPart::x ? x : weight) = grad;
    TensorList out(3);
    for (const Conv2dPart part : {Conv2dPart::result, Conv2dPart::x, Conv2dPart::weight})
      if (part != along && needs_grad(static_cast<std::size_t>(part)))
        out[static_cast<std::size_t>(part)] = conv2d_slope(geometry, part, result, x, weight);
    return out;
  }
};

}  // namespace

Tensor conv2d_slope(const Conv2dGeometry& geometry, Conv2dPart along, const Tensor& result, const Tensor& x,
                    const Tensor& weight) {
  const Tensor out = slope_values(geometry, along, result, x, weight);
  const Tensor none;
  const Tensor& r = along == Conv2dPart::result ? none : result;
  const Tensor& i = along == Conv2dPart::x ? none : x;
  const Tensor& w = along == Conv2dPart::weight ? none : weight;
  if (auto* node = record<Conv2dSlopeBackward>(out, {&r, &i, &w})) {
    node->save(r, i, w);
    node->geometry = geometry;
    node->along = along;
  }
  return out;
}

}  // namespace lockstep
