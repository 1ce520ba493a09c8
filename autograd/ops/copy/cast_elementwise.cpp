// Casts of truths in Note [Elementwise chains].

#include <algorithm>

#include "lockstep/autograd/ops/copy/cast_computation.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/elementwise_computation.h"

namespace lockstep {
namespace {

/// Truths as numbers, which they are already where they are made.
template <typename C>
class CastElementwise final : public ElementwiseComputation {
 public:
  explicit CastElementwise(const Tensor& x) : ElementwiseComputation({x}, x.sizes(), dtype_of<C>, dtype_of<C>, 1) {}

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
  if (!tensor.defined() || tensor.dtype() != kBool || !is_pending_elementwise(tensor)) return {};
  if (!ElementwiseComputation::may_wait(tensor.sizes(), dtype, {&tensor})) return {};
  if (dtype == kFloat64) return make_intrusive<CastElementwise<double>>(tensor)->result();
  return make_intrusive<CastElementwise<float>>(tensor)->result();
}

}  // namespace lockstep
