#include "lockstep/autograd/ops/support/sum_to.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"

namespace lockstep {

namespace {

struct ExpandBackward final : Node {
  Shape sizes;

  const char* name() const override { return "ExpandBackward"; }
  TensorList apply(TensorList grads) override { return {sum_to(grads[0], sizes)}; }
  TensorList apply_recorded(TensorList grads) override { return {recorded_sum_to(grads[0], sizes)}; }
};

}  // namespace

Tensor Tensor::expand(const Shape& sizes) const {
  const int added = sizes.dim() - dim();
  LOCKSTEP_CHECK(added >= 0, "[expand] shape {} has more dimensions than {}; give at least {} sizes",
                 to_string(this->sizes()), to_string(sizes), dim());
  Shape full = sizes;
  Shape strides = Shape::filled(sizes.dim(), 0);
  for (int d = 0; d < full.dim(); ++d) {
    const bool is_new = d < added;
    const std::int64_t present = is_new ? 1 : this->sizes()[d - added];
    if (full[d] == -1 && !is_new) full[d] = present;
    LOCKSTEP_CHECK(full[d] >= 0, "[expand] size {} of {} is not allowed; -1 keeps a dimension that exists", full[d],
                   to_string(sizes));
    LOCKSTEP_CHECK(full[d] == present || present == 1,
                   "[expand] shape {} cannot become {}: size {} at dimension {} is neither {} nor 1",
                   to_string(this->sizes()), to_string(sizes), present, d - added, full[d]);
    if (full[d] == present && !is_new) {
      strides[d] = this->strides()[d - added];
    }
  }
  Tensor out = as_strided(full, strides, offset());
  if (auto* node = record<ExpandBackward>(out, {this})) node->sizes = this->sizes();
  return out;
}

Tensor expand_as(const Tensor& x, const Tensor& other) {
  return x.expand(other.sizes());
}

}  // namespace lockstep
