// Casts in Note [Elementwise chains].

#include <algorithm>

#include "lockstep/autograd/ops/copy/cast_computation.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/elementwise_computation.h"

namespace lockstep {
namespace {

/// Values are rounded where they are made, so there is nothing to do here.
template <typename C>
class CastElementwise final : public ElementwiseComputation {
 public:
  CastElementwise(const Tensor& x, DType dtype) : ElementwiseComputation({x}, x.sizes(), dtype, dtype_of<C>, 1) {}

 private:
  void apply(const Values* operands, void* out, std::int64_t count) const override {
    const auto* const from = static_cast<const C*>(operands[0].data);
    operands[0].one ? std::fill_n(static_cast<C*>(out), count, *from) : std::copy_n(from, count, static_cast<C*>(out));
  }
  void compute() override {
    const Tensor out = empty_result();
    copy_values(input(0), out);
    deliver(0, out);
  }
};

}  // namespace

Tensor elementwise_cast(const Tensor& tensor, DType dtype) {
  if (!tensor.defined() || !is_pending_elementwise(tensor) || !is_floating_point(dtype)) return {};
  const DType type = cpu::compute_dtype(dtype);
  if (tensor.dtype() != kBool && cpu::compute_dtype(tensor.dtype()) != type) return {};
  if (!ElementwiseComputation::may_wait(tensor.sizes(), type, {&tensor})) return {};
  if (type == kFloat64) return make_intrusive<CastElementwise<double>>(tensor, dtype)->result();
  return make_intrusive<CastElementwise<float>>(tensor, dtype)->result();
}

}  // namespace lockstep
