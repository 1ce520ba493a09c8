#include "lockstep/autograd/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

#include <cmath>
#include <limits>
#include <optional>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/composed_gradients.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/dropout/dropout.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/matmul/matmul_kernels.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_kernels.h"
#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_layout.h"
#include "lockstep/autograd/ops/softmax/softmax.h"
#include "lockstep/autograd/ops/support/sum_to.h"
#include "lockstep/autograd/ops/tril/tril.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/random.h"

namespace lockstep {
namespace {

constexpr const char* kOp = "scaled_dot_product_attention";
constexpr KernelTable<detail::AttentionKernel> attention_kernel{
    kOp, detail::attention_cpu, LOCKSTEP_CUDA_KERNEL(detail::attention_cuda), detail::attention_reference};
constexpr KernelTable<detail::AttentionBackwardKernel> attention_backward_kernel{
    "scaled_dot_product_attention backward", detail::attention_backward_cpu,
    LOCKSTEP_CUDA_KERNEL(detail::attention_backward_cuda), detail::attention_backward_reference};

DType compute_dtype(const Tensor& t) {
  return t.dtype() == kFloat64 ? kFloat64 : kFloat32;
}

Shape with_last(Shape leading, std::int64_t rows, std::int64_t columns) {
  leading.push_back(rows);
  leading.push_back(columns);
  return leading;
}

/// A view of shape `sizes` to which t's sizes broadcast.
Tensor expanded(const Tensor& t, const Shape& sizes) {
  Shape strides = Shape::filled(sizes.dim(), 0);
  for (int i = 1; i <= t.dim(); ++i)
    if (t.sizes()[t.dim() - i] != 1 || sizes[sizes.dim() - i] == 1) strides[sizes.dim() - i] = t.strides()[t.dim() - i];
  return t.as_strided(sizes, strides, t.offset());
}

/// [N, H, rows, columns] of a tensor [..., H, rows, columns].
Tensor as_heads(const Tensor& t) {
  const int d = t.dim();
  if (d == 4) return t;
  const Shape &sizes = t.sizes(), &strides = t.strides();
  if (d == 2) return t.as_strided({1, 1, sizes[0], sizes[1]}, {0, 0, strides[0], strides[1]}, t.offset());
  if (d == 3)
    return t.as_strided({1, sizes[0], sizes[1], sizes[2]}, {0, strides[0], strides[1], strides[2]}, t.offset());
  const Tensor dense = as_contiguous(t);
  std::int64_t batch = 1;
  for (int i = 0; i < d - 3; ++i) batch *= sizes[i];
  const Shape flat{batch, sizes[d - 3], sizes[d - 2], sizes[d - 1]};
  return dense.as_strided(flat, contiguous_strides(flat), dense.offset());
}

/// The same, in a layout that kernels take.
Tensor as_operand(const Tensor& t, const Shape& leading) {
  const Tensor heads = as_heads(expanded(t, with_last(leading, t.size(-2), t.size(-1))));
  const Shape& strides = heads.strides();
  return strides[3] == 1 && strides[2] >= heads.sizes()[3] ? heads : copy_contiguous(heads);
}

/// The mask as [N, H, L, S], bool or of the dtype that is computed in.
Tensor as_mask(const Tensor& mask, const Shape& scores, DType compute) {
  if (!mask.defined()) return {};
  return as_heads(expanded(mask.dtype() == kBool ? mask : cast_values(mask, compute), scores));
}

/// Key or value [..., G, S, E] with each of its heads as often as `heads` query heads share it.
Tensor repeated(const Tensor& t, std::int64_t heads) {
  if (t.dim() < 3 || t.size(-3) == heads) return t;
  const std::int64_t times = heads / t.size(-3);
  Shape sizes = t.sizes();
  sizes[t.dim() - 3] *= times;
  const Tensor one = t.unsqueeze(-3);
  Shape wide = one.sizes();
  wide[wide.dim() - 3] = times;
  return one.expand(wide).reshape(sizes);
}

/// What the kernels compute, without dropout, by operations that hold all weights. `mask` as saved.
Tensor said_again(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
                  const detail::AttentionPlan& plan) {
  Tensor scores = matmul(query * plan.scale, key.transpose(-2, -1)), seen;
  if (plan.causal) seen = tril(ones({query.size(-2), key.size(-2)}, {.dtype = kBool, .device = query.device()}));
  if (mask.defined()) {
    const Tensor fitting = as_contiguous(mask).view(scores.sizes());
    if (mask.dtype() == kBool)
      seen = fitting;
    else
      scores = scores + fitting.to(scores.dtype());
  }
  // A query that sees nothing gives 0: its scores are not to be infinite.
  if (!seen.defined() && !mask.defined()) return matmul(softmax(scores, -1), value);
  if (!seen.defined())
    seen = max(scores.detach(), {-1}, true) != -std::numeric_limits<double>::infinity();  // of a whole row
  const double none = element_size(scores.dtype()) == 2 ? -6e4 : -1e30;
  const Tensor weights = softmax(where(seen, scores, none), -1);
  return matmul(where(seen, weights, 0.0), value);
}

struct AttentionBackward final : Node {
  detail::AttentionPlan plan;
  Shape leading, kv_leading;

  const char* name() const override { return "AttentionBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor &query = saved(0), &key = saved(1), &value = saved(2), &out = saved(4);
    const auto [grad_query, grad_key, grad_value] = gradients();
    if (out.numel() > 0 && key.numel() > 0) {
      attention_backward_kernel(query)(detail::AttentionSaved{.query = as_operand(query, leading),
                                                              .key = as_operand(key, kv_leading),
                                                              .value = as_operand(value, kv_leading),
                                                              .mask = saved(3),
                                                              .out = as_heads(out),
                                                              .log_sums = saved(5),
                                                              .grad = as_operand(grads[0], leading)},
                                       as_heads(grad_query), as_heads(grad_key), as_heads(grad_value), plan);
    } else {
      for (const Tensor& grad : {grad_query, grad_key, grad_value}) fill_values(grad, 0);
    }
    return {sum_to(grad_query, query.sizes()), sum_to(grad_key, key.sizes()), sum_to(grad_value, value.sizes())};
  }
  TensorList apply_recorded(TensorList grads) override {
    if (plan.dropout) return Node::apply_recorded(std::move(grads));
    const auto function = [this](const std::vector<Tensor>& in) {
      const auto wide = [](const Tensor& t, const Shape& lead) {
        return t.expand(with_last(lead, t.size(-2), t.size(-1)));
      };
      const std::int64_t heads = leading.empty() ? 1 : leading.back();
      return said_again(wide(in[0], leading), repeated(wide(in[1], kv_leading), heads),
                        repeated(wide(in[2], kv_leading), heads), saved(3), plan);
    };
    return composed_gradients(function, {saved_input(0, 0), saved_input(1, 1), saved_input(2, 2)}, grads[0]);
  }

 private:
  /// Empty. Those of neighbours are neighbours, so that the gradient of what these were cut out of is there already.
  detail::Parts gradients() const {
    const Tensor &query = saved(0), &key = saved(1), &value = saved(2);
    const auto wide = [](const Tensor& t, const Shape& lead) { return with_last(lead, t.size(-2), t.size(-1)); };
    const bool as_saved = query.sizes() == wide(query, leading) && key.sizes() == wide(key, kv_leading);
    if (as_saved && detail::are_parts({query, key, value})) {
      const std::int64_t heads = query.size(1), kv_heads = key.size(1);
      const Shape whole{query.size(0), query.size(2), (heads + 2 * kv_heads) * query.size(3)};
      return detail::parts_of(empty(whole, options_of(query)), heads, kv_heads);
    }
    return {detail::empty_as(wide(query, leading), query), detail::empty_as(wide(key, kv_leading), key),
            detail::empty_as(wide(value, kv_leading), value)};
  }
};

Tensor heads_of(const Tensor& rows, std::int64_t heads) {
  const std::int64_t length = rows.size(1), width = rows.size(2), d = width / heads;
  return rows.as_strided({rows.size(0), heads, length, d}, {length * width, d, width, 1}, rows.offset());
}

struct PackedAttentionBackward final : Node {
  detail::AttentionPlan plan;
  std::int64_t heads = 1, kv_heads = 1;

  const char* name() const override { return "PackedAttentionBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor& qkv = saved(0);
    const Tensor grad = empty(qkv.sizes(), options_of(qkv));
    if (qkv.numel() == 0) return {grad};
    const detail::Parts parts = detail::parts_of(qkv, heads, kv_heads),
                        results = detail::parts_of(grad, heads, kv_heads);
    attention_backward_kernel(qkv)(detail::AttentionSaved{.query = parts.query,
                                                          .key = parts.key,
                                                          .value = parts.value,
                                                          .mask = saved(1),
                                                          .out = heads_of(saved(2), heads),
                                                          .log_sums = saved(3),
                                                          .grad = heads_of(as_contiguous(grads[0]), heads)},
                                   results.query, results.key, results.value, plan);
    return {grad};
  }
  TensorList apply_recorded(TensorList grads) override {
    if (plan.dropout) return Node::apply_recorded(std::move(grads));
    const auto function = [this](const std::vector<Tensor>& in) {
      const std::int64_t batch = in[0].size(0), length = in[0].size(1), d = in[0].size(2) / (heads + 2 * kv_heads);
      const auto part = [&](std::int64_t first, std::int64_t count) {
        return in[0].narrow(2, first * d, count * d).reshape({batch, length, count, d}).transpose(1, 2);
      };
      const Tensor out = said_again(part(0, heads), repeated(part(heads, kv_heads), heads),
                                    repeated(part(heads + kv_heads, kv_heads), heads), saved(1), plan);
      return out.transpose(1, 2).reshape({batch, length, heads * d});
    };
    return composed_gradients(function, {saved_input(0, 0)}, grads[0]);
  }
};

detail::AttentionPlan make_plan(const AttentionOptions& options, std::int64_t heads, std::int64_t width,
                                const Device& device) {
  LOCKSTEP_CHECK(options.dropout_p >= 0.0 && options.dropout_p < 1.0,
                 "[{}] expected a probability dropout_p in [0, 1), found {}", kOp, options.dropout_p);
  detail::AttentionPlan plan;
  plan.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(width)));
  plan.causal = options.is_causal;
  plan.dropout = options.dropout_p > 0.0;
  if (!plan.dropout) return plan;
  plan.key = next_random_key_source(RandomStream::dropout, device);
  plan.threshold = static_cast<std::uint32_t>(options.dropout_p * 0x1p32);
  plan.keep_scale = 1.0 / (1.0 - options.dropout_p);
  LOCKSTEP_CHECK(options.all_heads == 0 || (options.first_head >= 0 && options.first_head + heads <= options.all_heads),
                 "[{}] {} heads from number {} on are no part of {}", kOp, heads, options.first_head,
                 options.all_heads);
  plan.first_head = options.all_heads == 0 ? 0 : options.first_head;
  plan.all_heads = options.all_heads;
  return plan;
}

void check_mask(const AttentionOptions& options, const Tensor& query, const Shape& scores) {
  const Tensor& mask = options.attn_mask;
  if (!mask.defined()) return;
  LOCKSTEP_CHECK(!options.is_causal, "[{}] attn_mask and is_causal exclude each other; put the triangle into the mask",
                 kOp);
  LOCKSTEP_CHECK(mask.dtype() == kBool || mask.is_floating_point(),
                 "[{}] expected an attn_mask of bool or a floating-point dtype, found {}", kOp, name(mask.dtype()));
  LOCKSTEP_CHECK(mask.device() == query.device(), "[{}] attn_mask is on {}, query on {}; move one of them", kOp,
                 to_string(mask.device()), to_string(query.device()));
  bool fits = mask.dim() <= scores.dim();
  for (int i = 1; fits && i <= mask.dim(); ++i) {
    const std::int64_t size = mask.sizes()[mask.dim() - i];
    fits = size == 1 || size == scores[scores.dim() - i];
  }
  LOCKSTEP_CHECK(fits, "[{}] expected an attn_mask that broadcasts to {}, found {}", kOp, to_string(scores),
                 to_string(mask.sizes()));
}

/// By operations that hold all weights, for a mask that requires gradients.
Tensor composed(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionOptions& options) {
  const auto wide = [&](const Tensor& t) { return options.enable_gqa ? repeated(t, query.size(-3)) : t; };
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
  const Tensor scores = matmul(query * scale, wide(key).transpose(-2, -1)) + options.attn_mask.to(query.dtype());
  // A query without any key gives 0, and so do its gradients.
  const Tensor none = scores.detach().amax({-1}, true) == -std::numeric_limits<double>::infinity();
  const Tensor weights = softmax(scores.masked_fill(none, 0.0), -1).masked_fill(none, 0.0);
  const Tensor kept = options.all_heads == 0
                          ? dropout(weights, options.dropout_p)
                          : dropout_of_part(weights, {-3, options.first_head, options.all_heads}, options.dropout_p);
  return matmul(kept, wide(value));
}

void check_operands(const Tensor& query, const Tensor& key, const Tensor& value) {
  LOCKSTEP_CHECK(query.defined() && key.defined() && value.defined(), "[{}] query, key or value is undefined", kOp);
  LOCKSTEP_CHECK(query.is_floating_point(), "[{}] expected floating-point tensors, found {}", kOp, name(query.dtype()));
  for (const Tensor* t : {&key, &value}) {
    LOCKSTEP_CHECK(t->dtype() == query.dtype() && t->device() == query.device(),
                   "[{}] expected query, key and value of one dtype on one device, found {} on {} and {} on {}", kOp,
                   name(query.dtype()), to_string(query.device()), name(t->dtype()), to_string(t->device()));
  }
  LOCKSTEP_CHECK(query.dim() >= 2 && key.dim() >= 2 && value.dim() >= 2 && query.size(-1) == key.size(-1) &&
                     key.size(-2) == value.size(-2),
                 "[{}] expected query [..., L, E], key [..., S, E] and value [..., S, Ev], found {}, {} and {}", kOp,
                 to_string(query.sizes()), to_string(key.sizes()), to_string(value.sizes()));
}

/// Leading sizes of query (and the result), and of key and value.
std::pair<Shape, Shape> leading_sizes(const Tensor& query, const Tensor& key, const Tensor& value, bool grouped) {
  if (!grouped) {
    const Shape all =
        broadcast_shapes(broadcast_shapes(leading_of(query), leading_of(key), kOp), leading_of(value), kOp);
    return {all, all};
  }
  Shape of_query = leading_of(query), of_key = leading_of(key), of_value = leading_of(value);
  const bool have_heads = !of_query.empty() && !of_key.empty() && !of_value.empty();
  LOCKSTEP_CHECK(
      have_heads && of_key.back() == of_value.back() && of_key.back() > 0 && of_query.back() % of_key.back() == 0,
      "[{}] enable_gqa: expected key and value with the same heads (dimension -3), of which query has a "
      "multiple, found {}, {} and {}",
      kOp, to_string(query.sizes()), to_string(key.sizes()), to_string(value.sizes()));
  const std::int64_t heads = of_query.back(), kv_heads = of_key.back();
  for (Shape* sizes : {&of_query, &of_key, &of_value}) sizes->erase(sizes->dim() - 1);
  of_query = of_key = broadcast_shapes(broadcast_shapes(of_query, of_key, kOp), of_value, kOp);
  of_query.push_back(heads);
  of_key.push_back(kv_heads);
  return {of_query, of_key};
}

}  // namespace

Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionOptions& options) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([&](const auto&... t) { return scaled_dot_product_attention(t..., options); }, query, key,
                            value);
  check_operands(query, key, value);
  const auto [leading, kv_leading] = leading_sizes(query, key, value, options.enable_gqa);
  const Shape scores = with_last(leading, query.size(-2), key.size(-2));
  check_mask(options, query, scores);
  if (options.attn_mask.defined() && GradMode::enabled() && needs_grad(options.attn_mask))
    return composed(query, key, value, options);

  const detail::AttentionPlan plan =
      make_plan(options, leading.empty() ? 1 : leading.back(), query.size(-1), query.device());
  const DType compute = compute_dtype(query);
  const Tensor out = detail::empty_as(with_last(leading, query.size(-2), value.size(-1)), query);
  const Tensor log_sums = empty(with_last(leading, query.size(-2), 1), {.dtype = compute, .device = query.device()});
  const Tensor mask = as_mask(options.attn_mask, scores, compute);
  if (out.numel() > 0 && key.numel() > 0) {
    attention_kernel(query)(as_operand(query, leading), as_operand(key, kv_leading), as_operand(value, kv_leading),
                            mask, as_heads(out), log_sums, plan);
  } else {
    LOCKSTEP_CHECK(query.size(-1) > 0 || out.numel() == 0, "[{}] expected at least one element a key, found {}", kOp,
                   to_string(key.sizes()));
    fill_values(out, 0);
  }
  if (auto* node = record<AttentionBackward>(out, {&query, &key, &value})) {
    node->save(query, key, value, mask, out, log_sums);
    node->plan = plan;
    node->leading = leading;
    node->kv_leading = kv_leading;
  }
  return out;
}

Tensor packed_attention(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads, const AttentionOptions& options) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([&](const Tensor& t) { return packed_attention(t, heads, kv_heads, options); }, qkv);
  if (kv_heads == 0) kv_heads = heads;
  LOCKSTEP_CHECK(qkv.defined() && qkv.is_floating_point() && qkv.dim() == 3,
                 "[packed_attention] expected a floating-point tensor [N, T, (heads + 2 * kv_heads) * D]");
  LOCKSTEP_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && qkv.size(2) % (heads + 2 * kv_heads) == 0,
                 "[packed_attention] expected a width that {} + 2 * {} heads divide, and heads that are a multiple of "
                 "kv_heads, found sizes {}",
                 heads, kv_heads, to_string(qkv.sizes()));
  const std::int64_t batch = qkv.size(0), length = qkv.size(1), d = qkv.size(2) / (heads + 2 * kv_heads);
  const Shape scores{batch, heads, length, length};
  check_mask(options, qkv, scores);
  LOCKSTEP_CHECK(!options.attn_mask.defined() || !needs_grad(options.attn_mask),
                 "[packed_attention] a mask that requires gradients needs scaled_dot_product_attention()");
  const detail::AttentionPlan plan = make_plan(options, heads, d, qkv.device());
  const Tensor dense = as_contiguous(qkv);
  const DType compute = compute_dtype(qkv);
  const Tensor out = empty({batch, length, heads * d}, options_of(qkv));
  const Tensor log_sums = empty({batch, heads, length}, {.dtype = compute, .device = qkv.device()});
  const Tensor mask = as_mask(options.attn_mask, scores, compute);
  if (qkv.numel() > 0) {
    const detail::Parts parts = detail::parts_of(dense, heads, kv_heads);
    attention_kernel(qkv)(parts.query, parts.key, parts.value, mask, heads_of(out, heads), log_sums, plan);
  }
  if (auto* node = record<PackedAttentionBackward>(out, {&qkv})) {
    node->save(dense, mask, out, log_sums);
    node->plan = plan;
    node->heads = heads;
    node->kv_heads = kv_heads;
  }
  return out;
}

}  // namespace lockstep
