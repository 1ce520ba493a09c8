#include "lockstep/autograd/ops/embedding/embedding.h"

#include <cmath>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {

namespace {

/// How often each of `rows` occurs among the positions, on their device.
Tensor occurrences(const Tensor& positions, std::int64_t rows, const Tensor& like) {
  const Tensor each = ones({positions.numel(), 1}, {.dtype = kFloat32, .device = like.device()});
  return detail::index_add_rows(each, positions.view({-1}), {rows, 1}, 0).view({rows});
}

/// Scales rows that occur in the positions and are longer than max_norm.
void renormalize(const Tensor& weight, const Tensor& positions, double max_norm, double power) {
  const NoGradGuard values_only;
  const Tensor magnitudes = abs(weight);
  const Tensor lengths = std::isinf(power) ? max(magnitudes, {1}) : pow(sum(pow(magnitudes, power), {1}), 1.0 / power);
  const Tensor too_long = (occurrences(positions, weight.size(0), weight) > 0.0) * (lengths > max_norm);
  const Tensor factors = where(too_long, max_norm / (lengths + 1e-7), 1.0);
  weight.detach().mul_(factors.view({-1, 1}));
}

struct EmbeddingBackward final : Node {
  Shape weight_sizes;
  std::optional<std::int64_t> padding;
  bool by_frequency = false;

  const char* name() const override { return "EmbeddingBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor& positions = saved(0);
    Tensor grad = grads[0];
    if (by_frequency) {
      const Tensor shares =
          reciprocal(occurrences(positions, weight_sizes[0], grad)).index_select(0, positions.view({-1}));
      Shape column = positions.sizes();
      column.push_back(1);
      grad = grad * shares.view(column).to(grad.dtype());
    }
    return {of_weight(grad, positions, weight_sizes, padding)};
  }
  TensorList apply_recorded(TensorList grads) override {
    if (by_frequency) return Node::apply_recorded(std::move(grads));
    const auto at = [positions = SavedTensor(saved(0))] { return positions.get("EmbeddingBackward"); };
    const auto map = [at, sizes = weight_sizes, padding = padding](const Tensor& grad) {
      return of_weight(grad, at(), sizes, padding);
    };
    const auto transposed = [at, padding = padding](const Tensor& x) {
      const Tensor table = copy_contiguous(x);
      if (padding) fill_values(rows(table, *padding, 1), 0.0);
      Shape sizes = at().sizes();
      sizes.push_back(x.size(1));
      return table.index_select(0, at().view({-1})).view(sizes);
    };
    return {apply_linear(grads[0], {map, transposed})};
  }

 private:
  static Tensor of_weight(const Tensor& grad, const Tensor& positions, const Shape& sizes,
                          std::optional<std::int64_t> padding) {
    const Tensor weight_grad = detail::index_add_rows(grad, positions, sizes, 0);
    if (padding) fill_values(rows(weight_grad, *padding, 1), 0.0);
    return weight_grad;
  }
};

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& index, std::optional<std::int64_t> padding_idx) {
  return embedding(weight, index, EmbeddingLookup{.padding_idx = padding_idx});
}

Tensor embedding(const Tensor& weight, const Tensor& index, const EmbeddingLookup& options) {
  if (detail::index_comes_first(weight, index)) return embedding(index, weight, options);
  LOCKSTEP_CHECK(weight.defined() && weight.dim() == 2,
                 "[embedding] expected a weight of shape [rows, width], found {}",
                 weight.defined() ? to_string(weight.sizes()) : "an undefined tensor");
  const std::int64_t count = weight.size(0), width = weight.size(1);
  const Tensor positions = detail::prepare_index(index, weight, "embedding");
  std::optional<std::int64_t> padding_idx = options.padding_idx;
  if (padding_idx) {
    LOCKSTEP_CHECK(*padding_idx >= -count && *padding_idx < count,
                   "[embedding] padding_idx {} is out of range; expected {} to {} for {} rows", *padding_idx, -count,
                   count - 1, count);
    if (*padding_idx < 0) *padding_idx += count;
  }
  if (options.max_norm && weight.numel() > 0) {
    LOCKSTEP_CHECK(weight.is_floating_point() && options.norm_type > 0.0,
                   "[embedding] max_norm needs a floating-point weight and a norm_type above 0, found {} and {}",
                   name(weight.dtype()), options.norm_type);
    if (positions.device().is_cpu())
      detail::check_index_range(positions.data<std::int64_t>(), positions.numel(), count, "embedding");
    renormalize(weight, positions, *options.max_norm, options.norm_type);
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
    node->by_frequency = options.scale_grad_by_freq;
  }
  return out;
}

}  // namespace lockstep
