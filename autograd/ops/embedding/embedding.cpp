#include "lockstep/autograd/ops/embedding/embedding.h"

#include "lockstep/autograd/ops/index_select/index_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {

namespace {

struct EmbeddingBackward final : Node {
  Shape weight_sizes;
  std::optional<std::int64_t> padding;

  const char* name() const override { return "EmbeddingBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor weight_grad = detail::index_add_rows(grads[0], saved(0), weight_sizes, 0);
    if (padding) fill_values(rows(weight_grad, *padding, 1), 0.0);
    return {weight_grad};
  }
};

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& index, std::optional<std::int64_t> padding_idx) {
  LOCKSTEP_CHECK(weight.defined() && weight.dim() == 2,
                 "[embedding] expected a weight of shape [rows, width], found {}",
                 weight.defined() ? to_string(weight.sizes()) : "an undefined tensor");
  const std::int64_t count = weight.size(0), width = weight.size(1);
  const Tensor positions = detail::prepare_index(index, weight, "embedding");
  if (padding_idx) {
    LOCKSTEP_CHECK(*padding_idx >= -count && *padding_idx < count,
                   "[embedding] padding_idx {} is out of range; expected {} to {} for {} rows", *padding_idx, -count,
                   count - 1, count);
    if (*padding_idx < 0) *padding_idx += count;
  }
  Shape sizes = positions.sizes();
  sizes.push_back(width);
  const Tensor out = empty(sizes, options_of(weight));
  {
    NoGradGuard values_only;
    const Tensor source = as_contiguous(weight);
    detail::index_select_values(source.view({1, count, width}), positions, out.view({1, positions.numel(), width}),
                                "embedding");
  }
  if (auto* node = record<EmbeddingBackward>(out, {&weight})) {
    node->save(positions);
    node->weight_sizes = weight.sizes();
    node->padding = padding_idx;
  }
  return out;
}

}  // namespace lockstep
